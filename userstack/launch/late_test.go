// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/smc"
	"smcr/userstack/broker"
)

// late is a server that accepts when the test says so (see probeLate).
type late struct {
	*running
	t     *testing.T
	stack *fakeStack
	in    *os.File
}

func startLate(t *testing.T, stack *fakeStack) *late {
	t.Helper()
	path := fifo(t)
	l := &late{running: startProbe(t, stack, "late", path, "0"), t: t, stack: stack}
	l.in = openFifo(t, path)
	l.want("begins", l.line(t))
	return l
}

func fifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "commands")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func openFifo(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0) // a writer alone would wait for the reader
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (l *late) want(want, got string) {
	l.t.Helper()
	if got != want {
		l.t.Fatalf("%q, want %q", got, want)
	}
}

// tell has the server do something and returns what it answers.
func (l *late) tell(format string, args ...any) string {
	l.t.Helper()
	if _, err := fmt.Fprintf(l.in, format+"\n", args...); err != nil {
		l.t.Fatal(err)
	}
	return l.line(l.t)
}

// connect makes a connection on which a greeting is sent.
func (l *late) connect(addr, greeting string) *net.TCPConn {
	l.t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, greeting); err != nil {
		l.t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// accepted waits until the service has been given n connections.
func (l *late) accepted(n int) {
	l.t.Helper()
	until(l.t, fmt.Sprintf("%d connections accepted early", n), func() bool { return l.stack.accepts.Load() >= int64(n) })
}

// wantAccept accepts connections of the clients, in order, and reads the
// greetings. The server has accepted from others so far.
func (l *late) wantAccept(list, from int, greeting string, clients ...*net.TCPConn) {
	l.t.Helper()
	for i, c := range clients {
		if got := l.tell("poll %d", list); got != "0x1" {
			l.t.Errorf("poll before connection %d: %s", i, got)
		}
		l.want(fmt.Sprintf("%v %v", mapped(l, c), c.RemoteAddr()), l.tell("accept %d", list))
		l.want(fmt.Sprint(greeting, i), l.tell("read %d", from+i))
		l.want("written", l.tell("write %d answer", from+i))
		b := make([]byte, len("answer"))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "answer" {
			l.t.Errorf("connection %d: %q, %v", i, b, err)
		}
	}
}

// wantAnyOrder is wantAccept for connections in the order in which their data came, which was
// nearly at the same time.
func (l *late) wantAnyOrder(clients []*net.TCPConn) {
	l.t.Helper()
	order := make(map[string]int)
	for i, c := range clients {
		order[fmt.Sprintf("%v %v", mapped(l, c), c.RemoteAddr())] = i
	}
	for n := range clients {
		got := l.tell("accept 0")
		i, ok := order[got]
		if !ok {
			l.t.Fatalf("accepted %q, want one of %v", got, order)
		}
		delete(order, got)
		l.want(fmt.Sprint("hello", i), l.tell("read %d", n))
	}
}

// mapped is the address of a client, as the last listening socket tells it.
func mapped(_ *late, c *net.TCPConn) netip.AddrPort {
	a := c.LocalAddr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// wantClientReset wants a client to be reset.
func wantClientReset(t *testing.T, c *net.TCPConn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("client: %v, want a reset", err)
	}
}

// A server that accepts late finds connections that are made, whatever its
// listening socket is like, in their order; then none.
func TestLate(t *testing.T) {
	testkind.System(t)
	for _, tt := range []struct{ name, listen, options, dial string }{
		{"IPv4", "127.0.0.1:0", "", "127.0.0.1"},
		{"any IPv4", "0.0.0.0:0", "", "127.0.0.2"},
		{"IPv6", "[::1]:0", "", "::1"},
		{"any IPv6", "[::]:0", "v6only", "::1"},
		{"device", "0.0.0.0:0", "device=lo", "127.0.0.1"},
		{"deferred accept", "127.0.0.1:0", "defer", "127.0.0.1"},
		{"least TTL", "127.0.0.1:0", "ttl", "127.0.0.1"},
		{"transparent", "0.0.0.0:0", "transparent", "127.0.0.1"},
		{"SO_REUSEPORT", "127.0.0.1:0", "reuseport", "127.0.0.1"},
	} {
		for _, smc := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, SMC %v", tt.name, smc), func(t *testing.T) {
				t.Parallel()
				l := startLate(t, &fakeStack{noPeer: !smc})
				addr := netip.MustParseAddrPort(l.tell("listen %s 16 %s", tt.listen, tt.options))
				var clients []*net.TCPConn
				for i := range 5 {
					clients = append(clients, l.connect(netip.AddrPortFrom(netip.MustParseAddr(tt.dial), addr.Port()).String(), fmt.Sprint("hello", i)))
				}
				l.accepted(5)
				if tt.options == "defer" {
					l.wantAnyOrder(clients)
				} else {
					l.wantAccept(0, 0, "hello", clients...)
				}
				l.want("0x0", l.tell("poll 0"))
				l.want("resource temporarily unavailable", l.tell("accept 0"))
				if smc {
					l.want("exit", l.exit())
				}
			})
		}
	}
}

