// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sockname is getsockname(2) for a socket of IPv4 or IPv6 that others have. It waits for the
// lock of the socket. That of package unix, and that of package syscall, which package net
// calls, do not tell the Go runtime that they may wait: all goroutines of the process would
// wait for such a call.
func Sockname(fd int) (unix.Sockaddr, error) { return name(unix.SYS_GETSOCKNAME, fd) }

// Peername is getpeername(2), as Sockname.
func Peername(fd int) (unix.Sockaddr, error) { return name(unix.SYS_GETPEERNAME, fd) }

func name(call uintptr, fd int) (unix.Sockaddr, error) {
	var raw unix.RawSockaddrInet6 // the longer one
	size := uint32(unsafe.Sizeof(raw))
	if _, _, e := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size))); e != 0 {
		return nil, e
	}
	port := int(binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&raw.Port))[:]))
	switch raw.Family {
	case unix.AF_INET:
		return &unix.SockaddrInet4{Port: port, Addr: (*unix.RawSockaddrInet4)(unsafe.Pointer(&raw)).Addr}, nil
	case unix.AF_INET6:
		return &unix.SockaddrInet6{Port: port, Addr: raw.Addr, ZoneId: raw.Scope_id}, nil
	}
	return nil, unix.EAFNOSUPPORT
}
