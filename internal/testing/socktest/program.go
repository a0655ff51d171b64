// SPDX-License-Identifier: Apache-2.0

package socktest

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

// Patience bounds each wait of a test.
const Patience = time.Minute

// Bound sets the timeouts of a socket to Patience.
func Bound(t testing.TB, fd int) {
	t.Helper()
	tv := unix.NsecToTimeval(int64(Patience))
	for _, name := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, name, &tv); err != nil {
			t.Fatal(err)
		}
	}
}

// TCPPair makes a TCP connection over loopback, with deadlines.
func TCPPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	testkind.System(t)
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d net.Dialer
	c, err := d.DialTCP(context.Background(), "tcp4", netip.AddrPort{}, l.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := l.SetDeadline(time.Now().Add(Patience)); err != nil {
		t.Fatal(err)
	}
	s, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, c := range []*net.TCPConn{c, s} {
		if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
			t.Fatal(err)
		}
	}
	return c, s
}

// Control runs f with the descriptor of a connection.
func Control(t testing.TB, c *net.TCPConn, f func(fd int) error) {
	t.Helper()
	rc, err := c.SyscallConn()
	var failed error
	if err == nil {
		err = rc.Control(func(fd uintptr) { failed = f(int(fd)) })
	}
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
}

// Ioctl asks a socket for a number.
func Ioctl(t testing.TB, c *net.TCPConn, request uint) (n int) {
	t.Helper()
	Control(t, c, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, request)
		return err
	})
	return n
}

// Send is write(2) without SIGPIPE.
func Send(fd int, s string) (int, error) {
	return unix.SendmsgN(fd, []byte(s), nil, nil, unix.MSG_NOSIGNAL)
}

// Write writes all of s.
func Write(t testing.TB, fd int, s string) {
	t.Helper()
	if n, err := Send(fd, s); n != len(s) || err != nil {
		t.Fatalf("write: %d of %d bytes, %v", n, len(s), err)
	}
}

// readAgain is read(2), repeated when a signal of the Go runtime interrupts it.
func readAgain(fd int, b []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, b); err != unix.EINTR {
			return n, err
		}
	}
}

// Read reads the bytes of want and fails the test if they differ.
func Read(t testing.TB, fd int, want string) {
	t.Helper()
	buf := make([]byte, len(want))
	for got := 0; got < len(buf); {
		n, err := readAgain(fd, buf[got:])
		if n <= 0 || err != nil {
			t.Fatalf("read after %q: %d, %v", Clipped(buf[:got]), n, err)
		}
		got += n
	}
	if string(buf) != want {
		t.Fatalf("read %q, want %q", Clipped(buf), Clipped([]byte(want)))
	}
}

// WantEnd checks that the next read returns no data and the error err. Nil stands for the
// end of the stream.
func WantEnd(t testing.TB, fd int, want error) {
	t.Helper()
	n, err := readAgain(fd, make([]byte, 16))
	if n > 0 || err != want {
		t.Errorf("read: %d bytes, %v; want the end: %v", max(n, 0), err, want)
	}
}

// WantUnread waits until the socket has n unread bytes.
func WantUnread(t testing.TB, fd, n int) {
	t.Helper()
	for end := time.Now().Add(Patience); ; time.Sleep(time.Millisecond) {
		got, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
		if got >= n {
			return
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("%d bytes unread, want %d: %v", got, n, err)
		}
	}
}

// Shutdown shuts down writing.
func Shutdown(t testing.TB, fd int) {
	t.Helper()
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
}

// Clipped returns the first bytes of b, for messages.
func Clipped(b []byte) []byte { return b[:min(len(b), 40)] }
