// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// Conn is what a [Socket] is made of: a connection in Go's poller, or an
// *engine.Socket.
type Conn interface {
	syscall.Conn
	SetReadDeadline(t time.Time) error
	Close() error
}

// Socket is a connected stream socket. It is the [End] of a [Relay], too.
type Socket struct {
	// PassMark, if set, is called before an urgent byte is written behind one
	// that the other end may not have got to yet; see the function of that name.
	PassMark func()

	conn   Conn
	rc     syscall.RawConn
	marked bool // an urgent byte was written
	closed atomic.Bool

	// The reader's call, kept so that reading allocates nothing.
	read   func(fd uintptr) bool
	p      []byte
	n      int
	urgent bool
	err    error
	msg    unix.Msghdr
	iov    unix.Iovec

	// Likewise the writer's.
	write  func(fd uintptr) bool
	wp     []byte // what is left
	wflags int
	werr   error
}

// NewSocket wraps c, a stream socket, and makes its urgent bytes stay
// in the stream.
func NewSocket(c Conn) (*Socket, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &Socket{conn: c, rc: rc}
	s.read, s.write = s.tryRead, s.tryWrite
	var serr error
	if err := rc.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
	}); err != nil {
		return nil, err
	}
	return s, os.NewSyscallError("setsockopt", serr)
}

// Conn returns what the socket was made of.
func (s *Socket) Conn() syscall.Conn { return s.conn }

// SetReadDeadline implements [End].
func (s *Socket) SetReadDeadline(t time.Time) error { return s.conn.SetReadDeadline(t) }

// Close implements [End].
func (s *Socket) Close() error {
	s.closed.Store(true)
	return s.conn.Close()
}

// failed is what a call returns that the poller ended with err: files have an
// error of their own, which no other package can name, for net.ErrClosed.
func (s *Socket) failed(err error) error {
	if err != nil && s.closed.Load() {
		return net.ErrClosed
	}
	return err
}

// CloseWrite implements [End].
func (s *Socket) CloseWrite() error {
	if c, ok := s.conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	var serr error
	if err := s.rc.Control(func(fd uintptr) { serr = unix.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return err
	}
	return os.NewSyscallError("shutdown", serr)
}

// HungUp implements [End]. So a socket is that was closed here.
func (s *Socket) HungUp() bool {
	up := false
	err := s.rc.Control(func(fd uintptr) { up = pollHup(int(fd)) })
	return up || err != nil
}

func pollHup(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}

// Peek implements [End].
func (s *Socket) Peek() (int, error) {
	var got struct { // one variable that escapes
		n   int
		err error
	}
	if err := s.rc.Control(func(fd uintptr) { got.n, got.err = peek(int(fd)) }); err != nil {
		return 0, err
	}
	return got.n, got.err
}

func peek(fd int) (n int, err error) {
	var b [1]byte
	for {
		n, _, err = unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// Unread implements [End].
func (s *Socket) Unread() int {
	n := 0
	_ = s.rc.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	return n
}

// AwaitHangUp implements [End]. The poller wakes a reader also for a hang-up, which is
// all that is waited for here; a waiting writer would hold the lock that another one
// needs for what the peer still sends.
func (s *Socket) AwaitHangUp() error {
	return s.rc.Read(func(fd uintptr) bool { return pollHup(int(fd)) })
}

// AwaitInput implements [End].
func (s *Socket) AwaitInput() (n int, err error) {
	rerr := s.rc.Read(func(fd uintptr) bool {
		n, err = peek(int(fd))
		return err != unix.EAGAIN
	})
	if rerr != nil {
		return 0, rerr
	}
	return n, err
}

// ReadMark reads as an io.Reader does, but never on behind an urgent byte:
// urgent says that the last byte read is one. The error at the end of the
// stream is io.EOF.
func (s *Socket) ReadMark(p []byte) (n int, urgent bool, err error) {
	if len(p) == 0 {
		return 0, false, nil
	}
	s.p, s.n, s.urgent, s.err = p, 0, false, nil
	err = s.rc.Read(s.read)
	s.p = nil
	switch {
	case err != nil:
		return 0, false, s.failed(err)
	case s.err != nil:
		return 0, false, os.NewSyscallError("read", s.err)
	case s.n == 0:
		return 0, false, io.EOF
	}
	return s.n, s.urgent, nil
}

// tryRead reads what is there. What makes it sound: a read that begins before
// an urgent byte ends there, and the byte that is next does not become urgent
// any more once it lies there. So it is enough to know, before the read, that
// a byte is there and whether that one is urgent.
func (s *Socket) tryRead(fd uintptr) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLPRI}}
	for {
		switch _, err := unix.Poll(p[:], 0); {
		case err == unix.EINTR:
			continue
		case err != nil:
			s.err = err
			return true
		}
		break
	}
	if p[0].Revents == 0 {
		return false
	}
	buf := s.p
	if p[0].Revents&unix.POLLPRI != 0 {
		if at, err := unix.IoctlGetInt(int(fd), unix.SIOCATMARK); err == nil && at != 0 {
			buf, s.urgent = buf[:1], true
		}
	}
	for {
		s.n, s.err = s.recv(int(fd), buf)
		switch s.err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			s.n, s.err, s.urgent = 0, nil, false
			return false
		}
		return true
	}
}

