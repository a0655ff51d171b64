// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testTime bounds each wait of a test.
const testTime = 10 * time.Second

// program is the program's end of a relayed connection.
type program struct {
	t  testing.TB
	fd int
}

func (p *program) write(s string) {
	p.t.Helper()
	if n, err := p.send(s); n != len(s) || err != nil {
		p.t.Fatalf("write: %d of %d bytes, %v", n, len(s), err)
	}
}

func (p *program) send(s string) (int, error) {
	return unix.SendmsgN(p.fd, []byte(s), nil, nil, unix.MSG_NOSIGNAL)
}

// read wants exactly want.
func (p *program) read(want string) {
	p.t.Helper()
	buf := make([]byte, len(want))
	for got := 0; got < len(buf); {
		n, err := unix.Read(p.fd, buf[got:])
		if n <= 0 || err != nil {
			p.t.Fatalf("read after %q: %d, %v", clipped(buf[:got]), n, err)
		}
		got += n
	}
	if string(buf) != want {
		p.t.Fatalf("read %q, want %q", clipped(buf), clipped([]byte(want)))
	}
}

// wantEnd wants the next read to find no data but the end: err, nil being the
// end of file.
func (p *program) wantEnd(want error) {
	p.t.Helper()
	n, err := unix.Read(p.fd, make([]byte, 16))
	if n > 0 || err != want {
		p.t.Errorf("read: %d bytes, %v; want the end: %v", max(n, 0), err, want)
	}
}

// wantUnread waits until n bytes lie unread in the program's socket.
func (p *program) wantUnread(n int) {
	p.t.Helper()
	for end := time.Now().Add(testTime); ; time.Sleep(time.Millisecond) {
		got, err := unix.IoctlGetInt(p.fd, unix.TIOCINQ)
		if got >= n {
			return
		}
		if err != nil || time.Now().After(end) {
			p.t.Fatalf("%d bytes unread, want %d: %v", got, n, err)
		}
	}
}

func (p *program) shutdown() {
	p.t.Helper()
	if err := unix.Shutdown(p.fd, unix.SHUT_WR); err != nil {
		p.t.Fatal(err)
	}
}

func (p *program) close() {
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}

func clipped(b []byte) []byte { return b[:min(len(b), 40)] }

// socketpair makes a connection as a launcher does.
func socketpair(t testing.TB) (*program, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, fd: fds[0]}
	t.Cleanup(p.close)
	tv := unix.NsecToTimeval(int64(testTime))
	for _, name := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, name, &tv); err != nil {
			t.Fatal(err)
		}
	}
	c, err := fileConn(fds[1])
	if err != nil {
		t.Fatal(err)
	}
	return p, c.(*net.UnixConn)
}

// relayBed is a relay at work.
type relayBed struct {
	*program
	net     *fakeStream
	linger0 atomic.Bool
	stop    chan struct{}
	ended   chan bool
	brokens atomic.Int32 // calls of broken
}

// newRelayBed makes a relay. before is called before it runs.
func newRelayBed(t *testing.T, before func(*relayBed)) *relayBed {
	t.Helper()
	checkLeaks(t)
	b := &relayBed{net: newFakeStream(), stop: make(chan struct{}), ended: make(chan bool, 1)}
	var app *net.UnixConn
	b.program, app = socketpair(t)
	if before != nil {
		before(b)
	}
	r := &relay{app: app, net: b.net, linger0: &b.linger0, broken: func(e syscall.Errno) { b.broken(e) }}
	go func() { b.ended <- r.run(b.stop) }()
	return b
}

