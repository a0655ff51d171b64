// SPDX-License-Identifier: Apache-2.0

package blocking

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// addrOf returns the address of a bound socket.
func addrOf(t *testing.T, c Conn) netip.AddrPort {
	t.Helper()
	sa, err := unix.Getsockname(int(c))
	if err != nil {
		t.Fatal(err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	t.Fatalf("address %T", sa)
	return netip.AddrPort{}
}

// closeAfter closes a socket when the test ends.
func closeAfter(t *testing.T, c Conn) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestConn exchanges data over TCP until the end of the stream, over IPv4 and IPv6.
func TestConn(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			l, err := Listen(TCP, netip.MustParseAddrPort(addr), 1)
			if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
				t.Skipf("this machine has no such address: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			closeAfter(t, l)
			c, err := Dial(TCP, addrOf(t, l))
			if err != nil {
				t.Fatal(err)
			}
			closeAfter(t, c)
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			closeAfter(t, s)
			data := bytes.Repeat([]byte("0123456789"), 100_000) // more than the buffers can hold
			sent := make(chan error, 1)
			go func() {
				_, err := c.Write(data)
				sent <- errors.Join(err, c.CloseWrite())
			}()
			got, err := io.ReadAll(s)
			if err := errors.Join(err, <-sent); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, want %d: %v", len(got), len(data), err)
			}
			if n, err := s.Write([]byte("x")); n != 1 || err != nil {
				t.Errorf("wrote %d bytes the other way: %v", n, err)
			}
			b := make([]byte, 2)
			if n, err := c.Read(b); n != 1 || err != nil {
				t.Errorf("read %d bytes of the other way: %v", n, err)
			}
		})
	}
}

// TestErrors: errors are those of the system calls.
func TestErrors(t *testing.T) {
	l, err := Listen(TCP, netip.MustParseAddrPort("127.0.0.1:0"), 1)
	if err != nil {
		t.Fatal(err)
	}
	at := addrOf(t, l)
	if c, err := Listen(TCP, at, 1); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("two listen at %v: %d, %v", at, c, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := Dial(TCP, at); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connected to nobody: %d, %v", c, err)
	}
	if err := l.Close(); !errors.Is(err, unix.EBADF) {
		t.Errorf("closed twice: %v", err)
	}
	if n, err := l.Read(make([]byte, 1)); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Errorf("read %d bytes of a closed socket: %v", n, err)
	}
	if n, err := l.Write(make([]byte, 1)); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Errorf("wrote %d bytes to a closed socket: %v", n, err)
	}
	if c, err := l.Accept(); !errors.Is(err, unix.EBADF) {
		t.Errorf("accepted %d of a closed socket: %v", c, err)
	}
}
