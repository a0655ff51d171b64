// SPDX-License-Identifier: Apache-2.0

package atonce

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Close closes a descriptor. That of a socket with SO_LINGER must have a time of 0.
func Close(fd int) error { return call(unix.SYS_CLOSE, fd, 0, 0) }

// Shutdown is shutdown(2).
func Shutdown(fd, how int) error { return call(unix.SYS_SHUTDOWN, fd, uintptr(how), 0) }

// Write writes b, which is a packet where fd is a packet socket.
func Write(fd int, b []byte) (n int, err error) {
	return transfer(unix.SYS_WRITE, fd, b)
}

// Read reads into b, which must not be empty.
func Read(fd int, b []byte) (n int, err error) {
	return transfer(unix.SYS_READ, fd, b)
}

// Peek returns how many bytes can be received now, 0 or 1, and leaves them.
func Peek(fd int) (n int, err error) {
	var b [1]byte
	r, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b)), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// SetInt sets an option of a socket.
func SetInt(fd, level, name, value int) error {
	v := int32(value)
	return set(fd, level, name, unsafe.Pointer(&v), unsafe.Sizeof(v))
}

// SetLinger sets SO_LINGER: on has close reset the connection, instead of ending it in order.
func SetLinger(fd int, on bool) error {
	l := unix.Linger{}
	if on {
		l.Onoff = 1
	}
	return set(fd, unix.SOL_SOCKET, unix.SO_LINGER, unsafe.Pointer(&l), unsafe.Sizeof(l))
}

// GetInt gets an option of a socket.
func GetInt(fd, level, name int) (int, error) {
	var v int32
	size := uint32(unsafe.Sizeof(v))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&v)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(v), nil
}

// Watch is epoll_ctl(2).
func Watch(epoll, op, fd int, ev *unix.EpollEvent) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(ev)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Ready returns which of the events of poll(2) are true of fd now.
func Ready(fd int, events int16) int16 {
	p := unix.PollFd{Fd: int32(fd), Events: events}
	var zero unix.Timespec
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&zero)), 0, 0, 0)
		if errno != unix.EINTR {
			return p.Revents
		}
	}
}

func set(fd, level, name int, value unsafe.Pointer, size uintptr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(value), size, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func call(nr uintptr, fd int, a, b uintptr) error {
	_, _, errno := unix.RawSyscall(nr, uintptr(fd), a, b)
	if errno != 0 {
		return errno
	}
	return nil
}

func transfer(nr uintptr, fd int, b []byte) (n int, err error) {
	r, _, errno := unix.RawSyscall(nr, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}
