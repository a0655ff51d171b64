// SPDX-License-Identifier: Apache-2.0

package connector

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// socket is the socket of a program.
type socket int

func (s socket) Control(f func(fd int) error) error { return f(int(s)) }

func (s socket) Dup() (int, error) { return unix.FcntlInt(uintptr(s), unix.F_DUPFD_CLOEXEC, 0) }

// TestConnector connects sockets like programs do, and cancels attempts.
func TestConnector(t *testing.T) {
	testkind.System(t)
	var k Connector
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := netip.MustParseAddrPort(l.Addr().String())
	newSocket := func(flags int) (socket, int) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return socket(fd), fd
	}
	for _, flags := range []int{0, unix.SOCK_NONBLOCK} {
		d, fd := newSocket(flags)
		if err := k.Connect(t.Context(), d, addr); err != nil {
			t.Fatal(err)
		}
		if f, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); f&unix.O_NONBLOCK != flags {
			t.Errorf("O_NONBLOCK changed: %#x", f)
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}); !errors.Is(err, unix.EISCONN) {
			t.Errorf("connect again: %v", err)
		}
	}
	t.Run("refused, then used again", func(t *testing.T) {
		d, _ := newSocket(0)
		free, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		closed := netip.MustParseAddrPort(free.Addr().String())
		_ = free.Close()
		if err := k.Connect(t.Context(), d, closed); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("refused: %v", err)
		}
		if err := k.Connect(t.Context(), d, addr); err != nil {
			t.Errorf("again: %v", err)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		// A socket with a full backlog does not answer a SYN.
		full, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(full)
		if err := unix.Bind(full, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Listen(full, 0); err != nil {
			t.Fatal(err)
		}
		sa, err := unix.Getsockname(full)
		if err != nil {
			t.Fatal(err)
		}
		to := netip.AddrPortFrom(addr.Addr(), uint16(sa.(*unix.SockaddrInet4).Port))
		// Real time: the attempts get no answer meanwhile.
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var last error
		for range 4 {
			d, _ := newSocket(unix.SOCK_NONBLOCK)
			if last = k.Connect(ctx, d, to); last != nil {
				if err := k.Connect(t.Context(), d, addr); err != nil {
					t.Errorf("after a canceled attempt: %v", err)
				}
				break
			}
		}
		if !errors.Is(last, context.DeadlineExceeded) {
			t.Errorf("error %v", last)
		}
	})
}
