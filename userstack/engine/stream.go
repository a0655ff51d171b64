// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// Message is what [Socket.Recv] and [Socket.Send] need, for their caller to keep:
// it would be allocated each time. Its zero value is ready. One call at a time
// uses it.
type Message struct {
	msg unix.Msghdr
	iov [2]unix.Iovec
}

// Recv reads into a, which is not empty, and then b what the socket has, and never
// waits, whatever its flags say: a launcher has copies of the descriptor and may
// change these. 0 without an error is the end of the stream. cut tells that there
// may be more although a and b are not full, and no urgent byte is next.
//
// Like Send and Pending it is called while a function given to [Socket.Control]
// or to its SyscallConn runs, which keeps the descriptor open.
func (s *Socket) Recv(m *Message, a, b []byte) (n int, cut bool, errno syscall.Errno) {
	if s.sim != nil {
		n, errno = s.sim.Recv(a, b)
		return n, false, errno
	}
	m.fill(a, b)
	n, cut, errno = bounded.Recvmsg(s.fd, &m.msg)
	m.iov = [2]unix.Iovec{}
	return n, cut, errno
}

// Send likewise writes a and then b, as far as there is room.
func (s *Socket) Send(m *Message, a, b []byte) (n int, errno syscall.Errno) {
	if s.sim != nil {
		return s.sim.Send(a, b)
	}
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if len(b) > 0 {
		m.fill(a, b)
		r, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&m.msg)), flags)
		m.iov = [2]unix.Iovec{}
		if errno != 0 {
			return 0, errno
		}
		return int(r), 0
	}
	// The same with less for the kernel to copy and check.
	r, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(len(a)), flags, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

// fill points to the buffers. They are mapped memory: nothing is to point to them
// once they may be unmapped.
func (m *Message) fill(a, b []byte) {
	count := 1
	m.iov[0].Base = unsafe.SliceData(a)
	m.iov[0].SetLen(len(a))
	if len(b) > 0 {
		count = 2
		m.iov[1].Base = unsafe.SliceData(b)
		m.iov[1].SetLen(len(b))
	}
	m.msg.Iov = &m.iov[0]
	m.msg.SetIovlen(count)
}

// Pending reports whether Recv has something to return now, be it the end of the
// stream or an error; whether that begins with an urgent byte; and whether there
// is nothing but plain data: no urgent byte further on, no end, no error.
func (s *Socket) Pending() (readable, mark, plain bool) {
	if s.sim != nil {
		return s.sim.Pending()
	}
	revents := pollNow(s.fd, unix.POLLIN|unix.POLLPRI|unix.POLLRDHUP)
	if revents&unix.POLLPRI != 0 {
		at, err := unix.IoctlGetInt(s.fd, unix.SIOCATMARK)
		mark = err == nil && at != 0
	}
	return revents != 0, mark, revents == unix.POLLIN
}

// pollNow returns the events of fd.
func pollNow(fd int, events int16) int16 {
	p := unix.PollFd{Fd: int32(fd), Events: events}
	var zero unix.Timespec
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&zero)), 0, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		return p.Revents
	}
}