// Read implements io.Reader: it does not tell urgent bytes from others.
func (s *Socket) Read(p []byte) (int, error) {
	n, _, err := s.ReadMark(p)
	return n, err
}

// Write implements io.Writer.
func (s *Socket) Write(p []byte) (int, error) { return s.send(p, 0) }

// WriteUrgent is Write, with the last byte urgent. Where unix sockets have no
// urgent bytes it is written like the others.
func (s *Socket) WriteUrgent(p []byte) (int, error) {
	if s.PassMark != nil && s.marked && s.unread() {
		s.PassMark()
	}
	s.marked = true
	return s.send(p, unix.MSG_OOB)
}

// unread reports whether the other end may have something to read.
func (s *Socket) unread() bool {
	n := 0
	err := s.rc.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return err == nil && n > 0
}

// PassMark takes away the urgent byte that is the next in fd, a unix socket, as
// TCP does when another one arrives: a reader that has read all before it, and
// does not care for urgent bytes, never sees it. A unix socket would make it an
// ordinary byte. A reader that is not there yet gets it as one from TCP too.
func PassMark(fd int) {
	if at, err := unix.IoctlGetInt(fd, unix.SIOCATMARK); err != nil || at == 0 {
		return
	}
	var b [1]byte
	// Fails if it was taken, or stays in the stream (SO_OOBINLINE).
	_, _, _ = unix.Recvfrom(fd, b[:], unix.MSG_OOB|unix.MSG_DONTWAIT)
}

func (s *Socket) send(p []byte, flags int) (int, error) {
	s.wp, s.wflags, s.werr = p, flags, nil
	err := s.rc.Write(s.write)
	n := len(p) - len(s.wp)
	s.wp = nil
	if err != nil {
		return n, s.failed(err)
	}
	return n, os.NewSyscallError("write", s.werr)
}

// tryWrite writes what there is room for.
func (s *Socket) tryWrite(fd uintptr) bool {
	for len(s.wp) > 0 {
		n, err := send(int(fd), s.wp, s.wflags)
		switch {
		case err == nil:
			s.wp = s.wp[n:]
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false
		case err == unix.EOPNOTSUPP && s.wflags != 0:
			s.wflags = 0
		default:
			s.werr = err
			return true
		}
	}
	return true
}

// recv and send never wait, whatever O_NONBLOCK says: it belongs to the open file
// description, and whoever has another descriptor of that can clear it.
func (s *Socket) recv(fd int, p []byte) (int, error) {
	s.iov.Base = unsafe.SliceData(p)
	s.iov.SetLen(len(p))
	s.msg.Iov = &s.iov
	s.msg.SetIovlen(1)
	n, _, e := bounded.Recvmsg(fd, &s.msg)
	s.iov.Base = nil
	if e != 0 {
		return 0, e
	}
	return n, nil
}

func send(fd int, p []byte, flags int) (int, error) {
	flags |= unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	n, _, e := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(flags), 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// bufSize is what Copy carries at once, in bytes.
const bufSize = 64 << 10

// Copy carries bytes from src to dst, urgent ones as such, until the end of
// src, which is no error.
func Copy(dst, src *Socket) error {
	buf := make([]byte, bufSize)
	for {
		n, urgent, err := src.ReadMark(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		write := dst.Write
		if urgent {
			write = dst.WriteUrgent
		}
		if _, err := write(buf[:n]); err != nil {
			return err
		}
	}
}