// broken is what the launcher does: it writes in the program's place, into a
// pair that is still open.
func (b *relayBed) broken(e syscall.Errno) {
	if e == 0 {
		return // the program has gone
	}
	b.brokens.Add(1)
	if pollHup(b.fd) {
		b.t.Error("the pair was closed before the launcher was told")
	}
	err := unix.Sendto(b.fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	if err != nil && err != unix.EAGAIN && err != unix.EPIPE {
		b.t.Errorf("launcher: %v", err)
	}
}

// peerGets waits until the peer has exactly want, and then the end if end.
func (b *relayBed) peerGets(want string, end bool) {
	b.t.Helper()
	if !b.net.await(func() bool { return b.net.out.Len() >= len(want) && (b.net.outEnd || !end) }) {
		b.t.Fatalf("the peer has not got %q, end %v", clipped([]byte(want)), end)
	}
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	if got := b.net.out.Bytes(); !bytes.Equal(got, []byte(want)) || b.net.outEnd != end {
		b.t.Fatalf("the peer got %q, end %v; want %q, %v", clipped(got), b.net.outEnd, clipped([]byte(want)), end)
	}
}

// wantOver waits for the end of the relay and wants it to have been a reset
// for the peer, and for the program, or not.
func (b *relayBed) wantOver(peerReset, programReset bool) {
	b.t.Helper()
	select {
	case reset := <-b.ended:
		if reset != (peerReset || programReset) {
			b.t.Errorf("run says reset: %v", reset)
		}
	case <-time.After(testTime):
		b.t.Fatalf("the relay has not ended:\n%s", relayStacks())
	}
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	if !b.net.closed || b.net.aborted != peerReset {
		b.t.Errorf("network side closed: %v, a reset for the peer: %v; want true, %v", b.net.closed, b.net.aborted, peerReset)
	}
	if n := b.brokens.Load(); n != 0 != programReset || n > 1 {
		b.t.Errorf("the launcher was told %d times of a reset, want it: %v", n, programReset)
	}
}

// relayStacks returns the stacks of the goroutines that a relay has.
func relayStacks() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var out []string
	for s := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(s, "service.(*relay)") || strings.Contains(s, "service.(*Service)") {
			out = append(out, s)
		}
	}
	return strings.Join(out, "\n\n")
}

func countFDs(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// checkLeaks wants, at the end of the test, no goroutine of this package and
// no more descriptors than now.
func checkLeaks(t *testing.T) {
	t.Helper()
	// The runtime's poller has descriptors of its own from its first use on.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	_ = w.Close()
	before := countFDs(t)
	t.Cleanup(func() {
		end := time.Now().Add(testTime)
		for time.Now().Before(end) && (relayStacks() != "" || countFDs(t) > before) {
			time.Sleep(time.Millisecond)
		}
		if s := relayStacks(); s != "" {
			t.Errorf("goroutines left:\n%s", s)
		}
		if n := countFDs(t); n > before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
	})
}

func TestProgramHalfCloses(t *testing.T) {
	b := newRelayBed(t, nil)
	b.write("request")
	b.shutdown()
	b.peerGets("request", true)
	b.net.peerSends("first")
	b.read("first")
	time.Sleep(10 * time.Millisecond) // what waits for the program's close waits by now
	big := strings.Repeat("second", 200<<10)
	b.net.peerSends(big)
	b.read(big)
	b.net.peerCloses()
	b.wantEnd(nil)
	b.close()
	b.wantOver(false, false)
}

func TestPeerHalfCloses(t *testing.T) {
	b := newRelayBed(t, nil)
	b.net.peerSends("greeting")
	b.net.peerEnds()
	b.read("greeting")
	b.wantEnd(nil)
	big := strings.Repeat("answer", 200<<10)
	b.write(big)
	b.peerGets(big, false)
	b.close()
	b.wantOver(false, false)
	b.peerGets(big, true)
}

// Once both sides have shut down writing nothing is left to carry, even for a
// program that keeps its descriptor. What it has not read stays readable.
func TestBothHalfClose(t *testing.T) {
	t.Run("program first", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.shutdown()
		b.peerGets("", true)
		b.net.peerSends("the rest")
		b.net.peerEnds()
		b.wantOver(false, false)
		b.read("the rest")
		b.wantEnd(nil)
	})
	t.Run("peer first", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerEnds()
		b.wantEnd(nil)
		b.write("the rest")
		b.shutdown()
		b.wantOver(false, false)
		b.peerGets("the rest", true)
		b.wantEnd(nil)
	})
	// SO_LINGER must not drop what shutdown promised to send.
	t.Run("linger", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.linger0.Store(true)
		b.net.peerEnds()
		b.wantEnd(nil)
		b.write("the rest")
		b.shutdown()
		b.close()
		b.wantOver(false, false)
		b.peerGets("the rest", true)
	})
}

func TestProgramCloses(t *testing.T) {
	b := newRelayBed(t, nil)
	b.write("last words")
	b.close()
	b.wantOver(false, false)
	b.peerGets("last words", true)
}

