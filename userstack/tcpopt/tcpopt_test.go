// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// TestMatrix connects marked and unmarked ends over IPv4, IPv6, and IPv4 to a dual-stack
// listener, on one and on all addresses. It checks each handshake on the wire.
func TestMatrix(t *testing.T) {
	b := newBed(t)
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	type row struct {
		name           string
		c              conn
		client, server bool
	}
	var rows []row
	port := 4000
	for _, net := range []struct {
		name           string
		client, server int
		bind, dial     string
	}{
		{"IPv4", unix.AF_INET, unix.AF_INET, b.B.Addr(), b.B.Addr()},
		{"IPv4 wildcard", unix.AF_INET, unix.AF_INET, "0.0.0.0", b.B.Addr()},
		{"IPv6", unix.AF_INET6, unix.AF_INET6, b.B.Addr6(), b.B.Addr6()},
		{"IPv6 wildcard", unix.AF_INET6, unix.AF_INET6, "::", b.B.Addr6()},
		{"IPv4 to dual-stack", unix.AF_INET, unix.AF_INET6, "::", b.B.Addr()},
		{"IPv4-mapped", unix.AF_INET6, unix.AF_INET6, "::ffff:" + b.B.Addr(), "::ffff:" + b.B.Addr()},
	} {
		for _, server := range []bool{true, false} {
			port++
			l := b.listener(net.server, net.bind, port, server)
			for _, client := range []bool{true, false, true} {
				fd := b.socket(b.A, net.client)
				if client {
					b.must(b.prog.MarkConnect(fd))
					b.wantPeer("client before connect", fd, Unknown)
				}
				c := b.connect(fd, l, net.client, net.dial)
				b.exchange(c)
				name := fmt.Sprintf("%s, client marked %v, server marked %v", net.name, client, server)
				want := map[bool]State{true: PeerNoSMC, false: unmarked}
				wantClient, wantServer := want[client], want[server]
				if client && server {
					wantClient, wantServer = PeerSMC, PeerSMC
				}
				b.wantPeer("client: "+name, c.client, wantClient)
				b.wantPeer("server: "+name, c.server, wantServer)
				rows = append(rows, row{name, c, client, server})
			}
		}
	}
	segs := b.segments(capture)
	for _, r := range rows {
		wantAnnounced(t, segs, r.name, r.c, r.client, r.client && r.server)
	}
}

func TestAlreadyListening(t *testing.T) {
	b := newBed(t)
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		l := b.listener(family, []string{"0.0.0.0", "::"}[i], 4001, false)

		before := b.dial(l, true)
		b.wantPeer("client before", before.client, PeerNoSMC)
		b.wantPeer("server before", before.server, unmarked)

		b.markListening(l)
		b.must(b.prog.MarkListen(l)) // a second call changes nothing
		if n := b.listeners(); n != 1 {
			t.Errorf("%d listeners, want 1", n)
		}
		marked := b.dial(l, true)
		b.exchange(marked)
		b.wantPeer("client", marked.client, PeerSMC)
		b.wantPeer("server", marked.server, PeerSMC)

		b.close(l)
		// The kernel may end the listener shortly after close has returned.
		b.must(netnstest.Until(ioTimeout, func() error {
			if n := b.listeners(); n != 0 {
				return fmt.Errorf("%d listeners after close, want 0", n)
			}
			return nil
		}))

		if i == 0 {
			segs := b.segments(capture)
			wantAnnounced(t, segs, "before MarkListen", before, true, false)
			wantAnnounced(t, segs, "after MarkListen", marked, true, true)
		}
	}
}

// TestRelisten calls shutdown and listen again: the mark stays and the address is
// registered again.
func TestRelisten(t *testing.T) {
	b := newBed(t)
	l := b.listener(unix.AF_INET, b.B.Addr(), 4001, true)
	b.wantPeer("first", b.dial(l, true).server, PeerSMC)
	b.must(unix.Shutdown(l, unix.SHUT_RDWR))
	if n := b.listeners(); n != 0 {
		t.Errorf("%d listeners after shutdown, want 0", n)
	}
	b.must(unix.Listen(l, 8))
	if n := b.listeners(); n != 1 {
		t.Errorf("%d listeners, want 1", n)
	}
	b.wantPeer("second", b.dial(l, true).server, PeerSMC)
}

