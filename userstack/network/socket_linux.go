// SPDX-License-Identifier: Apache-2.0

package network

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// RecvBuf returns the receive buffer in effect for a TCP connection, in bytes: what its
// program has set with SO_RCVBUF, or else the default of the system, which is the second
// value of net.ipv4.tcp_rmem (RFC 7609, section 4.1). It returns 0 if the kernel does not
// tell it.
func RecvBuf(tcp syscall.Conn) int {
	rc, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	n, set := 0, false
	if cerr := rc.Control(func(fd uintptr) {
		if n, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil {
			set = recvBufSet(int(fd), n)
		}
	}); cerr != nil || err != nil {
		return 0
	}
	if set {
		return n / 2 // the kernel keeps twice what was set
	}
	return n
}

// recvBufLock is the bit of SO_BUF_LOCK that says that SO_RCVBUF was set
// (SOCK_RCVBUF_LOCK of Linux).
const recvBufLock = 2

// recvBufSet reports whether SO_RCVBUF of the socket fd, which is n, was set.
func recvBufSet(fd, n int) bool {
	if lock, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK); err == nil {
		return lock&recvBufLock != 0
	}
	// Linux before 5.15. A value that is not that of a new socket was set.
	fresh, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fresh)
	unset, err := unix.GetsockoptInt(fresh, unix.SOL_SOCKET, unix.SO_RCVBUF)
	return err == nil && n != unset
}

// Cookie returns the kernel's cookie of the socket fd, which no other socket of
// this boot has, or 0 if fd is not a socket.
func Cookie(fd int) uint64 {
	// The kernel may lack memory for a moment. A socket without a cookie would be taken for
	// one of somebody else.
	for range 3 {
		if c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err == nil {
			return c
		}
	}
	return 0
}
