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

	"smcr/internal/testing/socktest"
	"smcr/userstack/engine"
)

// rulesBed is a relay between a program and a peer over TCP.
type rulesBed struct {
	*program
	relay        *Relay
	peer         *net.TCPConn
	sock         int // the relay's TCP socket, which the program sets options of
	stop         chan struct{}
	launcherGone chan struct{}
	cutOrphans   chan struct{}
	ended        chan bool
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
	if err := errors.Join(tcp.SetDeadline(time.Time{}), tcp.SetWriteBuffer(8<<10), peer.SetReadBuffer(32<<10)); err != nil {
		t.Fatal(err)
	}
	appConn, network := kinds[kind](t, end, tcp)
	app, err := NewSocket(appConn)
	if err != nil {
		t.Fatal(err)
	}
	app.DropUrgent = func() { DropUrgent(p.fd) }
	n, err := NewTCP(network)
	if err != nil {
		t.Fatal(err)
	}
	b := &rulesBed{
		program: p, peer: peer, sock: -1,
		stop: make(chan struct{}), launcherGone: make(chan struct{}), cutOrphans: make(chan struct{}), ended: make(chan bool, 1),
	}
	if err := n.s.rc.Control(func(fd uintptr) { b.sock, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil || b.sock < 0 {
		t.Fatal(err, b.sock)
	}
	t.Cleanup(b.closeSock)
	var told atomic.Int32
	b.relay = &Relay{
		App: app, Net: n, LauncherGone: b.launcherGone, CutOrphans: b.cutOrphans, DrainIdle: 300 * time.Millisecond,
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
	if got := b.end(); got != reset {
		b.t.Errorf("the relay says reset: %v", got)
	}
}

// end waits for the end of the relay, and returns whether the relay says that it was a reset.
func (b *rulesBed) end() (reset bool) {
	b.t.Helper()
	b.closeSock()
	select {
	case reset = <-b.ended:
	case <-time.After(testTime):
		b.t.Fatalf("the relay does not end:\n%s", relayStacks())
	}
	return reset
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

// peerGetsEnd wants no bytes, and a reset or an end of file: a TCP socket that has got the FIN
// before the reset reads an end of file.
func (b *rulesBed) peerGetsEnd() {
	b.t.Helper()
	b.closeSock()
	if got, err := io.ReadAll(b.peer); len(got) > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
		b.t.Errorf("the peer got %q, %v; want the end", socktest.Clipped(got), err)
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
