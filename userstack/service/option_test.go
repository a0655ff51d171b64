// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
	"smcr/userstack/internal/rights"
)

// TestOptionUnknown: where nobody can tell whether the peer announced SMC, the
// connection is not plain TCP either: the peer may wait for CLC messages.
func TestOptionUnknown(t *testing.T) {
	checkLeaks(t)
	b := newServiceBed(t, host(t), nil)
	b.opt.broken.Store(true)
	l, remote := listenTCP(t)
	c, err := b.launcher(os.Geteuid()).Connect(tcpSocket(t, 0), broker.ConnectRequest{Remote: remote})
	if err != nil {
		t.Fatal(err)
	}
	accept(t, l)
	if ev := next(t, c, broker.EventFailed); ev.Errno != syscall.ECONNABORTED {
		t.Errorf("%+v", ev)
	}
	next(t, c, broker.EventClosed)
	conn, _ := tcpPair(t)
	f, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if c, err = b.launcher(os.Geteuid()).Accept(int(f.Fd()), netip.AddrPort{}, netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	next(t, c, broker.EventClosed) // and nothing else: the launcher drops it
}

// TestOptionsWhileTaken: while the service takes over a program's socket, which
// changes options for a moment, the program finds what it has set.
func TestOptionsWhileTaken(t *testing.T) {
	testkind.System(t)
	checkLeaks(t)
	l, remote := listenTCP(t)
	fd := tcpSocket(t, 0)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: remote.Addr().As4(), Port: int(remote.Port())}); err != nil {
		t.Fatal(err)
	}
	accept(t, l)
	ours, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	h := &held{sock: broker.NewDescriptor(ours)}
	defer h.sock.Close()
	over := make(chan error, 1)
	go func() {
		for range 500 {
			tcp, _, err := h.takeTCP()
			if err != nil {
				over <- err
				return
			}
			_ = tcp.Close()
		}
		over <- nil
	}()
	for i := 0; ; i++ {
		select {
		case err := <-over:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
		want := []byte{byte(i & 1), 0, 0, 0}
		if err := h.set(rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, want); err != nil {
			t.Fatal(err)
		}
		if got, err := h.get(rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, 4); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("TCP_NODELAY %v, %v after it was set to %v", got, err, want)
		}
	}
}

// Once the TCP socket is no more the launcher answers in its place.
func TestOptionsOver(t *testing.T) {
	testkind.System(t)
	h := &held{sock: broker.NewDescriptor(tcpSocket(t, 0))}
	_ = h.sock.Take() // tcpSocket closes it
	if err := h.set(rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, []byte{1, 0, 0, 0}); err != syscall.ENOTCONN {
		t.Errorf("set: %v", err)
	}
	if _, err := h.get(rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, 4); err != syscall.ENOTCONN {
		t.Errorf("get: %v", err)
	}
}

// TestOptionBeyondSocket: a launcher, which may be anybody's, cannot have the
// kernel read or write memory of the service, nor use its descriptors: these
// options mean the caller's, or count in other units than bytes.
func TestOptionBeyondSocket(t *testing.T) {
	testkind.System(t)
	checkLeaks(t)
	fd := tcpSocket(t, 0)
	filter := make([]unix.SockFilter, 200)
	for i := range filter {
		filter[i] = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		t.Fatal(err)
	}
	ours, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	h := &held{sock: broker.NewDescriptor(ours)}
	defer h.sock.Close()
	// 200 instructions of 8 bytes each into 200 bytes.
	for _, r := range []rights.Rights{0, rights.All} {
		if v, err := h.get(r, unix.SOL_SOCKET, unix.SO_GET_FILTER, len(filter)); err != syscall.EPERM {
			t.Errorf("SO_GET_FILTER: %d bytes, %v, want EPERM", len(v), err)
		}
		for _, name := range []int{unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF} {
			if err := h.set(r, unix.SOL_SOCKET, name, make([]byte, 16)); err != syscall.EPERM {
				t.Errorf("option %d: %v, want EPERM", name, err)
			}
		}
	}
}
