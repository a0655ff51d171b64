// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/rdmaverbs"
)

// testTime bounds each wait of a test.
const testTime = time.Minute

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

// readAgain is read(2), repeated when a signal of the Go runtime interrupts it.
func readAgain(fd int, b []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, b); err != unix.EINTR {
			return n, err
		}
	}
}

// read wants exactly want.
func (p *program) read(want string) {
	p.t.Helper()
	buf := make([]byte, len(want))
	for got := 0; got < len(buf); {
		n, err := readAgain(p.fd, buf[got:])
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
	n, err := readAgain(p.fd, make([]byte, 16))
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
	left    chan struct{} // of the relay
	brokens atomic.Int32  // calls of broken
}

// newRelayBed makes a relay. before is called before it runs.
func newRelayBed(t *testing.T, before func(*relayBed)) *relayBed {
	t.Helper()
	checkLeaks(t)
	b := &relayBed{net: newFakeStream(), stop: make(chan struct{}), left: make(chan struct{}), ended: make(chan bool, 1)}
	var app *net.UnixConn
	b.program, app = socketpair(t)
	if before != nil {
		before(b)
	}
	r := &relay{app: app, net: b.net, linger0: &b.linger0, left: b.left, broken: func(e syscall.Errno) { b.broken(e) }}
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

func countFDs(t testing.TB) int { return len(openFDs(t)) }

// openFDs returns what the descriptors are, without that which tells.
func openFDs(t testing.TB) (fds []string) {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if link, err := os.Readlink("/proc/self/fd/" + n.Name()); err == nil {
			fds = append(fds, n.Name()+" "+link)
		}
	}
	return fds
}

// checkLeaks wants, at the end of the test, no goroutine of this package and
// no more descriptors than now.
func checkLeaks(t testing.TB) {
	t.Helper()
	// The runtime's poller has descriptors of its own from its first use on.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	_ = w.Close()
	rdmaverbs.ZeroBuffer(nil) // so has the zeroing of buffers
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
			t.Errorf("%d descriptors, %d before: %v", n, before, openFDs(t))
		}
	})
}
