// SPDX-License-Identifier: Apache-2.0

package place

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Cookie returns the cookie of the network namespace of the calling thread
// (SO_NETNS_COOKIE). No other network namespace has the same until the next boot. The error
// wraps a syscall.Errno, which is ENOPROTOOPT before Linux 5.14.
func Cookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	return CookieOf(fd)
}

// CookieOf returns the cookie of the network namespace of the socket fd. Errors: see Cookie.
func CookieOf(fd int) (uint64, error) {
	v, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("cookie of the network namespace: %w", err)
	}
	return v, nil
}
