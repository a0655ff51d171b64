// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/userstack/broker"
	"smcr/userstack/network"
	"smcr/userstack/tcpopt"
)

const (
	ownAddress = "10.99.0.1"
	ownPort    = 4001
)

// ownBed is a service in a network namespace, to the kernel with the eBPF programs, which takes
// each address for one of its own. The address own is one.
type ownBed struct {
	*serviceBed
	*netnstest.Pair
	prog *tcpopt.Program
}

func newOwnBed(t *testing.T) *ownBed {
	t.Helper()
	netnstest.Require(t, "ip", "nft")
	p := netnstest.New(t, netnstest.Options{})
	prog, err := tcpopt.Attach(tcpopt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := host(t)
	b := &ownBed{newServiceBedWith(t, h, here{loopback{h}}, network.NewOptionMarker(prog), nil), p, prog}
	b.local = true
	b.s.local.holder.log, b.s.local.holder.closes = slog.New(slog.DiscardHandler), newCloses(t)
	fd := b.socket(p.A)
	if b.s.netns, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		t.Fatal(err)
	}
	b.run("ip", "addr", "add", ownAddress+"/32", "dev", "lo")
	return b
}

// run runs a command on host A.
func (b *ownBed) run(argv ...string) {
	b.t.Helper()
	if out, err := b.A.Output(b.t.Context(), argv[0], argv[1:]...); err != nil {
		b.t.Fatalf("%q: %v: %s", argv, err, out)
	}
}

func (b *ownBed) socket(h *netnstest.Host) int {
	b.t.Helper()
	fd := -1
	if err := h.Do(func() error { fd = tcpSocket(b.t, 0); return nil }); err != nil {
		b.t.Fatal(err)
	}
	tv := unix.NsecToTimeval(int64(testTime))
	for _, o := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, o, &tv); err != nil {
			b.t.Fatal(err)
		}
	}
	return fd
}

// listens makes a socket of a host listen, after mark.
func (b *ownBed) listens(h *netnstest.Host, mark func(fd int) error) int {
	b.t.Helper()
	fd := b.socket(h)
	err := unix.Bind(fd, &unix.SockaddrInet4{Port: ownPort})
	if err == nil {
		err = mark(fd)
	}
	if err == nil {
		err = unix.Listen(fd, 8)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return fd
}

func (b *ownBed) accept(l int) int {
	b.t.Helper()
	p := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
	for end := time.Now().Add(testTime); time.Now().Before(end); {
		if n, _ := unix.Poll(p, 100); n > 0 {
			break
		}
	}
	fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

var ownAddr = &unix.SockaddrInet4{Addr: [4]byte{10, 99, 0, 1}, Port: ownPort}

// TestLocalElsewhere: packets to an address of the host go to another one. A launcher that has
// listened, on a socket without a port, gets no end and no open gate there: it cannot send a byte on
// the connection that was announced, and makes one that is TCP.
func TestLocalElsewhere(t *testing.T) {
	b := newOwnBed(t)
	b.run("nft", "add table ip t; add chain ip t out { type nat hook output priority -100; }; add rule ip t out ip daddr "+ownAddress+" tcp dport 4001 dnat to "+b.B.Addr()+
		"; add chain ip t post { type nat hook postrouting priority 100; }; add rule ip t post ip daddr "+b.B.Addr()+" masquerade")
	l := b.listens(b.B, b.prog.MarkListen)
	cl := b.launcher(os.Geteuid())
	if err := cl.Listen(t.Context(), b.socket(b.A)); err != nil {
		t.Fatal(err)
	}
	fd := b.socket(b.A)
	c, err := cl.Connect(fd, broker.ConnectRequest{Remote: netipPort(ownAddress, ownPort)})
	if err != nil {
		t.Fatal(err)
	}
	server := b.accept(l)
	if smc, err := b.prog.Peer(server); err != nil || smc != tcpopt.PeerSMC {
		t.Fatalf("the server: %v, %v: the test shows nothing", smc, err)
	}
	select {
	case ev := <-c.Events():
		if ev.Kind != broker.EventNotCandidate {
			t.Errorf("%+v, want that the connection is left to TCP", ev)
			_ = c.Proceed()
		}
	case <-time.After(testTime):
		t.Fatal("no event")
	}
	_, _ = unix.SendmsgN(fd, message(t, proposal), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	time.Sleep(100 * time.Millisecond)
	got := make([]byte, 100)
	if n, _, err := unix.Recvfrom(server, got, unix.MSG_DONTWAIT); n > 0 {
		t.Errorf("the other host has got a forged PROPOSAL: %x, %v", got[:n], err)
	} else if !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection that was announced: %d, %v, want a reset", n, err)
	}
	// The kernel makes the connection of the program.
	if err := unix.Connect(fd, ownAddr); err != nil {
		t.Fatal(err)
	}
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); v != 0 || err != nil {
		t.Errorf("SO_ERROR %d, %v", v, err)
	}
	server = b.accept(l)
	if smc, err := b.prog.Peer(server); err != nil || smc != tcpopt.PeerNoSMC {
		t.Errorf("the second connection: %v, %v", smc, err)
	}
	if _, err := unix.Write(fd, []byte("data")); err != nil {
		t.Fatal(err)
	}
	_ = unix.SetNonblock(server, false)
	if n, err := unix.Read(server, got); err != nil || string(got[:n]) != "data" {
		t.Errorf("the server reads %q, %v", got[:n], err)
	}
}

// TestLocalHere: with the same eBPF programs, two programs of the namespace are joined, by an
// address that no rule touches.
func TestLocalHere(t *testing.T) {
	checkLeaks(t)
	b := newOwnBed(t)
	server := b.launcher(os.Geteuid())
	l := b.listens(b.A, func(fd int) error { return server.Listen(t.Context(), fd) })
	fd := b.socket(b.A)
	cc, err := b.launcher(os.Geteuid()).Connect(fd, broker.ConnectRequest{Remote: netipPort(ownAddress, ownPort)})
	if err != nil {
		t.Fatal(err)
	}
	lb := &localBed{serviceBed: b.serviceBed}
	p := lb.end(next(t, cc, broker.EventLocal))
	if err := cc.Proceed(); err != nil {
		t.Fatal(err)
	}
	sock := b.accept(l)
	sc, err := server.Accept(sock, netipPort(ownAddress, ownPort), socketName(t, sock))
	if err != nil {
		t.Fatal(err)
	}
	q := lb.end(next(t, sc, broker.EventLocal))
	exchange(t, p, q)
	for _, end := range []net.Conn{p, q} {
		_ = end.Close()
	}
	next(t, cc, broker.EventClosed)
	next(t, sc, broker.EventClosed)
}

func netipPort(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}
