// SPDX-License-Identifier: Apache-2.0

package network

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// DefaultRecvBuf returns SO_RCVBUF of a TCP socket on which nobody has set it
// (net.ipv4.tcp_rmem), in bytes; 0 if the kernel does not say.
func DefaultRecvBuf() int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n
}

// RecvBuf returns the receive buffer that a program has asked for on its TCP
// socket, in bytes, or 0 if it has asked for none. unset is what [DefaultRecvBuf]
// returned. The kernel reports twice what was asked for.
func RecvBuf(tcp syscall.Conn, unset int) int {
	if unset == 0 {
		return 0
	}
	rc, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	if cerr := rc.Control(func(fd uintptr) { n, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) }); cerr != nil || err != nil || n <= unset {
		return 0
	}
	return n / 2
}

// Cookie returns the kernel's cookie of the socket fd, which no other socket of
// this boot has, or 0 if fd is not a socket.
func Cookie(fd int) uint64 {
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return 0
	}
	return c
}
