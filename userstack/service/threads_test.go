// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// spareThreads is how many threads a stack may need more while it waits for any number of programs.
const spareThreads = 40

// threads returns how many OS threads this process has.
func threads(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "Threads: %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("no number of threads in\n%s", b)
	return 0
}

// wantThreads wants hardly more threads than before.
func wantThreads(t *testing.T, before int) {
	t.Helper()
	if n := threads(t); n > before+spareThreads {
		t.Errorf("%d threads, %d before", n, before)
	}
}

// wantEnd wants the sessions and all that they have to end in time. If they do
// not, release lets go of what keeps them.
func (b *serviceBed) wantEnd(endTime time.Duration, release func()) {
	b.t.Helper()
	over := make(chan struct{})
	begun := time.Now()
	go func() { defer close(over); b.end() }()
	select {
	case <-over:
		b.t.Logf("ended within %v", time.Since(begun))
	case <-time.After(endTime):
		b.t.Errorf("no end within %v:\n%s", endTime, relayStacks())
		release()
		<-over
	}
}

// noSYNAnswer returns the address of a socket that does not answer a SYN, because its
// backlog is full.
func noSYNAnswer(t *testing.T) netip.AddrPort {
	t.Helper()
	l := tcpSocket(t, 0)
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(l, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(l)
	if err != nil {
		t.Fatal(err)
	}
	// Take the places that there are.
	for {
		c := tcpSocket(t, unix.SOCK_NONBLOCK)
		if err := unix.Connect(c, sa); err != unix.EINPROGRESS {
			t.Fatal(err)
		}
		p := []unix.PollFd{{Fd: int32(c), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, 300)
		if err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if n == 0 && err == nil {
			_ = unix.Shutdown(c, unix.SHUT_RDWR) // and it waits no more
			break
		}
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(sa.(*unix.SockaddrInet4).Port))
}

// pending counts the sockets that wait for an answer to their SYN to addr.
func pending(t *testing.T, addr netip.AddrPort) (n int) {
	t.Helper()
	f, err := os.Open("/proc/thread-self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	to := fmt.Sprintf(":%04X", addr.Port())
	for s := bufio.NewScanner(f); s.Scan(); {
		if w := strings.Fields(s.Text()); len(w) > 3 && strings.HasSuffix(w[2], to) && w[3] == "02" {
			n++
		}
	}
	return n
}

// wantPending waits until n sockets wait.
func wantPending(t *testing.T, addr netip.AddrPort, n int) {
	t.Helper()
	testkind.Eventually(t, fmt.Sprintf("want %d connections pending", n), func() (any, bool) {
		got := pending(t, addr)
		return got, got == n
	})
}

// TestPendingConnects: connections that nobody answers take no thread each, and
// all of them end with the service.
func TestPendingConnects(t *testing.T) { pendingConnects(t, testTime) }

func pendingConnects(t *testing.T, endTime time.Duration) {
	t.Helper()
	testkind.System(t)
	checkLeaks(t)
	const count = 2000
	b := newServiceBed(t, host(t), nil)
	addr := noSYNAnswer(t)
	cl := b.launcher(os.Geteuid())
	// On a busy machine each system call has a thread to itself for a moment, and 2000
	// requests come at once.
	before := threads(t) + count/10
	var conns []*broker.ClientConn
	for range count {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		c, err := cl.Connect(fd, broker.ConnectRequest{Remote: addr})
		_ = unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	wantPending(t, addr, count)
	wantThreads(t, before)
	for _, c := range conns[:count/2] {
		if err := c.Cancel(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns[:count/2] {
		for ev := range c.Events() {
			if ev.Kind == broker.EventEstablished {
				t.Fatalf("%+v", ev)
			}
		}
	}
	wantPending(t, addr, count-count/2)
	b.wantEnd(endTime, func() {})
	wantPending(t, addr, 0)
	wantThreads(t, before)
}

// TestBlockingEnd: a launcher that makes the service's end of a pair a blocking
// one, whose program does not read, holds no thread of the service.
func TestBlockingEnd(t *testing.T) { blockingEnd(t, testTime) }

func blockingEnd(t *testing.T, endTime time.Duration) {
	t.Helper()
	checkLeaks(t)
	const count = 60
	b := newServiceBed(t, host(t), nil)
	var apps []int
	var full sync.WaitGroup
	before := threads(t)
	for range count {
		conn, peer := tcpPair(t)
		sock, err := conn.File()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		c, err := b.launcher(os.Geteuid()).Accept(int(sock.Fd()), netip.AddrPort{}, netip.AddrPort{})
		_ = sock.Close()
		if err != nil {
			t.Fatal(err)
		}
		next(t, c, broker.EventTaken)
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fds[1]) })
		if err := c.Attach(fds[1]); err != nil {
			t.Fatal(err)
		}
		app := &program{t: t, fd: fds[0]}
		t.Cleanup(app.close)
		apps = append(apps, fds[0])
		if _, err := peer.Write([]byte("no CLC message")); err != nil {
			t.Fatal(err)
		}
		app.wantUnread(1) // it is being relayed
		if err := unix.SetNonblock(fds[1], false); err != nil {
			t.Fatal(err)
		}
		full.Go(func() { fill(t, peer) })
	}
	full.Wait()
	wantThreads(t, before)
	b.wantEnd(endTime, func() {
		for _, fd := range apps {
			_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		}
	})
}

// fill writes to c until nobody takes it.
func fill(t *testing.T, c *net.TCPConn) {
	t.Helper()
	buf := make([]byte, 64<<10)
	for {
		if err := c.SetWriteDeadline(time.Now().Add(250 * time.Millisecond)); err != nil {
			t.Error(err)
			return
		}
		if _, err := c.Write(buf); err != nil {
			if !os.IsTimeout(err) {
				t.Error(err)
			}
			return
		}
	}
}

// TestBlockingSocket: a launcher that makes the TCP socket of a rendezvous a
// blocking one, whose peer sends half a message, holds no thread of the service.
func TestBlockingSocket(t *testing.T) { blockingSocket(t, testTime) }

func blockingSocket(t *testing.T, endTime time.Duration) {
	t.Helper()
	checkLeaks(t)
	const count = 60
	b := newServiceBed(t, host(t), nil)
	before := threads(t)
	var peers []*net.TCPConn
	for range count {
		_, peer, sock, _ := taken(t, b)
		peers = append(peers, peer)
		fd := numberOf(t, sock)
		testkind.Eventually(t, "the service has not taken the socket", func() (any, bool) {
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			if err != nil {
				t.Fatal(err)
			}
			return flags, flags&unix.O_NONBLOCK != 0
		})
		if err := unix.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
		// The header of a PROPOSAL.
		if _, err := peer.Write([]byte{0xe2, 0xd4, 0xc3, 0xd9, 1, 0, 52, 0x10}); err != nil {
			t.Fatal(err)
		}
	}
	// The header has been read, and nobody can read on.
	for _, p := range peers {
		wantAcked(t, p)
	}
	// Real time: whoever reads on would take a thread meanwhile.
	time.Sleep(100 * time.Millisecond)
	wantThreads(t, before)
	b.wantEnd(endTime, func() {
		for _, p := range peers {
			_ = p.Close()
		}
	})
}

// TestTimingEnds: a stack ends within seconds, though none of these connections does by itself.
func TestTimingEnds(t *testing.T) {
	testkind.Timing(t)
	const endTime = 5 * time.Second
	t.Run("connects", func(t *testing.T) { pendingConnects(t, endTime) })
	t.Run("blocking ends", func(t *testing.T) { blockingEnd(t, endTime) })
	t.Run("blocking sockets", func(t *testing.T) { blockingSocket(t, endTime) })
	t.Run("launcher stopped", func(t *testing.T) { newCarried(t, os.Geteuid()).client.wantEnd(2*endTime, func() {}) })
}

// numberOf is f.Fd, which would make the socket a blocking one.
func numberOf(t *testing.T, f *os.File) (fd int) {
	t.Helper()
	rc, err := f.SyscallConn()
	if err == nil {
		err = rc.Control(func(n uintptr) { fd = int(n) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// wantAcked waits until the other side's TCP has all that was written to c.
func wantAcked(t *testing.T, c *net.TCPConn) {
	t.Helper()
	rc, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	testkind.Eventually(t, "bytes are not acknowledged", func() (any, bool) {
		left := 0
		if cerr := rc.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		return left, left == 0
	})
}
