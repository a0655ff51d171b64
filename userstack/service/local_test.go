// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/internal/lastclose"
	"smcr/userstack/network"
)

// here is a Network that is the whole world of its host: each address is its own.
type here struct{ loopback }

func (here) Route(_, _ netip.Addr) (network.Route, error) {
	return network.Route{}, fmt.Errorf("%w: %w", userstack.ErrNotOnLink, network.ErrThisHost)
}

func (here) Addresses() ([]netip.Addr, error) { return nil, nil }
func (here) Changes() <-chan struct{}         { return nil }

// Finds asks the kernel, as the real one does. A socket counts as held once it is
// accepted.
func (here) Finds(local, remote netip.AddrPort) (held, ok bool, err error) {
	table, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		return false, false, err
	}
	hex := func(ap netip.AddrPort) string {
		a := ap.Addr().As4()
		return fmt.Sprintf("%02X%02X%02X%02X:%04X", a[3], a[2], a[1], a[0], ap.Port())
	}
	for line := range bytes.Lines(table) {
		f := bytes.Fields(line)
		if len(f) > 9 && string(f[1]) == hex(local) && string(f[2]) == hex(remote) {
			return string(f[9]) != "0", true, nil
		}
	}
	return false, false, nil
}

// localBed is a service whose programs are of one host, and a program that listens.
type localBed struct {
	*serviceBed
	server   *broker.Client
	listener int
	addr     netip.AddrPort
	socks    map[int]bool // of the programs
	gate     *openGate    // of all of them
}

// keep closes a program's socket at the end of the test, unless drop did.
func (b *localBed) keep(fd int) int {
	b.socks[fd] = true
	b.t.Cleanup(func() { b.drop(fd) })
	return fd
}

func (b *localBed) drop(fd int) {
	if b.socks[fd] {
		delete(b.socks, fd)
		_ = unix.Close(fd)
	}
}

