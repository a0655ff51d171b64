// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/engine"
	"smcr/userstack/internal/socktest"
)

// rulesBed is a relay between a program and a peer over TCP.
type rulesBed struct {
	*program
	relay *Relay
	peer  *net.TCPConn
	sock  int // the relay's TCP socket, which the program sets options of
	stop  chan struct{}
	left  chan struct{}
	hurry chan struct{}
	ended chan bool
}

// kinds are the sockets that a relay is made of: those of the service with goroutines
// and with an engine, and those of the launcher.
var kinds = map[string]func(t *testing.T, end int, tcp *net.TCPConn) (app, network Conn){
	"net": func(t *testing.T, end int, tcp *net.TCPConn) (app, network Conn) {
		f := os.NewFile(uintptr(end), "pair")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return Unix(c.(*net.UnixConn)), tcp
	},
	"engine": func(t *testing.T, end int, tcp *net.TCPConn) (app, network Conn) {
		loop, err := engine.New(0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := loop.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := unix.SetNonblock(end, true); err != nil {
			t.Fatal(err)
		}
		s, err := loop.NewSocket(end)
		if err != nil {
			t.Fatal(err)
		}
		return s, tcp
	},
	"file": func(t *testing.T, end int, tcp *net.TCPConn) (app, network Conn) {
		f, err := tcp.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_ = tcp.Close()
		if network, err = File(int(f.Fd())); err != nil {
			t.Fatal(err)
		}
		if app, err = File(end); err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(end)
		return app, network
	},
}

func newRulesBed(t *testing.T, kind string, tune func(*Relay)) *rulesBed {
	t.Helper()
	checkLeaks(t)
	p, end := unixProgram(t)
	tcp, peer := socktest.TCPPair(t)
	// Little room, for what waits to be seen waiting.
	if err := errors.Join(tcp.SetDeadline(time.Time{}), tcp.SetWriteBuffer(8<<10), peer.SetReadBuffer(8<<10)); err != nil {
		t.Fatal(err)
	}
	appConn, network := kinds[kind](t, end, tcp)
	app, err := NewSocket(appConn)
	if err != nil {
		t.Fatal(err)
	}
	app.PassMark = func() { PassMark(p.fd) }
	n, err := NewTCP(network)
	if err != nil {
		t.Fatal(err)
	}
	b := &rulesBed{
		program: p, peer: peer, sock: -1,
		stop: make(chan struct{}), left: make(chan struct{}), hurry: make(chan struct{}), ended: make(chan bool, 1),
	}
	if err := n.s.rc.Control(func(fd uintptr) { b.sock, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil || b.sock < 0 {
		t.Fatal(err, b.sock)
	}
	t.Cleanup(b.closeSock)
	var told atomic.Int32
	b.relay = &Relay{
		App: app, Net: n, Left: b.left, Hurry: b.hurry, lastQuiet: 300 * time.Millisecond,
		Broken: func(syscall.Errno) {
			told.Add(1)
			_ = unix.Sendto(p.fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		},
	}
	if tune != nil {
		tune(b.relay)
	}
	go func() { b.ended <- b.relay.Run(b.stop) }()
	t.Cleanup(func() {
		if told.Load() > 1 {
			t.Errorf("told %d times of a reset", told.Load())
		}
	})
	return b
}

// closeSock lets go of the descriptor by which options are set: no close of the
// relay's is seen before that.
func (b *rulesBed) closeSock() {
	if b.sock >= 0 {
		_ = unix.Close(b.sock)
		b.sock = -1
	}
}

// over wants the relay to end, by a reset or not.
func (b *rulesBed) over(reset bool) {
	b.t.Helper()
	b.closeSock()
	select {
	case got := <-b.ended:
		if got != reset {
			b.t.Errorf("the relay says reset: %v", got)
		}
	case <-time.After(testTime):
		b.t.Fatalf("the relay does not end:\n%s", relayStacks())
	}
}

// programEnd wants the program to read an error, or nil for the end of file, once its
// end is cut.
func (b *rulesBed) programEnd(want error) {
	b.t.Helper()
	p := []unix.PollFd{{Fd: int32(b.fd)}}
	for end := time.Now().Add(testTime); p[0].Revents&unix.POLLHUP == 0; time.Sleep(time.Millisecond) {
		if _, err := unix.Poll(p, 0); err != nil && err != unix.EINTR || time.Now().After(end) {
			b.t.Fatalf("the program's end is not cut: %v", err)
		}
	}
	b.wantEnd(want)
}

// peerGets wants the peer to read this, and then an error, or nil for the end of file.
func (b *rulesBed) peerGets(want string, end error) {
	b.t.Helper()
	b.closeSock()
	got, err := io.ReadAll(b.peer)
	if string(got) != want || !errors.Is(err, end) {
		b.t.Errorf("the peer got %d bytes %q, %v; want %d, %v", len(got), socktest.Clipped(got), err, len(want), end)
	}
}

func (b *rulesBed) peerReads(want string) {
	b.t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(b.peer, got); err != nil || string(got) != want {
		b.t.Fatalf("the peer got %q, %v, want %q", socktest.Clipped(got), err, socktest.Clipped([]byte(want)))
	}
}

func (b *rulesBed) peerSends(s string) {
	b.t.Helper()
	if _, err := io.WriteString(b.peer, s); err != nil {
		b.t.Fatal(err)
	}
}

// taken waits until the relay has read all that the peer sent.
func (b *rulesBed) taken() {
	b.t.Helper()
	for end := time.Now().Add(testTime); ; time.Sleep(time.Millisecond) {
		n, err := unix.IoctlGetInt(b.sock, unix.SIOCINQ)
		if n == 0 && err == nil {
			return
		}
		if err != nil || time.Now().After(end) {
			b.t.Fatalf("%d bytes of the peer's are left, %v", n, err)
		}
	}
}

func (b *rulesBed) peerResets() {
	b.t.Helper()
	if err := b.peer.SetLinger(0); err != nil {
		b.t.Fatal(err)
	}
	_ = b.peer.Close()
}

func (b *rulesBed) setLinger(seconds int32) {
	b.t.Helper()
	if err := unix.SetsockoptLinger(b.sock, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: seconds}); err != nil {
		b.t.Fatal(err)
	}
}

// fill has the program write until nothing moves any more, and returns that.
func (b *rulesBed) fill() string {
	b.t.Helper()
	var all strings.Builder
	piece := strings.Repeat("last words ", 100)
	for still := 0; still < 20; {
		switch n, err := unix.SendmsgN(b.fd, []byte(piece), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); {
		case err == nil:
			all.WriteString(piece[:n])
			still = 0
		case err == unix.EAGAIN:
			still++
			time.Sleep(5 * time.Millisecond)
		default:
			b.t.Fatal(err)
		}
	}
	return all.String()
}

// rules has a row for each rule of a Relay, over TCP.
var rules = []struct {
	name string
	tune func(r *Relay) // may be nil
	play func(b *rulesBed)
}{
	{"program closes", nil, func(b *rulesBed) {
		b.write("last words")
		b.close()
		b.over(false)
		b.peerGets("last words", nil)
	}},
	{"program shuts down writing", nil, func(b *rulesBed) {
		b.write("request")
		b.shutdown()
		b.peerReads("request")
		if n, err := b.peer.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			b.t.Fatalf("the peer reads %d, %v", n, err)
		}
		big := strings.Repeat("answer ", 100<<10)
		go func() { _, _ = io.WriteString(b.peer, big); _ = b.peer.CloseWrite() }()
		b.read(big)
		b.programEnd(nil)
		b.over(false)
	}},
	{"program shuts down reading", nil, func(b *rulesBed) {
		if err := unix.Shutdown(b.fd, unix.SHUT_RD); err != nil {
			b.t.Fatal(err)
		}
		for range 3 {
			b.peerSends("nobody reads")
			b.write("still here")
			b.peerReads("still here")
		}
		b.taken()
		if err := b.peer.CloseWrite(); err != nil {
			b.t.Fatal(err)
		}
		b.shutdown()
		b.over(false)
		b.peerGets("", nil)
	}},
	{"peer shuts down writing", nil, func(b *rulesBed) {
		b.peerSends("greeting")
		if err := b.peer.CloseWrite(); err != nil {
			b.t.Fatal(err)
		}
		b.read("greeting")
		b.wantEnd(nil)
		b.write("answer")
		b.close()
		b.over(false)
		b.peerGets("answer", nil)
	}},
	{"program closes with data unread", nil, func(b *rulesBed) {
		b.peerSends("unread")
		b.wantUnread(6)
		b.write("last words")
		b.close()
		b.over(true)
		b.peerGets("last words", unix.ECONNRESET)
	}},
	{"peer resets", nil, func(b *rulesBed) {
		b.peerResets()
		b.over(true)
		b.programEnd(unix.ECONNRESET)
		if _, err := b.send("x"); err != unix.EPIPE {
			b.t.Errorf("the write after that: %v, want EPIPE", err)
		}
	}},
	{"peer resets, data unread", nil, func(b *rulesBed) {
		b.peerSends("unread")
		b.wantUnread(6)
		b.peerResets()
		b.over(true)
		b.read("unread")
		b.programEnd(unix.ECONNRESET)
	}},
	{"program writes to a peer that has closed", nil, func(b *rulesBed) {
		b.peerSends("bye")
		_ = b.peer.Close()
		b.read("bye")
		b.wantEnd(nil)
		for end := time.Now().Add(testTime); ; time.Sleep(time.Millisecond) {
			if _, err := b.send("nobody hears"); err == unix.EPIPE {
				break
			} else if err != nil || time.Now().After(end) {
				b.t.Fatalf("write: %v", err)
			}
		}
		b.over(true)
		b.programEnd(unix.ECONNRESET)
	}},
	{"SO_LINGER 0", nil, func(b *rulesBed) {
		b.setLinger(0)
		b.close()
		b.over(true)
		b.peerGets("", unix.ECONNRESET)
	}},
	{"SO_LINGER 0 after both ends of file", nil, func(b *rulesBed) {
		if err := b.peer.CloseWrite(); err != nil {
			b.t.Fatal(err)
		}
		b.wantEnd(nil)
		b.setLinger(0)
		big := strings.Repeat("the rest ", 4<<10)
		b.write(big)
		b.shutdown()
		b.close()
		b.over(false)
		b.peerGets(big, nil)
	}},
	{"program gone, peer sends and takes nothing", nil, func(b *rulesBed) {
		words := b.fill()
		b.close()
		begin := time.Now()
		b.peerSends("nobody reads")
		b.over(true)
		if took := time.Since(begin); took < b.relay.lastQuiet || took > testTime/2 {
			b.t.Errorf("over after %v", took)
		}
		got, err := io.ReadAll(b.peer)
		if !errors.Is(err, unix.ECONNRESET) || !strings.HasPrefix(words, string(got)) {
			b.t.Errorf("the peer got %q, %v", socktest.Clipped(got), err)
		}
	}},
	{"program gone, peer sends and is slow", nil, func(b *rulesBed) {
		words := b.fill()
		b.close()
		b.peerSends("nobody reads")
		begin := time.Now()
		var got strings.Builder
		buf := make([]byte, 8<<10)
		b.closeSock()
		for {
			n, err := b.peer.Read(buf)
			got.Write(buf[:n])
			if err != nil {
				if !errors.Is(err, unix.ECONNRESET) {
					b.t.Errorf("the peer reads %v", err)
				}
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if got.String() != words {
			b.t.Errorf("the peer got %d of %d bytes", got.Len(), len(words))
		}
		if took := time.Since(begin); took < b.relay.lastQuiet {
			b.t.Errorf("took only %v, no test of a limit of %v", took, b.relay.lastQuiet)
		}
		b.over(true)
	}},
	{"program gone, peer sends and is slow for too long", func(r *Relay) { r.lastLimit = 500 * time.Millisecond }, func(b *rulesBed) {
		words := b.fill()
		b.close()
		b.peerSends("nobody reads")
		got, buf := 0, make([]byte, 1<<10)
		b.closeSock()
		for {
			n, err := b.peer.Read(buf)
			got += n
			if err != nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if got >= len(words) {
			b.t.Errorf("the peer got all %d bytes", got)
		}
		b.over(true)
	}},
	{"urgent bytes", nil, func(b *rulesBed) {
		socktest.NeedOOB(b.t)
		if err := unix.Sendto(b.fd, []byte("before!"), unix.MSG_OOB, nil); err != nil {
			b.t.Fatal(err)
		}
		b.write("behind")
		peer, err := NewSocket(b.peer)
		if err != nil {
			b.t.Fatal(err)
		}
		var got []byte
		marks := ""
		buf := make([]byte, 100)
		for len(got) < len("before!behind") {
			n, urgent, err := peer.ReadMark(buf)
			if err != nil {
				b.t.Fatal(err)
			}
			if got = append(got, buf[:n]...); urgent {
				marks += string(got[len(got)-1:])
			}
		}
		if string(got) != "before!behind" || marks != "!" {
			b.t.Errorf("the peer got %q, urgent %q", got, marks)
		}
		if _, err := peer.WriteUrgent([]byte("and back?")); err != nil {
			b.t.Fatal(err)
		}
		b.wantUrgent('?')
		b.read("and back")
		b.close()
		b.over(false)
	}},
	{"launcher leaves, program outlives it", nil, func(b *rulesBed) {
		begin := time.Now()
		close(b.left)
		b.over(true)
		if took := time.Since(begin); took < orphanGrace {
			b.t.Errorf("over after %v", took)
		}
		b.programEnd(unix.ECONNRESET)
		b.peerGets("", unix.ECONNRESET)
	}},
	{"launcher leaves, program goes with it", nil, func(b *rulesBed) {
		words := b.fill()
		close(b.left)
		time.Sleep(orphanGrace / 4)
		b.close()
		time.Sleep(2 * orphanGrace)
		b.peerGets(words, nil)
		b.over(false)
	}},
	{"launcher leaves, and is in a hurry", nil, func(b *rulesBed) {
		b.fill()
		close(b.left)
		b.close()
		time.Sleep(2 * orphanGrace)
		close(b.hurry)
		b.over(true)
	}},
	{"launcher leaves, peer takes nothing", func(r *Relay) { r.OrphanLimit = 3 * orphanGrace }, func(b *rulesBed) {
		b.fill()
		b.close()
		close(b.left)
		b.over(true)
	}},
	{"stopped", nil, func(b *rulesBed) {
		close(b.stop)
		b.over(true)
		b.programEnd(unix.ECONNRESET)
		b.peerGets("", unix.ECONNRESET)
	}},
	{"stopped while last words wait", func(r *Relay) { r.lastQuiet = testTime }, func(b *rulesBed) {
		b.fill()
		b.close()
		b.peerSends("nobody reads")
		time.Sleep(50 * time.Millisecond)
		close(b.stop)
		b.over(true)
	}},
}

// TestRules plays each rule with each kind of sockets.
func TestRules(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			for _, r := range rules {
				t.Run(r.name, func(t *testing.T) { r.play(newRulesBed(t, kind, r.tune)) })
			}
		})
	}
}