// Where there can be no placeholder, connections wait for accept() as they are.
func TestLateImpossible(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	l := startLate(t, &fakeStack{})
	addr := l.tell("listen 127.0.0.1:0 16 transparent")
	if strings.Contains(addr, "not permitted") {
		t.Skip(addr)
	}
	clients := []*net.TCPConn{l.connect(addr, "hello0"), l.connect(addr, "hello1")}
	time.Sleep(10 * lateDelay)
	if n := l.stack.accepts.Load(); n != 0 {
		t.Errorf("%d connections accepted early", n)
	}
	l.wantAccept(0, 0, "hello", clients...)
	l.want("0x0", l.tell("poll 0"))
	if n := l.stack.accepts.Load(); n != 2 {
		t.Errorf("%d connections accepted", n)
	}
}

// exit ends the server and wants each of its connections to have been SMC.
func (l *late) exit() string {
	if _, err := fmt.Fprintln(l.in, "exit"); err != nil {
		l.t.Error(err)
	}
	res := l.wait(l.t)
	if n := uint64(l.stack.accepts.Load()); res.stats.ByMode[broker.ModeSMCR] != n || len(res.stats.TCP) != 0 {
		l.t.Errorf("%+v of %d connections", res.stats, n)
	}
	return "exit" + strings.TrimSpace(res.out)
}

// No more connections are accepted early than the backlog lets wait. The others
// follow, in order, also where the queue was full.
func TestLateBacklog(t *testing.T) {
	testkind.System(t)
	for _, backlog := range []int{0, 3} {
		t.Run(fmt.Sprint(backlog), func(t *testing.T) {
			t.Parallel()
			l := startLate(t, &fakeStack{})
			addr := l.tell("listen 127.0.0.1:0 %d", backlog)
			var clients []*net.TCPConn
			for i := range backlog + 1 { // all that fit
				clients = append(clients, l.connect(addr, fmt.Sprint("hello", i)))
			}
			l.accepted(backlog + 1)
			if backlog > 0 { // the placeholder takes one place
				for i := backlog + 1; i < 2*backlog; i++ {
					clients = append(clients, l.connect(addr, fmt.Sprint("hello", i)))
				}
			}
			time.Sleep(10 * lateDelay)
			if n := l.stack.accepts.Load(); n != int64(backlog+1) {
				t.Errorf("%d connections accepted early, want %d", n, backlog+1)
			}
			l.wantAccept(0, 0, "hello", clients...)
			l.want("0x0", l.tell("poll 0"))
			l.want("resource temporarily unavailable", l.tell("accept 0"))
		})
	}
}

// A program whose server falls behind and catches up finds each connection once.
func TestLateAgain(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	l := startLate(t, &fakeStack{})
	addr := l.tell("listen 127.0.0.1:0 64")
	var clients []*net.TCPConn
	total := 0
	for round := range 4 {
		for i := range 3 + round {
			clients = append(clients, l.connect(addr, fmt.Sprint("hello", i)))
			if i%2 == 1 {
				l.accepted(total + len(clients))
			}
		}
		l.wantAccept(0, total, "hello", clients...)
		total += len(clients)
		clients = nil
		l.want("0x0", l.tell("poll 0"))
	}
	// The first of these waits long, the others do not.
	clients = append(clients, l.connect(addr, "hello0"))
	l.accepted(total + 1)
	clients = append(clients, l.connect(addr, "hello1"), l.connect(addr, "hello2"))
	l.wantAccept(0, total, "hello", clients...)
	l.want("resource temporarily unavailable", l.tell("accept 0"))
}

