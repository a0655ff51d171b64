// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Message is what [Socket.Send] needs, for its caller to keep: it would be
// allocated each time. Its zero value is ready. One call at a time uses it.
type Message struct {
	msg unix.Msghdr
	iov [2]unix.Iovec
}

// Recv reads into b, which is not empty, what the socket has, and never waits,
// whatever its flags say: a launcher has copies of the descriptor and may change
// these. 0 without an error is the end of the stream.
//
// Like Send and Pending it is called while a function given to [Socket.Control]
// runs, which keeps the descriptor open.
func (s *Socket) Recv(b []byte) (n int, errno syscall.Errno) {
	if s.sim != nil {
		return s.sim.Recv(b)
	}
	r, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

// Send likewise writes a and then b, of which b may be empty, as far as there is
// room.
func (s *Socket) Send(m *Message, a, b []byte) (n int, errno syscall.Errno) {
	if s.sim != nil {
		return s.sim.Send(a, b)
	}
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
	r, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&m.msg)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	// Nothing is to point to the buffers, which are mapped memory, once they
	// may be unmapped.
	m.iov = [2]unix.Iovec{}
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

// Pending reports whether Recv has something to return now, be it the end of the
// stream or an error, and whether it begins with an urgent byte.
func (s *Socket) Pending() (readable, mark bool) {
	if s.sim != nil {
		return s.sim.Pending()
	}
	switch revents := pollNow(s.fd, unix.POLLIN|unix.POLLPRI); {
	case revents == 0:
		return false, false
	case revents&unix.POLLPRI != 0:
		at, err := unix.IoctlGetInt(s.fd, unix.SIOCATMARK)
		return true, err == nil && at != 0
	}
	return true, false
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
