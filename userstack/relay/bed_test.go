// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// testTime bounds each wait of a test.
const testTime = socktest.Patience

// program is the program's end of a relayed connection.
type program struct {
	t  testing.TB
	fd int
}

func (p *program) write(s string) { p.t.Helper(); socktest.Write(p.t, p.fd, s) }

func (p *program) send(s string) (int, error) { return socktest.Send(p.fd, s) }

// read wants exactly want.
func (p *program) read(want string) { p.t.Helper(); socktest.Read(p.t, p.fd, want) }

// wantEnd wants the next read to find no data but the end: err, nil being the
// end of file.
func (p *program) wantEnd(want error) { p.t.Helper(); socktest.WantEnd(p.t, p.fd, want) }

// wantUnread waits until n bytes lie unread in the program's socket.
func (p *program) wantUnread(n int) { p.t.Helper(); socktest.WantUnread(p.t, p.fd, n) }

func (p *program) shutdown() { p.t.Helper(); socktest.Shutdown(p.t, p.fd) }

func (p *program) close() {
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}

// reset closes the connection with a reset.
func (p *program) reset() {
	p.t.Helper()
	if err := unix.SetsockoptLinger(p.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		p.t.Fatal(err)
	}
	p.close()
}

// connect makes a program's connection, and returns its two ends. reset has the close of the
// relay's end reset it.
func connect(t testing.TB) (p *program, app *Socket, reset func()) {
	t.Helper()
	a, b := socktest.TCPPair(t)
	f, err := a.File() // it blocks
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(f.Fd()))
	if err := errors.Join(err, f.Close(), a.Close(), b.SetDeadline(time.Time{})); err != nil {
		t.Fatal(err)
	}
	socktest.Bound(t, fd)
	p = &program{t: t, fd: fd}
	t.Cleanup(p.close)
	if app, err = NewSocket(b); err != nil {
		t.Fatal(err)
	}
	return p, app, func() { _ = b.SetLinger(0) }
}

// relayBed is a relay at work.
type relayBed struct {
	*program
	relay  *Relay
	net    *fakeStream
	stop   chan struct{}
	ended  chan bool
	resets atomic.Int32 // calls of ResetProgram

	drainIdle time.Duration // of the relay
	sending   func() bool   // likewise
}

// newRelayBed makes a relay. before is called before it runs.
func newRelayBed(t *testing.T, before func(*relayBed)) *relayBed {
	t.Helper()
	checkLeaks(t)
	b := &relayBed{net: newFakeStream(), stop: make(chan struct{}), ended: make(chan bool, 1)}
	program, app, reset := connect(t)
	b.program = program
	if before != nil {
		before(b)
	}
	b.relay = &Relay{App: app, Net: b.net, ResetProgram: func() { b.resets.Add(1); reset() }, DrainIdle: b.drainIdle, Sending: b.sending}
	go func() { b.ended <- b.relay.Run(b.stop) }()
	return b
}

// peerGets waits until the peer has exactly want, and then the end if end.
func (b *relayBed) peerGets(want string, end bool) {
	b.t.Helper()
	if !b.net.await(func() bool { return b.net.out.Len() >= len(want) && (b.net.outEnd || !end) }) {
		b.t.Fatalf("the peer has not got %q, end %v", socktest.Clipped([]byte(want)), end)
	}
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	if got := b.net.out.Bytes(); !bytes.Equal(got, []byte(want)) || b.net.outEnd != end {
		b.t.Fatalf("the peer got %q, end %v; want %q, %v", socktest.Clipped(got), b.net.outEnd, socktest.Clipped([]byte(want)), end)
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
	if n := b.resets.Load(); n != 0 != programReset || n > 1 {
		b.t.Errorf("the program's connection was reset %d times, want it: %v", n, programReset)
	}
}

// relayStacks returns the stacks of the goroutines that a relay has.
func relayStacks() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var out []string
	for s := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(s, "relay.(*Relay)") {
			out = append(out, s)
		}
	}
	return strings.Join(out, "\n\n")
}

// checkLeaks wants, at the end of the test, no goroutine of a relay and no more
// descriptors than now.
func checkLeaks(t testing.TB) {
	t.Helper()
	// The runtime's poller has descriptors of its own from its first use on.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	_ = w.Close()
	before := socktest.OpenFiles(t)
	t.Cleanup(func() {
		testkind.Poll(testTime, func() bool { return relayStacks() == "" && socktest.OpenFiles(t) <= before })
		if s := relayStacks(); s != "" {
			t.Errorf("goroutines left:\n%s", s)
		}
		if n := socktest.OpenFiles(t); n > before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
	})
}
