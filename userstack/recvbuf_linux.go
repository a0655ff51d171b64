// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// defaultRecvBuf returns SO_RCVBUF of a TCP socket for which nobody has set it
// (net.ipv4.tcp_rmem), in bytes; 0 if that cannot be told.
func defaultRecvBuf() int {
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

// recvBufOf returns the receive buffer that a program has asked for on its TCP
// socket, in bytes; 0 if none. The RMB element is to be as large (RFC 7609,
// section 4.1). The kernel says twice what was asked for, and what it takes by
// itself counts as the configuration of the stack does.
func (s *Stack) recvBufOf(tcp TCPConn) int {
	sc, ok := tcp.(syscall.Conn)
	if !ok || s.tcpRcv == 0 {
		return 0
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	if cerr := rc.Control(func(fd uintptr) { n, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) }); cerr != nil || err != nil || n <= s.tcpRcv {
		return 0
	}
	return n / 2
}