// A close with data unread is a reset for the peer, as with TCP.
func TestProgramClosesUnread(t *testing.T) {
	t.Run("in the pair", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends("unread")
		b.wantUnread(6)
		b.close()
		b.wantOver(true, false)
	})
	t.Run("all of it", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends("unread")
		b.net.peerEnds()
		b.wantUnread(6)
		b.close()
		b.wantOver(true, false)
	})
	t.Run("on the way", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends(strings.Repeat("more than fits ", 1<<20))
		b.wantUnread(100_000)
		b.close()
		b.wantOver(true, false)
	})
	t.Run("after half close", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.shutdown()
		b.peerGets("", true)
		b.net.peerSends("unread")
		b.wantUnread(6)
		b.close()
		b.wantOver(true, false)
	})
}

// The peer closes, and then the program, before the relay has looked.
func TestCloseAfterPeer(t *testing.T) {
	b := newRelayBed(t, func(b *relayBed) {
		b.net.peerCloses()
		b.close()
	})
	b.wantOver(false, false)
}

// A program that has only read what came before the peer's close closes too.
func TestPeerClosesProgramReads(t *testing.T) {
	for _, when := range []string{"before the relay", "while it runs"} {
		t.Run(when, func(t *testing.T) {
			big := strings.Repeat("a long answer ", 1<<18)
			b := newRelayBed(t, func(b *relayBed) {
				if when == "before the relay" {
					b.net.peerSends(big)
					b.net.peerCloses()
				}
			})
			if when != "before the relay" {
				b.net.peerSends(big)
				b.wantUnread(1)
				b.net.peerCloses()
			}
			for len(big) > 0 {
				n := min(64<<10, len(big))
				b.read(big[:n])
				big = big[n:]
			}
			b.wantEnd(nil)
			if n := b.brokens.Load(); n != 0 {
				t.Errorf("a reset before the program wrote")
			}
			b.close()
			b.wantOver(false, false)
		})
	}
}

// What a program writes to a peer that has closed makes it a reset.
func TestPeerClosesProgramWrites(t *testing.T) {
	b := newRelayBed(t, func(b *relayBed) {
		b.net.peerSends("bye")
		b.net.peerCloses()
	})
	b.read("bye")
	b.wantEnd(nil)
	b.write("nobody hears")
	b.wantOver(true, true)
	b.wantEnd(unix.ECONNRESET)
	if _, err := b.send("x"); err != unix.EPIPE {
		t.Errorf("the write after that: %v, want EPIPE", err)
	}
}

func TestPeerResets(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerResets()
		b.wantEnd(unix.ECONNRESET)
		b.wantOver(false, true)
	})
	t.Run("before the relay", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.peerResets() })
		b.wantEnd(unix.ECONNRESET)
		b.wantOver(false, true)
	})
	t.Run("data unread", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends("unread")
		b.wantUnread(6)
		b.net.peerResets()
		b.wantOver(false, true)
		b.read("unread")
		b.wantEnd(unix.ECONNRESET)
	})
	t.Run("while delivering", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends(strings.Repeat("more than fits ", 1<<20))
		b.wantUnread(100_000)
		b.net.peerResets()
		b.wantOver(false, true)
	})
	t.Run("while the program writes", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.full = true })
		b.write("into the pair")
		b.net.peerResets()
		b.wantOver(false, true)
		b.wantEnd(unix.ECONNRESET)
	})
	// The launcher can put nothing into a pair that the program has shut down
	// for writing: see the package's description.
	t.Run("after half close", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.shutdown()
		b.peerGets("", true)
		b.net.peerResets()
		b.wantOver(false, true)
		b.wantEnd(nil)
	})
	t.Run("after half close, data not sent", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.full = true })
		b.write("waits for room")
		b.shutdown()
		b.net.peerResets()
		b.wantOver(false, true)
		b.wantEnd(unix.ECONNRESET)
	})
}

// However close together a reset and the program's writes are, the program
// sees the reset: in the write that waits for room, or in the next read.
func TestPeerResetsBusy(t *testing.T) {
	for range 50 {
		b := newRelayBed(t, nil)
		var wg sync.WaitGroup
		var werr error
		wg.Go(func() {
			for werr == nil {
				_, werr = b.send("some of the data")
			}
		})
		b.peerGetsSome()
		b.net.peerResets()
		b.wantOver(false, true)
		wg.Wait()
		if werr != unix.ECONNRESET {
			if werr != unix.EPIPE {
				t.Errorf("write: %v", werr)
			}
			b.wantEnd(unix.ECONNRESET)
		}
		b.close()
	}
}

