// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/internal/testing/netnstest"
	"smcr/userstack/broker"
	"smcr/userstack/simfabric"
)

// TestReceiveBuffer: the RMB element of a connection is not smaller than the receive
// buffer of its TCP socket, which the program has set or which is the default of the system
// (RFC 7609, section 4.1): each side for itself. The stacks here have elements of 64 KiB at
// least. An element has 512 KiB at most.
func TestReceiveBuffer(t *testing.T) {
	host := netnstest.New(t, netnstest.Options{}).A
	for _, tt := range []struct {
		unset                  int // the default of the system
		client, server         int // SO_RCVBUF; 0: not set
		wantClient, wantServer uint32
	}{
		{32 << 10, 0, 0, 64 << 10, 64 << 10},
		{32 << 10, 100000, 0, 128 << 10, 64 << 10},
		{32 << 10, 0, 200000, 64 << 10, 256 << 10},
		{32 << 10, 4096, 66 << 10, 64 << 10, 128 << 10},
		{128 << 10, 0, 0, 128 << 10, 128 << 10},
		{128 << 10, 66000, 200000, 128 << 10, 256 << 10},
		{128 << 10, 60000, 0, 64 << 10, 128 << 10},
		{300000, 0, 0, 512 << 10, 512 << 10},
		{300000, 200000, 0, 256 << 10, 512 << 10},
		{1 << 20, 0, 0, 512 << 10, 512 << 10},
		{1 << 20, 200000, 60000, 256 << 10, 64 << 10},
	} {
		checkLeaks(t)
		rmem := fmt.Sprintf("4096 %d 33554432", tt.unset)
		if err := host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_rmem", []byte(rmem), 0) }); err != nil {
			t.Fatal(err)
		}
		w := simfabric.New(simfabric.Config{Delay: 10 * time.Microsecond})
		t.Cleanup(w.Close)
		client, server := newServiceBed(t, w.Host("client", netdev(1)), nil), newServiceBed(t, w.Host("server", netdev(2)), nil)
		var l *net.TCPListener
		var remote netip.AddrPort
		var fd int
		if err := host.Do(func() (err error) {
			l, remote = listenTCP(t)
			fd = tcpSocket(t, 0)
			client.s.netns, err = place.Cookie()
			server.s.netns = client.s.netns
			return err
		}); err != nil {
			t.Fatal(err)
		}
		rc, err := l.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := rc.Control(func(lfd uintptr) {
			for fd, n := range map[int]int{fd: tt.client, int(lfd): tt.server} {
				if n > 0 {
					err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, n)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		cc, err := client.launcher(os.Geteuid()).Connect(fd, broker.ConnectRequest{Remote: remote})
		if err != nil {
			t.Fatal(err)
		}
		peer := accept(t, l)
		next(t, cc, broker.EventEstablished)
		if err := unix.Close(dup2(t, fd)); err != nil {
			t.Fatal(err)
		}
		if err := cc.Proceed(); err != nil {
			t.Fatal(err)
		}
		sc := passAccepted(t, server.launcher(os.Geteuid()), peer)
		next(t, sc, broker.EventTaken)
		sprog := attachEnd(t, sc)
		next(t, sc, broker.EventReady)
		next(t, cc, broker.EventReady)
		cprog := attachEnd(t, cc)
		for _, x := range []struct {
			b          *serviceBed
			own, peers uint32
		}{{client, tt.wantClient, tt.wantServer}, {server, tt.wantServer, tt.wantClient}} {
			list, err := x.b.s.stack.Control().Connections(t.Context())
			if err != nil || len(list) != 1 {
				t.Fatalf("%d connections, %v", len(list), err)
			}
			if i := list[0].Info; i.RMBE != x.own || i.PeerRMBE != x.peers {
				t.Errorf("default %d, SO_RCVBUF %d and %d: elements of %d here and %d there, want %d and %d", tt.unset, tt.client, tt.server, i.RMBE, i.PeerRMBE, x.own, x.peers)
			}
		}
		cprog.close()
		sprog.close()
	}
}
