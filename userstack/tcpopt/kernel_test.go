// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// TestKernelPeer tests with SMC sockets of the kernel as peers. They announce SMC even
// without an RDMA device.
func TestKernelPeer(t *testing.T) {
	netnstest.Require(t)
	const smcprotoSMC = 0
	fd, err := unix.Socket(unix.AF_SMC, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, smcprotoSMC)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		t.Skip("needs AF_SMC: modprobe smc")
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)

	b := newBed(t)
	smc := func(h *netnstest.Host) int {
		t.Helper()
		fd := -1
		b.must(h.Do(func() (err error) {
			fd, err = unix.Socket(unix.AF_SMC, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, smcprotoSMC)
			return err
		}))
		b.own(fd)
		return fd
	}
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	to := func(port int) unix.Sockaddr {
		return &unix.SockaddrInet4{Port: port, Addr: b.B.Links[0].IPv4.As4()}
	}
	conns := make(map[conn]bool)
	for _, marked := range []bool{true, false} {
		client := smc(b.A)
		port := map[bool]int{true: 4001, false: 4002}[marked]
		l := b.listener(unix.AF_INET, "0.0.0.0", port, marked)
		if err := unix.Connect(client, to(port)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			t.Fatal(err)
		}
		server, sa := b.acceptFrom(l)
		b.wantPeer("server", server, map[bool]State{true: PeerSMC, false: unmarked}[marked])
		c := conn{clientPort: sa.(*unix.SockaddrInet4).Port, serverPort: port}
		conns[c] = marked
	}

	l := smc(b.B)
	b.must(unix.Bind(l, &unix.SockaddrInet4{Port: 4003}))
	b.must(unix.Listen(l, 8))
	for _, marked := range []bool{true, false} {
		fd := b.socket(b.A, unix.AF_INET)
		if marked {
			b.must(b.prog.MarkConnect(fd))
		}
		b.must(connectTo(fd, to(4003)))
		b.wantPeer("client", fd, map[bool]State{true: PeerSMC, false: unmarked}[marked])
		conns[conn{clientPort: localPort(t, fd), serverPort: 4003}] = marked
	}
	segs := b.segments(capture)
	for c, marked := range conns {
		// The kernel always announces SMC as client, and as server if the client does.
		wantAnnounced(t, segs, "kernel peer", c, marked || c.serverPort != 4003, marked)
	}
}
