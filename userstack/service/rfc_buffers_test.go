// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/simfabric"
)

// TestReceiveBuffer: the RMB element of a connection is at least as large as the
// receive buffer that its program has asked for, and else as configured (RFC 7609,
// section 4.1): each side for itself. The stacks here have elements of 64 KiB.
func TestReceiveBuffer(t *testing.T) {
	for _, tt := range []struct {
		client, server         int // SO_RCVBUF; 0: not set
		wantClient, wantServer uint32
	}{
		{0, 0, 64 << 10, 64 << 10},
		{100000, 0, 128 << 10, 64 << 10},
		{0, 200000, 64 << 10, 256 << 10},
		{4096, 66 << 10, 64 << 10, 128 << 10},
	} {
		checkLeaks(t)
		w := simfabric.New(simfabric.Config{Delay: 10 * time.Microsecond})
		t.Cleanup(w.Close)
		client, server := newServiceBed(t, w.Host("client", netdev(1)), nil), newServiceBed(t, w.Host("server", netdev(2)), nil)
		l, remote := listenTCP(t)
		fd := tcpSocket(t, 0)
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
		sprog := attach(t, sc)
		next(t, sc, broker.EventReady)
		next(t, cc, broker.EventReady)
		cprog := attach(t, cc)
		for _, x := range []struct {
			b          *serviceBed
			own, peers uint32
		}{{client, tt.wantClient, tt.wantServer}, {server, tt.wantServer, tt.wantClient}} {
			list, err := x.b.s.stack.Control().Connections(t.Context())
			if err != nil || len(list) != 1 {
				t.Fatalf("%d connections, %v", len(list), err)
			}
			if i := list[0].Info; i.RMBE != x.own || i.PeerRMBE != x.peers {
				t.Errorf("SO_RCVBUF %d and %d: elements of %d here and %d there, want %d and %d", tt.client, tt.server, i.RMBE, i.PeerRMBE, x.own, x.peers)
			}
		}
		cprog.close()
		sprog.close()
	}
}