// TestMarksAreNotInherited connects sockets again whose mark was for something else: an
// accepted socket, and a client after its connection.
func TestMarksAreNotInherited(t *testing.T) {
	b := newBed(t)
	l := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	first := b.dial(l, true)
	b.wantPeer("client", first.client, PeerSMC)

	back := b.bind(b.A, unix.AF_INET, b.A.Addr(), 4002)
	b.must(b.prog.MarkListen(back))
	b.must(unix.Listen(back, 8))
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	b.disconnect(first.client)
	second := b.connect(first.client, l, unix.AF_INET, b.B.Addr())
	b.wantPeer("server of the client's second connection", second.server, PeerNoSMC)

	b.disconnect(first.server)
	third := b.connect(first.server, back, unix.AF_INET, b.A.Addr())
	b.wantPeer("server of the accepted socket's connection", third.server, PeerNoSMC)

	segs := b.segments(capture)
	wantAnnounced(t, segs, "client again", second, false, false)
	wantAnnounced(t, segs, "accepted socket", third, false, false)
}

// TestParallel connects marked and unmarked clients to marked and unmarked listeners at
// the same time.
func TestParallel(t *testing.T) {
	b := newBed(t)
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	const clients = 200
	listeners := []int{b.listener(unix.AF_INET, "0.0.0.0", 4001, true), b.listener(unix.AF_INET, "0.0.0.0", 4002, false)}
	conns := make([]conn, 2*clients)
	for i := range conns {
		conns[i].client = b.socket(b.A, unix.AF_INET)
		conns[i].serverPort = 4001 + i/clients
	}
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() {
			c := &conns[i]
			if i%2 == 0 {
				if err := b.prog.MarkConnect(c.client); err != nil {
					t.Error(err)
				}
			}
			addr := &unix.SockaddrInet4{Port: c.serverPort, Addr: b.B.Links[0].IPv4.As4()}
			if err := connectTo(c.client, addr); err != nil {
				t.Error(err)
			}
		})
	}
	servers := make(map[[2]int]int) // by the ports of client and server
	for i, l := range listeners {
		for range clients {
			fd, sa := b.acceptFrom(l)
			servers[[2]int{sa.(*unix.SockaddrInet4).Port, 4001 + i}] = fd
		}
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	segs := b.segments(capture)
	for i, c := range conns {
		c.clientPort = localPort(t, c.client)
		client, server := i%2 == 0, i < clients
		want := map[bool]State{true: PeerNoSMC, false: unmarked}
		wantClient, wantServer := want[client], want[server]
		if client && server {
			wantClient, wantServer = PeerSMC, PeerSMC
		}
		b.wantPeer("client", c.client, wantClient)
		b.wantPeer("server", servers[[2]int{c.clientPort, c.serverPort}], wantServer)
		wantAnnounced(t, segs, fmt.Sprintf("connection %d", i), c, client, client && server)
	}
}

// TestCookies: with SYN cookies the server does not keep the SYN, so no end announces
// SMC.
func TestCookies(t *testing.T) {
	b := newBed(t)
	b.sysctl(b.B, "ipv4/tcp_syncookies", "2")
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	l := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	c := b.dial(l, true)
	b.exchange(c)
	b.wantPeer("client", c.client, PeerNoSMC)
	b.wantPeer("server", c.server, PeerNoSMC)
	wantAnnounced(t, b.segments(capture), "SYN cookies", c, true, false)
}

func TestUnsupportedSockets(t *testing.T) {
	b := newBed(t)
	open := func(domain, typ, proto int) int {
		t.Helper()
		fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	fds := map[string]int{
		"UDP":          open(unix.AF_INET, unix.SOCK_DGRAM, 0),
		"unix":         open(unix.AF_UNIX, unix.SOCK_STREAM, 0),
		"raw TCP":      open(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP),
		"NETLINK_XFRM": open(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM),
		"fast open":    open(unix.AF_INET, unix.SOCK_STREAM, 0),
	}
	b.must(unix.SetsockoptInt(fds["fast open"], unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1))
	null, err := os.Open(os.DevNull)
	b.must(err)
	defer null.Close()
	fds["not a socket"] = int(null.Fd())
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP); err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		fds["MPTCP"] = fd
		var lc net.ListenConfig
		lc.SetMultipathTCP(true)
		ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
		b.must(err)
		defer ln.Close()
		raw, err := ln.(*net.TCPListener).SyscallConn()
		b.must(err)
		b.must(raw.Control(func(fd uintptr) {
			if err := b.prog.MarkListen(int(fd)); !errors.Is(err, ErrUnsupportedSocket) {
				t.Errorf("Go's listener: MarkListen: %v", err)
			}
		}))
	}
	for what, fd := range fds {
		if err := b.prog.MarkConnect(fd); !errors.Is(err, ErrUnsupportedSocket) {
			t.Errorf("%s: MarkConnect: %v", what, err)
		}
		if what == "fast open" {
			continue
		}
		if err := b.prog.MarkListen(fd); !errors.Is(err, ErrUnsupportedSocket) {
			t.Errorf("%s: MarkListen: %v", what, err)
		}
	}
	if err := b.prog.MarkConnect(1 << 20); !errors.Is(err, syscall.EBADF) {
		t.Errorf("bad descriptor: %v", err)
	}
	if _, err := b.prog.Peer(1 << 20); !errors.Is(err, syscall.EBADF) {
		t.Errorf("bad descriptor: Peer: %v", err)
	}
	c := b.dial(b.listener(unix.AF_INET, "0.0.0.0", 4001, true), true)
	for _, fd := range []int{c.client, c.server} {
		if err := b.prog.MarkConnect(fd); !errors.Is(err, ErrSocketState) {
			t.Errorf("connected: MarkConnect: %v", err)
		}
		if err := b.prog.MarkListen(fd); !errors.Is(err, ErrSocketState) {
			t.Errorf("connected: MarkListen: %v", err)
		}
	}
	// The calls that failed did not change the state.
	b.wantPeer("client", c.client, PeerSMC)
	b.wantPeer("server", c.server, PeerSMC)
}