func (b *relayBed) peerGetsSome() {
	b.t.Helper()
	if !b.net.await(func() bool { return b.net.out.Len() > 0 }) {
		b.t.Fatal("the peer got nothing")
	}
}

func TestLingerZero(t *testing.T) {
	t.Run("close", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.linger0.Store(true)
		b.write("dropped or not")
		b.close()
		b.wantOver(true, false)
	})
	t.Run("after half close", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.shutdown()
		b.peerGets("", true)
		b.linger0.Store(true)
		b.close()
		b.wantOver(true, false)
	})
	t.Run("after the peer's close", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.peerCloses() })
		b.linger0.Store(true)
		b.wantEnd(nil)
		b.close()
		b.wantOver(false, false)
	})
}

// The end of the service resets what is left.
func TestStop(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		b := newRelayBed(t, nil)
		close(b.stop)
		b.wantOver(true, true)
		b.wantEnd(unix.ECONNRESET)
	})
	t.Run("before", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { close(b.stop) })
		b.wantOver(true, true)
		b.wantEnd(unix.ECONNRESET)
	})
	t.Run("stuck both ways", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.full = true })
		b.net.peerSends(strings.Repeat("more than fits ", 1<<20))
		b.wantUnread(100_000)
		b.write("waits for room")
		close(b.stop)
		b.wantOver(true, true)
	})
	t.Run("peer closed", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.peerCloses() })
		b.wantEnd(nil)
		close(b.stop)
		b.wantOver(true, true)
	})
}

// tcpPair makes a TCP connection over loopback.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d net.Dialer
	c, err := d.DialTCP(context.Background(), "tcp4", netip.AddrPort{}, l.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := l.SetDeadline(time.Now().Add(testTime)); err != nil {
		t.Fatal(err)
	}
	s, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, c := range []*net.TCPConn{c, s} {
		if err := c.SetDeadline(time.Now().Add(testTime)); err != nil {
			t.Fatal(err)
		}
	}
	return c, s
}

// The same over the kernel's TCP, which is what a declined connection has.
func TestRelayTCP(t *testing.T) {
	start := func(t *testing.T) (*program, *net.TCPConn, chan bool, chan struct{}) {
		checkLeaks(t)
		p, app := socketpair(t)
		c, peer := tcpPair(t)
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		ended, stop := make(chan bool, 1), make(chan struct{})
		b := &relayBed{program: p}
		r := &relay{app: app, net: tcpStream{c}, linger0: &b.linger0, broken: b.broken}
		go func() { ended <- r.run(stop) }()
		return p, peer, ended, stop
	}
	over := func(t *testing.T, ended chan bool, want bool) {
		t.Helper()
		select {
		case reset := <-ended:
			if reset != want {
				t.Errorf("reset: %v, want %v", reset, want)
			}
		case <-time.After(testTime):
			t.Fatalf("the relay has not ended:\n%s", relayStacks())
		}
	}
	big := strings.Repeat("some data ", 1<<18)
	t.Run("half closes", func(t *testing.T) {
		p, peer, ended, _ := start(t)
		p.write(big)
		p.shutdown()
		if got, err := io.ReadAll(peer); string(got) != big || err != nil {
			t.Fatalf("the peer got %d bytes, %v", len(got), err)
		}
		go func() {
			_, _ = io.WriteString(peer, big)
			_ = peer.CloseWrite()
		}()
		p.read(big)
		p.wantEnd(nil)
		p.close()
		over(t, ended, false)
	})
	t.Run("closed unread", func(t *testing.T) {
		p, peer, ended, _ := start(t)
		if _, err := io.WriteString(peer, "unread"); err != nil {
			t.Fatal(err)
		}
		p.wantUnread(6)
		p.close()
		over(t, ended, true)
		if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer reads %v, want ECONNRESET", err)
		}
	})
	t.Run("reset by the peer", func(t *testing.T) {
		p, peer, ended, _ := start(t)
		if err := peer.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		_ = peer.Close()
		over(t, ended, true)
		p.wantEnd(unix.ECONNRESET)
	})
	t.Run("stopped", func(t *testing.T) {
		p, peer, ended, stop := start(t)
		close(stop)
		over(t, ended, true)
		p.wantEnd(unix.ECONNRESET)
		if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer reads %v, want ECONNRESET", err)
		}
	})
}
