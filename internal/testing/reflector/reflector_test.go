// SPDX-License-Identifier: Apache-2.0

package reflector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// start returns a host whose connections with itself go by a reflector, until the end of the test.
func start(t *testing.T) *netnstest.Host {
	t.Helper()
	netnstest.Require(t, "nft", "nsenter")
	p := netnstest.New(t, netnstest.Options{})
	if err := Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- p.B.Do(func() error { return Run(ctx, slog.New(slog.DiscardHandler), func() { close(ready) }) })
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	return p.A
}

// connected returns both ends of a connection of a host with an address of its own.
func connected(t *testing.T, h *netnstest.Host, addr string) (client, server *net.TCPConn) {
	t.Helper()
	if err := h.Do(func() error {
		l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
		if err != nil {
			return err
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		client = c.(*net.TCPConn)
		s, err := l.Accept()
		if err == nil {
			server = s.(*net.TCPConn)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client, server
}

func TestReflector(t *testing.T) {
	h := start(t)
	for _, addr := range []string{"127.0.0.1", "127.0.0.5", h.Addr(), "::1", h.Addr6()} {
		t.Run(addr, func(t *testing.T) {
			client, server := connected(t, h, addr)
			if client.LocalAddr().String() != server.RemoteAddr().String() || client.RemoteAddr().String() != server.LocalAddr().String() {
				t.Errorf("client %v to %v, server %v from %v", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
			}
			// More than all buffers have room for, both ways, and the end of each stream.
			data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
			for _, c := range [][2]*net.TCPConn{{client, server}, {server, client}} {
				sent := make(chan error, 1)
				go func() {
					_, err := c[0].Write(data)
					sent <- errors.Join(err, c[0].CloseWrite())
				}()
				got, err := io.ReadAll(c[1])
				if err := errors.Join(err, <-sent); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
				}
			}
		})
	}
}

// TestReset has either end reset its connection: the other one sees that, behind the bytes that came before.
func TestReset(t *testing.T) {
	h := start(t)
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			resets, sees := connected(t, h, "127.0.0.1")
			if who == "server" {
				resets, sees = sees, resets
			}
			if _, err := resets.Write([]byte("bytes")); err != nil {
				t.Fatal(err)
			}
			var b [5]byte
			if _, err := io.ReadFull(sees, b[:]); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(resets.SetLinger(0), resets.Close()); err != nil {
				t.Fatal(err)
			}
			if n, err := sees.Read(b[:]); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	h := start(t)
	for _, addr := range []string{"127.0.0.1", "::1"} {
		if err := h.Do(func() error {
			_, err := net.Dial("tcp", net.JoinHostPort(addr, "7"))
			return err
		}); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

func TestUrgent(t *testing.T) {
	h := start(t)
	client, server := connected(t, h, "127.0.0.1")
	raw := func(c *net.TCPConn, f func(fd int) error) {
		t.Helper()
		rc, err := c.SyscallConn()
		var ferr error
		if err == nil {
			err = rc.Control(func(fd uintptr) { ferr = f(int(fd)) })
		}
		if err := errors.Join(err, ferr); err != nil {
			t.Fatal(err)
		}
	}
	raw(client, func(fd int) error {
		_, err := unix.SendmsgN(fd, []byte("beforeU"), nil, nil, unix.MSG_OOB)
		return err
	})
	if _, err := client.Write([]byte("after")); err != nil {
		t.Fatal(err)
	}
	testkind.Eventually(t, "an urgent byte", func() (any, bool) {
		var b [1]byte
		var n int
		var err error
		raw(server, func(fd int) error {
			n, _, err = unix.Recvfrom(fd, b[:], unix.MSG_OOB)
			return nil
		})
		return fmt.Sprintf("%q, %v", b[:max(n, 0)], err), n == 1 && b[0] == 'U'
	})
	var b [11]byte
	if _, err := io.ReadFull(server, b[:]); err != nil || string(b[:]) != "beforeafter" {
		t.Errorf("%q, %v", b, err)
	}
}
