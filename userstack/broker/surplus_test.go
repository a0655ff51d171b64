// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lingeringSocket returns a socket whose close waits an hour, since its peer reads
// nothing.
func lingeringSocket(t *testing.T) (fd int) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	peer, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	for {
		_, err := unix.SendmsgN(fd, buf, nil, nil, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			return fd
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sendLingering passes sockets on that nobody has another descriptor of.
func sendLingering(t *testing.T, to, count int) {
	t.Helper()
	var fds []int
	for range count {
		fd := lingeringSocket(t)
		fds = append(fds, fd)
	}
	if err := unix.Sendmsg(to, []byte("x"), unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReceiveSurplus: descriptors of a message that are more than it may have are
// closed at once, whatever their SO_LINGER says.
func TestReceiveSurplus(t *testing.T) {
	a, b := sessionPair(t)
	tr := newTransport(b)
	rc, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := rc.Control(func(fd uintptr) { sendLingering(t, int(fd), 9) }); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, _, err := tr.receive(); err == nil {
			t.Error("a message with too many descriptors was received")
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("waits for the peers of the sockets")
	}
}

// sessionPair is a session's socket.
func sessionPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "session")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}
