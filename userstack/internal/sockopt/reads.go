// SPDX-License-Identifier: Apache-2.0

package sockopt

import "golang.org/x/sys/unix"

// Reads are the options of a socket that a program has set for its own reads. They keep others from
// reading: a poll does not report less than SO_RCVLOWAT, and SO_PEEK_OFF moves where MSG_PEEK
// begins. The zero value has the defaults.
type Reads struct {
	low  int // SO_RCVLOWAT in bytes, if it is more than 1
	peek int // SO_PEEK_OFF in bytes, plus 1
}

// ReadsOf returns those of a socket. An option that cannot be read was not set.
func ReadsOf(fd int) (r Reads) {
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT); err == nil && v > 1 {
		r.low = v
	}
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF); err == nil {
		r.peek = int(int32(v)) + 1
	}
	return r
}

// Set sets those that are not the default.
func (r Reads) Set(fd int) {
	if r.low > 0 {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, r.low)
	}
	if r.peek > 0 {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, r.peek-1)
	}
}

// Clear sets those that Set sets to the default.
func (r Reads) Clear(fd int) {
	if r.low > 0 {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
	}
	if r.peek > 0 {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1)
	}
}