func newLocalBed(t testing.TB) *localBed {
	t.Helper()
	h := host(t)
	b := &localBed{serviceBed: newServiceBedOn(t, h, here{loopback{h}}, nil), socks: map[int]bool{}, gate: &openGate{}}
	b.opt.gate = b.gate
	b.local = true
	b.s.local.holder.log, b.s.local.holder.closes = slog.New(slog.DiscardHandler), newCloses(t)
	b.server = b.launcher(os.Geteuid())
	b.listener = tcpSocket(t, 0)
	if err := unix.Bind(b.listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := b.server.Listen(t.Context(), b.listener); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(b.listener, 10); err != nil {
		t.Fatal(err)
	}
	b.addr = socketName(t, b.listener)
	return b
}

// connect has a program connect, and returns what its launcher is told first.
func (b *localBed) connect(cl *broker.Client) (*broker.ClientConn, int, broker.Event) {
	b.t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.keep(fd)
	c, err := cl.Connect(fd, broker.ConnectRequest{Remote: b.addr})
	if err != nil {
		b.t.Fatal(err)
	}
	select {
	case ev := <-c.Events():
		return c, fd, ev
	case <-time.After(testTime):
		b.t.Fatal("no event")
		panic("unreachable")
	}
}

// accept takes a connection from the backlog.
func (b *localBed) accept() int {
	b.t.Helper()
	fd, _, err := unix.Accept4(b.listener, unix.SOCK_CLOEXEC)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.keep(fd)
}

func (b *localBed) handOver(cl *broker.Client, sock int) *broker.ClientConn {
	b.t.Helper()
	c, err := cl.Accept(sock, b.addr, socketName(b.t, sock))
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// end makes a program's descriptor of an end.
func (b *localBed) end(ev broker.Event) net.Conn {
	b.t.Helper()
	if ev.Kind != broker.EventLocal || ev.End == nil {
		b.t.Fatalf("event %+v, want an end", ev)
	}
	c, err := fileConn(ev.End.Take())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(testTime)); err != nil {
		b.t.Fatal(err)
	}
	return c
}

// exchange has bytes go both ways.
func exchange(t testing.TB, a, b net.Conn) {
	t.Helper()
	for i, way := range [][2]net.Conn{{a, b}, {b, a}} {
		want := fmt.Sprintf("way %d", i)
		if _, err := io.WriteString(way[0], want); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(way[1], got); err != nil || string(got) != want {
			t.Fatalf("read %q, %v, want %q", got, err, want)
		}
	}
}

// localRows waits until n rows of local connections are listed.
func (b *localBed) localRows(n int) {
	b.t.Helper()
	for end := time.Now().Add(testTime); ; time.Sleep(5 * time.Millisecond) {
		rows, err := b.s.stack.Control().Connections(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		got := 0
		for _, r := range rows {
			if r.Mode == nl.ModeLocal {
				got++
			}
		}
		if got == n {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("%d local rows, want %d: %+v", got, n, rows)
		}
	}
}

// TestLocal: two programs get the ends of one pair. The service keeps the TCP socket of each
// until its program closes, and nothing after both have.
func TestLocal(t *testing.T) {
	for _, first := range []string{"client", "server", "both"} {
		t.Run(first+" closes", func(t *testing.T) {
			checkLeaks(t)
			b := newLocalBed(t)
			client := b.launcher(os.Geteuid())
			cc, fd, ev := b.connect(client)
			p := b.end(ev)
			if err := cc.Proceed(); err != nil {
				t.Fatal(err)
			}
			sock := b.accept()
			sc := b.handOver(b.server, sock)
			q := b.end(next(t, sc, broker.EventLocal))
			exchange(t, p, q)
			b.drop(fd) // as launchers do
			b.drop(sock)
			b.localRows(2)
			v, err := sc.GetOption(t.Context(), 0, unix.IPPROTO_TCP, unix.TCP_INFO, 104)
			if err != nil || len(v) == 0 || v[0] != tcpEstablished {
				t.Errorf("TCP_INFO: %v, %v", v, err)
			}
			// Half closed it lives on.
			if err := p.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if n, err := q.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("read %d, %v", n, err)
			}
			b.localRows(2)
			closeEnd := func(end net.Conn, c *broker.ClientConn) {
				_ = end.Close()
				next(t, c, broker.EventClosed)
			}
			switch first {
			case "client":
				closeEnd(p, cc)
				// The options are those of a TCP socket in CLOSE-WAIT.
				v, err := sc.GetOption(t.Context(), 0, unix.IPPROTO_TCP, unix.TCP_INFO, 104)
				if err != nil || len(v) == 0 || v[0] != tcpCloseWait {
					t.Errorf("TCP_INFO after the close of the peer: %v, %v", v, err)
				}
				closeEnd(q, sc)
			case "server":
				closeEnd(q, sc)
				closeEnd(p, cc)
			default:
				_ = p.Close()
				closeEnd(q, sc)
				next(t, cc, broker.EventClosed)
			}
			b.localRows(0)
			b.idle()
		})
	}
}

// TestLocalLateAccept: a client that writes, and closes, before the server accepts.
func TestLocalLateAccept(t *testing.T) {
	checkLeaks(t)
	b := newLocalBed(t)
	cc, _, ev := b.connect(b.launcher(os.Geteuid()))
	p := b.end(ev)
	if err := cc.Proceed(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p, "early"); err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
	time.Sleep(20 * time.Millisecond)
	sc := b.handOver(b.server, b.accept())
	q := b.end(next(t, sc, broker.EventLocal))
	if got, err := io.ReadAll(q); err != nil || string(got) != "early" {
		t.Errorf("read %q, %v", got, err)
	}
	next(t, cc, broker.EventClosed)
	_ = q.Close()
	next(t, sc, broker.EventClosed)
}

// TestLocalReleased: a client that cannot place its end has TCP, and so has the server,
// whether it is asked before or after.
func TestLocalReleased(t *testing.T) {
	for _, serverFirst := range []bool{false, true} {
		t.Run(fmt.Sprint(serverFirst), func(t *testing.T) {
			checkLeaks(t)
			b := newLocalBed(t)
			cc, fd, ev := b.connect(b.launcher(os.Geteuid()))
			_ = b.end(ev).Close()
			release := func() {
				t.Helper()
				if err := cc.Release(); err != nil {
					t.Fatal(err)
				}
				next(t, cc, broker.EventClosed)
			}
			dup, err := unix.Dup(fd)
			if err != nil {
				t.Fatal(err)
			}
			p, err := fileConn(dup)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			sock := b.accept()
			if !serverFirst {
				release()
			}
			opened := b.gate.openedHere()
			sc := b.handOver(b.server, sock)
			var q net.Conn
			if serverFirst {
				q = b.end(next(t, sc, broker.EventLocal))
				release()
			} else {
				next(t, sc, broker.EventNotCandidate)
				if b.gate.openedHere() == opened {
					t.Error("the program's socket is not open to it")
				}
				if q, err = fileConn(sock); err != nil {
					t.Fatal(err)
				}
				defer q.Close()
			}
			exchange(t, p, q)
		})
	}
}

// TestLocalOtherProcess: a server process without a launcher gets over TCP what the
// client sends.
func TestLocalOtherProcess(t *testing.T) {
	orders := []string{"server speaks first"}
	if !testing.Short() { // TestLocalMissed has such a connection
		orders = append(orders, "client speaks first")
	}
	for _, first := range orders {
		t.Run(first, func(t *testing.T) {
			checkLeaks(t)
			b := newLocalBed(t)
			cc, _, ev := b.connect(b.launcher(os.Geteuid()))
			p := b.end(ev)
			if err := cc.Proceed(); err != nil {
				t.Fatal(err)
			}
			q, err := fileConn(b.accept())
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if err := q.SetDeadline(time.Now().Add(testTime)); err != nil {
				t.Fatal(err)
			}
			if first == "server speaks first" {
				exchange(t, q, p)
				return
			}
			exchange(t, p, q)
		})
	}
}

// TestLocalMissed: after a process without a launcher has accepted a connection, whose bytes waited
// for it, further ones to the port are TCP at once, until a program with a launcher listens there
// again, or for a time. One that ends when it is accepted says nothing about the server.
func TestLocalMissed(t *testing.T) {
	checkLeaks(t)
	b := newLocalBed(t)
	cl := b.launcher(os.Geteuid())
	connect := func(want broker.EventKind, why string) (*broker.ClientConn, broker.Event) {
		t.Helper()
		cc, _, ev := b.connect(cl)
		if ev.Kind != want {
			t.Fatalf("%s: event %+v, want kind %v", why, ev, want)
		}
		return cc, ev
	}
	// miss makes a connection that this process accepts, without a launcher.
	miss := func() {
		t.Helper()
		cc, ev := connect(broker.EventLocal, "a program with a launcher has listened")
		p := b.end(ev)
		if err := cc.Proceed(); err != nil {
			t.Fatal(err)
		}
		q, err := fileConn(b.accept())
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		if err := q.SetDeadline(time.Now().Add(testTime)); err != nil {
			t.Fatal(err)
		}
		exchange(t, p, q)
		_ = p.Close()
	}
	// end makes one that ends.
	end := func() {
		t.Helper()
		cc, ev := connect(broker.EventLocal, "nobody has missed a connection")
		p := b.end(ev)
		if err := cc.Proceed(); err != nil {
			t.Fatal(err)
		}
		_ = p.Close()
		b.drop(b.accept())
		next(t, cc, broker.EventClosed)
	}
	end()
	miss()
	connect(broker.EventNotCandidate, "one was missed") // its launcher connects
	if err := b.server.Listen(t.Context(), b.listener); err != nil {
		t.Fatal(err)
	}
	if testing.Short() { // each takes three seconds
		end()
		b.s.local.misses(b.addr.Port(), time.Now())
	} else {
		miss()
	}
	connect(broker.EventNotCandidate, "one was missed again")
	b.s.local.mu.Lock()
	b.s.local.ports.missed[b.addr.Port()] = time.Now()
	b.s.local.mu.Unlock()
	end()
}

// TestLocalLateLauncher: a launcher that asks so late about a connection that the service thinks
// another process has accepted it. Its program gets over TCP what the client sends.
func TestLocalLateLauncher(t *testing.T) {
	checkLeaks(t)
	b := newLocalBed(t)
	cc, _, ev := b.connect(b.launcher(os.Geteuid()))
	p := b.end(ev)
	if err := cc.Proceed(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p, "early"); err != nil {
		t.Fatal(err)
	}
	sock := b.accept()
	b.await("the client's bytes are in the TCP connection", func() bool { return waiting(sock) > 0 })
	next(t, b.handOver(b.server, sock), broker.EventNotCandidate)
	q, err := fileConn(sock)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	got := make([]byte, len("early"))
	if _, err := io.ReadFull(q, got); err != nil || string(got) != "early" {
		t.Errorf("read %q, %v", got, err)
	}
	exchange(t, p, q)
}

// TestLocalOff: a launcher that did not choose pairs, and what else leaves a connection within a host to TCP.
func TestLocalOff(t *testing.T) {
	testkind.System(t)
	for name, change := range map[string]func(b *localBed, fd int) error{
		"not chosen": func(*localBed, int) error { return nil },
		"the stack does not see closes": func(b *localBed, _ int) error {
			b.s.local.holder.why = lastclose.ErrNotPermitted
			return nil
		},
		"the server defers accept": func(b *localBed, _ int) error {
			if err := unix.SetsockoptInt(b.listener, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1); err != nil {
				return err
			}
			return b.server.Listen(b.t.Context(), b.listener)
		},
		"bound to a device": func(_ *localBed, fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			b := newLocalBed(t)
			b.local = name != "not chosen"
			fd := tcpSocket(t, 0)
			if err := change(b, fd); errors.Is(err, unix.EPERM) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			c, err := b.launcher(os.Geteuid()).Connect(fd, broker.ConnectRequest{Remote: b.addr})
			if err != nil {
				t.Fatal(err)
			}
			next(t, c, broker.EventNotCandidate)
		})
	}
}