// A connection that its client resets before accept() is accepted, and reads
// ECONNRESET.
func TestLateReset(t *testing.T) {
	testkind.System(t)
	t.Run("TCP", func(t *testing.T) {
		t.Parallel()
		l := startLate(t, &fakeStack{noPeer: true})
		c := l.connect(l.tell("listen 127.0.0.1:0 16"), "")
		l.accepted(1)
		_ = c.SetLinger(0)
		_ = c.Close()
		l.want("0x1", l.tell("poll 0"))
		_ = l.acceptReset()
	})
	t.Run("TCP, before the service has answered", func(t *testing.T) {
		t.Parallel()
		gate := make(chan struct{})
		l := startLate(t, &fakeStack{noPeer: true, acceptGate: gate})
		c := l.connect(l.tell("listen 127.0.0.1:0 16"), "")
		l.accepted(1)
		_ = c.SetLinger(0)
		_ = c.Close()
		gate <- struct{}{}
		time.Sleep(lateDelay) // until the launcher has looked whether the client has left
		_ = l.acceptReset()
	})
	t.Run("SMC", func(t *testing.T) {
		t.Parallel()
		l := startLate(t, &fakeStack{breakAfter: 1})
		c := l.connect(l.tell("listen 127.0.0.1:0 16"), "x")
		l.accepted(1)
		wantEnd(t, c) // the service has let go of it
		l.want("0x1", l.tell("poll 0"))
		_ = l.acceptReset()
	})
}

