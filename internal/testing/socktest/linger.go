// SPDX-License-Identifier: Apache-2.0

package socktest

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// lingering returns a socket whose close would wait an hour, because its peer does not
// read.
func lingering(t testing.TB) int {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
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

// SendLingering passes count such sockets over the unix socket to. Nobody has other
// descriptors of them.
func SendLingering(t testing.TB, to, count int) {
	t.Helper()
	var fds []int
	for range count {
		fds = append(fds, lingering(t))
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

// OpenFiles returns the number of descriptors of this process.
func OpenFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
