// SPDX-License-Identifier: Apache-2.0

package sockopt

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxSize is the longest value, in bytes, that Get reads.
const MaxSize = 2048

// A Socket gives its descriptor, which stays open until f returns. Control returns f's
// error, or os.ErrClosed.
type Socket interface {
	Control(f func(fd int) error) error
}

// Set sets a socket option with the value as the program gave it. An
// error is a syscall.Errno, or os.ErrClosed.
func Set(s Socket, level, name int, value []byte) error {
	return s.Control(func(fd int) error {
		var p unsafe.Pointer
		if len(value) > 0 {
			p = unsafe.Pointer(&value[0])
		}
		_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(p), uintptr(len(value)), 0)
		runtime.KeepAlive(value)
		if e != 0 {
			return e
		}
		return nil
	})
}

// Get reads a socket option into at most size bytes and returns as
// many as the kernel filled in. Some options take their argument from the
// buffer; it begins as zeros here.
func Get(s Socket, level, name, size int) ([]byte, error) {
	if size < 0 || size > MaxSize {
		return nil, syscall.EINVAL
	}
	buf := make([]byte, max(size, 1))
	n := uint32(size)
	err := s.Control(func(fd int) error {
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
		if e != 0 {
			return e
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return buf[:min(int(n), size)], nil
}
