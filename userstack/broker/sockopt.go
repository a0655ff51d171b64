// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetSockopt sets a socket option with the value as the program gave it. An
// error is a syscall.Errno, or os.ErrClosed.
func SetSockopt(d *Descriptor, level, name int, value []byte) error {
	return d.Control(func(fd int) error {
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

// GetSockopt reads a socket option into at most size bytes and returns as
// many as the kernel filled in. Some options take their argument from the
// buffer; it begins as zeros here.
func GetSockopt(d *Descriptor, level, name, size int) ([]byte, error) {
	if size < 0 || size > MaxValue {
		return nil, syscall.EINVAL
	}
	buf := make([]byte, max(size, 1))
	n := uint32(size)
	err := d.Control(func(fd int) error {
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

// sockaddr converts ap for the family of socket fd.
func sockaddr(fd int, ap netip.AddrPort) (unix.Sockaddr, error) {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt SO_DOMAIN", err)
	}
	a := ap.Addr()
	switch {
	case family == unix.AF_INET && a.Unmap().Is4():
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: a.Unmap().As4()}, nil
	case family == unix.AF_INET6 && a.IsValid():
		sa := &unix.SockaddrInet6{Port: int(ap.Port()), Addr: a.As16()}
		if z := a.Zone(); z != "" {
			id, err := strconv.ParseUint(z, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("broker: the zone of %v is not an interface index: %w", ap, syscall.EINVAL)
			}
			sa.ZoneId = uint32(id)
		}
		return sa, nil
	default:
		return nil, fmt.Errorf("broker: %v does not fit a socket of family %d: %w", ap, family, syscall.EAFNOSUPPORT)
	}
}