// Connections of SMC clients that have left before a PROPOSAL are not shown to a program that
// accepts late, but for the last one: what poll has told stays true.
func TestLateLeft(t *testing.T) {
	testkind.System(t)
	t.Run("no PROPOSAL", func(t *testing.T) {
		l := startLate(t, &fakeStack{decline: "no CLC message", atOnce: true, reason: uint32(smc.DiagPeerNoSMC)})
		addr := l.tell("listen 127.0.0.1:0 16")
		leave := func(n int) {
			for range n {
				_ = l.connect(addr, "").Close()
			}
		}
		leave(3)
		l.accepted(3)
		time.Sleep(lateDelay) // until the launcher has seen that they have left
		l.want("0x1", l.tell("poll 0"))
		if got := l.tell("accept 0"); !strings.HasPrefix(got, "127.0.0.1:") {
			t.Fatal(got)
		}
		l.want("", l.tell("read 0"))
		l.want("resource temporarily unavailable", l.tell("accept 0"))

		stays := l.connect(addr, "hello0") // it is TCP
		leave(3)
		l.accepted(3 + 4)
		time.Sleep(lateDelay)
		l.wantAccept(0, 1, "hello", stays)
		l.want("resource temporarily unavailable", l.tell("accept 0"))
	})
	// These clients only read.
	t.Run("declined", func(t *testing.T) {
		l := startLate(t, &fakeStack{decline: "too many handshakes", atOnce: true, reason: uint32(smc.DiagMem)})
		addr := l.tell("listen 127.0.0.1:0 16")
		for range 3 {
			if err := l.connect(addr, "").CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		l.accepted(3)
		time.Sleep(lateDelay)
		for i := range 3 {
			if got := l.tell("accept 0"); !strings.HasPrefix(got, "127.0.0.1:") {
				t.Fatal(got)
			}
			l.want("written", l.tell("write %d answer", i))
		}
	})
}

// A host that has many connections in the queue does not delay those of another one.
func TestLateFair(t *testing.T) {
	testkind.System(t)
	l := startLate(t, &fakeStack{})
	addr := l.tell("listen 127.0.0.1:0 16")
	var crowd []*net.TCPConn
	for i := range 5 {
		crowd = append(crowd, l.connect(addr, fmt.Sprint("hello", i)))
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	other, err := d.DialContext(t.Context(), "tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l.accepted(len(crowd) + 1)
	l.want(fmt.Sprintf("%v %v", crowd[0].LocalAddr(), crowd[0].RemoteAddr()), l.tell("accept 0"))
	l.want(fmt.Sprintf("%v %v", other.LocalAddr(), other.RemoteAddr()), l.tell("accept 0"))
	for _, c := range crowd[1:] {
		l.want(fmt.Sprintf("%v %v", c.LocalAddr(), c.RemoteAddr()), l.tell("accept 0"))
	}
}

// The service is asked about a bounded number of connections at a time, and hosts take turns.
func TestLateAsks(t *testing.T) {
	testkind.System(t)
	stack := &fakeStack{acceptGate: make(chan struct{})}
	l := startLate(t, stack)
	addr := l.tell("listen 127.0.0.1:0 1000")
	const crowd = maxAsking + 50
	for range crowd {
		_ = l.connect(addr, "x")
	}
	l.accepted(maxAsking)
	other, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(t.Context(), "tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	time.Sleep(10 * lateDelay) // until the launcher has accepted all
	if n := stack.accepts.Load(); n != maxAsking {
		t.Errorf("the service is asked about %d connections at a time, want %d", n, maxAsking)
	}
	for n := range 2 {
		stack.acceptGate <- struct{}{}
		l.accepted(maxAsking + n + 1)
	}
	stack.mu.Lock()
	if i := slices.Index(stack.peers, netip.MustParseAddr("127.0.0.2")); i < 0 {
		t.Errorf("nobody asked about the other host among %d", len(stack.peers))
	}
	stack.mu.Unlock()
	close(stack.acceptGate)
	l.accepted(crowd + 1)
}

// acceptReset accepts a connection that was reset, with its name if that is known.
func (l *late) acceptReset() string {
	l.t.Helper()
	if got := l.tell("accept 0"); strings.Contains(got, "getpeername") {
		// As of a TCP socket that has been reset.
		if !strings.Contains(got, "not connected") {
			l.t.Error(got)
		}
	}
	got := l.tell("read 0")
	if got == "x" {
		got = l.tell("read 0")
	}
	l.want("connection reset by peer", got)
	return got
}

// wantEnd waits until a client's connection is over in some way.
func wantEnd(t *testing.T, c *net.TCPConn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection does not end")
	}
}

// When a listening socket ends, in any way, the connections that wait are reset, and the
// port is free for other sockets.
func TestLateEnd(t *testing.T) {
	testkind.System(t)
	for _, how := range []string{"close 0", "shutdown 0", "exit"} {
		for _, smc := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, SMC %v", how, smc), func(t *testing.T) {
				t.Parallel()
				l := startLate(t, &fakeStack{noPeer: !smc})
				addr := l.tell("listen 127.0.0.1:0 16 reuseaddr")
				var clients []*net.TCPConn
				for range 3 {
					clients = append(clients, l.connect(addr, ""))
				}
				l.accepted(3)
				if how == "exit" {
					if _, err := fmt.Fprintln(l.in, how); err != nil {
						t.Fatal(err)
					}
				} else if got := l.tell(how); !strings.HasPrefix(got, strings.Fields(how)[0][:4]) {
					t.Fatal(got)
				}
				begin := time.Now()
				for _, c := range clients {
					if smc {
						wantEnd(t, c)
						continue
					}
					wantClientReset(t, c)
				}
				if smc && how != "exit" && l.stack.resets.Load() != 3 {
					t.Errorf("the service was told of %d resets, want 3", l.stack.resets.Load())
				}
				if took := time.Since(begin); took > 5*time.Second {
					t.Errorf("took %v", took)
				}
				if how == "close 0" {
					l.want(addr, l.tell("listen %s 16 reuseaddr", addr))
					c := l.connect(addr, "hello0")
					l.accepted(4)
					l.wantAccept(1, 0, "hello", c)
				}
			})
		}
	}
}

// A listening socket keeps its connections while any process has it, under any number,
// and the process that accepts first gets them.
func TestLateFork(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	l := startLate(t, &fakeStack{})
	addr := l.tell("listen 127.0.0.1:0 16")
	l.want("dup", l.tell("dup 0"))
	path := fifo(t)
	in := openFifo(t, path)
	both := []string{l.tell("child 1 %s", path), l.line(t)}
	slices.Sort(both)
	if !slices.Equal(both, []string{"begins", "child"}) {
		t.Fatal(both)
	}
	child := &late{running: l.running, t: t, stack: l.stack, in: in}
	var clients []*net.TCPConn
	for range 4 {
		clients = append(clients, l.connect(addr, "hello0"))
	}
	l.accepted(4)
	l.want("closed", l.tell("close 0"))
	l.wantAccept(1, 0, "hello", clients[0])
	child.wantAccept(0, 0, "hello", clients[1])
	l.wantAccept(1, 1, "hello", clients[2])
	l.want("closed", l.tell("close 1"))
	child.wantAccept(0, 1, "hello", clients[3])
	child.want("0x0", child.tell("poll 0"))
	clients = append(clients, l.connect(addr, ""))
	l.accepted(5)
	child.want("closed", child.tell("close 0"))
	wantEnd(t, clients[4])
	if n := l.stack.resets.Load(); n != 1 {
		t.Errorf("the service was told of %d resets, want 1", n)
	}
	if _, err := fmt.Fprintln(child.in, "exit"); err != nil {
		t.Error(err)
	}
}

