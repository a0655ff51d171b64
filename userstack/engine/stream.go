// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
)

// Message is memory that [Socket.Recv] and [Socket.Send] need for a system call. Their
// caller keeps it, so that it is not allocated for each call. The zero value is ready to
// use. Only one call at a time may use a Message.
type Message struct {
	msg unix.Msghdr
	iov [2]unix.Iovec
}

// Recv reads what the socket has, first into a, which must not be empty, then into b. It
// never waits. At the end of the stream n and errno are 0. errno is EAGAIN if there is nothing
// to read.
//
// Recv, Send, Pending, Peek and HungUp must be called within a function that [Socket.Control] or the
// RawConn of [Socket.SyscallConn] calls, because that keeps the descriptor open.
func (s *Socket) Recv(m *Message, a, b []byte) (n int, errno syscall.Errno) {
	if s.sim != nil {
		return s.sim.Recv(a, b)
	}
	m.fill(a, b)
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&m.msg)), unix.MSG_DONTWAIT)
	m.iov = [2]unix.Iovec{}
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

// Send writes a and then b, as far as there is room, and returns how many bytes it wrote.
// It never waits: errno is EAGAIN if there is no room. For where it may be called see Recv.
func (s *Socket) Send(m *Message, a, b []byte) (n int, errno syscall.Errno) {
	return s.send(m, a, b, 0)
}

// SendLast is Send for the last bytes of the stream: CloseWrite follows as soon as they are written. They wait for it, so that the last
// packet says both.
func (s *Socket) SendLast(m *Message, a, b []byte) (n int, errno syscall.Errno) {
	return s.send(m, a, b, unix.MSG_MORE)
}

func (s *Socket) send(m *Message, a, b []byte, flags uintptr) (n int, errno syscall.Errno) {
	if s.sim != nil {
		return s.sim.Send(a, b)
	}
	flags |= unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if len(b) > 0 {
		m.fill(a, b)
		r, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&m.msg)), flags)
		m.iov = [2]unix.Iovec{}
		if errno != 0 {
			return 0, errno
		}
		return int(r), 0
	}
	// For one buffer, sendto(2) is faster than sendmsg(2): the kernel has less to copy
	// and check.
	r, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(len(a)), flags, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

// fill makes m point to the buffers. The caller must clear these pointers after the system
// call, because the buffers are mapped memory that may be unmapped later.
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

// Pending returns three facts: readable, whether Recv would return data, the end of the
// stream or an error now; mark, whether the next byte is urgent; and plain, whether there is
// only data, without an urgent byte at any place, an end or an error. For where it may be
// called see Recv.
func (s *Socket) Pending() (readable, mark, plain bool) {
	if s.sim != nil {
		return s.sim.Pending()
	}
	revents := atonce.Ready(s.fd, unix.POLLIN|unix.POLLPRI|unix.POLLRDHUP)
	if revents&unix.POLLPRI != 0 {
		at, err := unix.IoctlGetInt(s.fd, unix.SIOCATMARK)
		mark = err == nil && at != 0
	}
	return revents != 0, mark, revents == unix.POLLIN
}

// Peek returns what Recv of one byte would return, and leaves it: n is 0 or 1. For where it may be
// called see Recv.
func (s *Socket) Peek() (n int, errno syscall.Errno) {
	if s.sim != nil {
		return s.sim.Peek()
	}
	var b [1]byte
	for {
		r, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), uintptr(unsafe.Pointer(&b)), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(r), 0
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// HungUp returns two facts: up, whether both sides have ended their streams, or the connection was
// reset; failed, whether the connection has an error that no call has reported, for example because
// it was reset behind the end of the stream, where Recv does not tell. It leaves the error. For where
// it may be called see Recv.
func (s *Socket) HungUp() (up, failed bool) {
	if s.sim != nil {
		return s.sim.HungUp()
	}
	revents := atonce.Ready(s.fd, 0) // these events are always looked for
	return revents&(unix.POLLHUP|unix.POLLERR) != 0, revents&unix.POLLERR != 0
}