// TestLocalOthersEnd: nobody gets an end of a connection by handing over a socket that
// is not its other end, and nobody passes descriptors to a program of another user.
func TestLocalOthersEnd(t *testing.T) {
	checkLeaks(t)
	b := newLocalBed(t)
	hostile, victim := os.Geteuid(), os.Geteuid()
	if hostile == 0 {
		hostile = 65534
	}
	cc, _, ev := b.connect(b.launcher(victim))
	p := b.end(ev)
	if err := cc.Proceed(); err != nil {
		t.Fatal(err)
	}
	h := b.launcher(hostile)
	// A connection of its own to the same server, both ends of it, and one to another
	// server.
	own := tcpSocket(t, 0)
	if err := unix.Connect(own, &unix.SockaddrInet4{Addr: b.addr.Addr().As4(), Port: int(b.addr.Port())}); err != nil {
		t.Fatal(err)
	}
	l, other := listenTCP(t)
	third := tcpSocket(t, 0)
	if err := unix.Connect(third, &unix.SockaddrInet4{Addr: other.Addr().As4(), Port: int(other.Port())}); err != nil {
		t.Fatal(err)
	}
	accept(t, l)
	b.opt.smc.Store(false)
	for _, sock := range []int{own, third} {
		next(t, b.handOver(h, sock), broker.EventNotCandidate)
	}
	b.opt.smc.Store(true)
	sc := b.handOver(b.server, b.accept()) // the victim's, first in the queue
	q := b.end(next(t, sc, broker.EventLocal))
	exchange(t, p, q)

	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// Without SO_PASSRIGHTS, only programs of one user have a pair.
	var want error
	if pairsAreSealed(t) {
		want = unix.EPERM
	}
	for _, end := range []net.Conn{p, q} {
		_, _, err := end.(*net.UnixConn).WriteMsgUnix([]byte("x"), unix.UnixRights(int(file.Fd())), nil)
		if !errors.Is(err, want) {
			t.Errorf("passing a descriptor: %v, want %v", err, want)
		}
	}
}

// pairsAreSealed reports whether this kernel can keep programs from passing descriptors.
func pairsAreSealed(t *testing.T) bool {
	t.Helper()
	p, q, sealed, err := localPair()
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
	_ = q.Close()
	return sealed
}

// TestLocalServerNotChosen: a server whose launcher did not choose pairs gets the bytes over
// TCP, even if another server on the same port chose them.
func TestLocalServerNotChosen(t *testing.T) {
	checkLeaks(t)
	b := newLocalBed(t)
	cc, _, ev := b.connect(b.launcher(os.Geteuid()))
	p := b.end(ev)
	if err := cc.Proceed(); err != nil {
		t.Fatal(err)
	}
	b.local = false
	sock := b.accept()
	next(t, b.handOver(b.launcher(os.Geteuid()), sock), broker.EventNotCandidate)
	q, err := fileConn(sock)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	exchange(t, p, q)
}