// Each of several sockets of one port has its own connections.
func TestLateReusePort(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	l := startLate(t, &fakeStack{})
	addr := l.tell("listen 127.0.0.1:0 32 reuseport")
	for range 3 {
		l.want(addr, l.tell("listen %s 32 reuseport", addr))
	}
	n := 24
	if testing.Short() {
		n = 8 // two for each socket
	}
	for i := range n {
		l.connect(addr, fmt.Sprint("hello", i))
	}
	l.accepted(n)
	got := map[string]bool{}
	conn := 0
	for list := range 4 {
		for l.tell("poll %d", list) == "0x1" {
			a := l.tell("accept %d", list)
			if a == "resource temporarily unavailable" {
				continue // what polled as readable was a misplaced placeholder that was reset
			}
			if !strings.HasPrefix(a, "127.0.0.1:") {
				t.Fatalf("accept: %s", a)
			}
			got[l.tell("read %d", conn)] = true
			conn++
		}
		l.want("resource temporarily unavailable", l.tell("accept %d", list))
	}
	if len(got) != n {
		t.Errorf("%d connections, want %d", len(got), n)
	}
}

// A process that the launcher does not see gets the connections that it accepts,
// though not their addresses.
func TestLateOutside(t *testing.T) {
	testkind.System(t)
	for _, smc := range []bool{true, false} {
		t.Run(fmt.Sprintf("SMC %v", smc), func(t *testing.T) {
			t.Parallel()
			l := startLate(t, &fakeStack{noPeer: !smc})
			addr := l.tell("listen 127.0.0.1:0 16")
			inode := listenInode(t, addr)
			x := &endIndex{looks: newLooks(t.Context())}
			ours := -1
			until(t, "the listening socket", func() bool { ours = x.find(inode); return ours >= 0 })
			defer unix.Close(ours)
			var clients []*net.TCPConn
			for i := range 3 {
				clients = append(clients, l.connect(addr, fmt.Sprint("hello", i)))
			}
			l.accepted(3)
			for i, c := range clients {
				p := []unix.PollFd{{Fd: int32(ours), Events: unix.POLLIN}}
				if n, err := unix.Poll(p, 20000); err != nil || n == 0 {
					t.Fatalf("connection %d: nothing to accept, %v", i, err)
				}
				fd, _, err := unix.Accept4(ours, unix.SOCK_CLOEXEC)
				if err != nil {
					t.Fatal(err)
				}
				got, err := streamOf(fd)
				if err != nil {
					t.Fatal(err)
				}
				defer got.Close()
				b := make([]byte, 100)
				_ = got.SetDeadline(time.Now().Add(patience))
				if n, err := got.Read(b); err != nil || string(b[:n]) != fmt.Sprint("hello", i) {
					t.Fatalf("connection %d: %q, %v", i, b[:n], err)
				}
				if _, err := io.WriteString(got, "answer"); err != nil {
					t.Fatal(err)
				}
				_ = got.CloseWrite()
				if b, err := io.ReadAll(c); err != nil || string(b) != "answer" {
					t.Errorf("connection %d: %q, %v", i, b, err)
				}
			}
		})
	}
}

// listenInode returns the inode number of a listening socket of the host.
func listenInode(t *testing.T, addr string) uint64 {
	t.Helper()
	a := netip.MustParseAddrPort(addr)
	m, err := diagExact(a, netip.AddrPortFrom(netip.IPv4Unspecified(), 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(m.inode)
}

// The launcher keeps nothing of listening sockets that are closed.
func TestLateForgets(t *testing.T) {
	testkind.System(t)
	l := startLate(t, &fakeStack{})
	before := len(numbers("/proc/self/fd"))
	l.want("churned", l.tell("churn 1000"))
	if n := len(numbers("/proc/self/fd")); n > before+2*sweepFirst+50 {
		t.Errorf("%d descriptors after 1000 listening sockets, %d before", n, before)
	}
}