// TestFailedConnect: the mark remains after a refused connection.
func TestFailedConnect(t *testing.T) {
	b := newBed(t)
	fd := b.socket(b.A, unix.AF_INET)
	b.must(b.prog.MarkConnect(fd))
	err := connectTo(fd, &unix.SockaddrInet4{Port: 4001, Addr: b.B.Links[0].IPv4.As4()})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatal(err)
	}
	b.wantPeer("refused client", fd, Unknown)

	c := b.connect(fd, b.listener(unix.AF_INET, "0.0.0.0", 4001, true), unix.AF_INET, b.B.Addr())
	b.wantPeer("client", c.client, PeerSMC)
	b.wantPeer("server", c.server, PeerSMC)
}

// TestSelfConnect opens a connection from a socket to itself. This is the simultaneous
// open of RFC 9293, section 3.5: two SYNs, and no SYN-ACK that answers an option.
func TestSelfConnect(t *testing.T) {
	b := newBed(t)
	fd := b.bind(b.A, unix.AF_INET, "127.0.0.1", 4001)
	b.must(b.prog.MarkConnect(fd))
	b.must(connectTo(fd, &unix.SockaddrInet4{Port: 4001, Addr: [4]byte{127, 0, 0, 1}}))
	b.wantPeer("self", fd, PeerNoSMC)
	b.exchange(conn{client: fd, server: fd})
}

// TestOutsideOfCgroup marks sockets for which the program is not called.
func TestOutsideOfCgroup(t *testing.T) {
	b := newBed(t)
	outside := b.socket(b.A, unix.AF_INET) // it belongs to the former cgroup
	listening := b.listener(unix.AF_INET, b.B.Addr(), 4002, false)
	b.prog = attach(t, Options{CgroupPath: privateCgroup(t)})
	b.must(b.prog.MarkConnect(outside))
	l := b.listener(unix.AF_INET, b.B.Addr(), 4001, true)
	c := b.connect(outside, l, unix.AF_INET, b.B.Addr())
	b.wantPeer("client", c.client, PeerNoSMC)
	b.wantPeer("server", c.server, PeerNoSMC)
	err := b.prog.MarkListen(listening)
	if err == nil || errors.Is(err, ErrListening) {
		t.Errorf("MarkListen outside: %v", err)
	}
	if _, err := b.prog.Peer(listening); !errors.Is(err, ErrNotMarked) {
		t.Errorf("a failed MarkListen leaves a mark: %v", err)
	}
}

// TestEstablishedCostsNothing counts the calls of the program while a connection carries
// data, on both ends, for an accepted and a connected socket.
func TestEstablishedCostsNothing(t *testing.T) {
	b := newBed(t)
	b.prog = attach(t, Options{CgroupPath: privateCgroup(t)})
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	b.must(err)
	defer stats.Close()
	runs := func() uint64 {
		t.Helper()
		s, err := b.prog.objs.sockOps.Stats()
		b.must(err)
		return s.RunCount
	}
	l := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	c := b.dial(l, true)
	b.wantPeer("server", c.server, PeerSMC)
	before := runs()
	if before == 0 {
		t.Fatal("the program did not run at all")
	}
	for range 500 {
		b.exchange(c)
	}
	b.close(c.client)
	if got := b.read(c.server); got != "" {
		t.Fatalf("read %q after close", got)
	}
	if n := runs() - before; n != 0 {
		t.Errorf("the program ran %d times for an established connection", n)
	}
}

func TestStateString(t *testing.T) {
	for s, want := range map[State]string{Unknown: "unknown", PeerSMC: "SMC", PeerNoSMC: "no SMC", 7: "State(7)"} {
		if s.String() != want {
			t.Errorf("State(%d): %q", uint32(s), s)
		}
	}
}
