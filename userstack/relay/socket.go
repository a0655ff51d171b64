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

	"smcr/internal/atonce"
	"smcr/internal/retry"
)

// Conn is the connection below a [Socket]: one in Go's poller, or an *engine.Socket.
type Conn interface {
	syscall.Conn
	SetReadDeadline(t time.Time) error
	Close() error
}

// Socket is a connected TCP socket that keeps urgent bytes at their place in the stream. It
// does not block (O_NONBLOCK). It can be the [End] of a [Relay].
type Socket struct {
	conn   Conn
	rc     syscall.RawConn
	closed atomic.Bool

	// State of the reader's call. It is part of the Socket so that a read does not
	// allocate memory.
	read   func(fd uintptr) bool
	p      []byte
	n      int
	urgent bool
	err    error

	// State of the writer's call.
	write  func(fd uintptr) bool
	wp     []byte // what is not written yet
	wflags int
	werr   error
}

// NewSocket wraps the socket c and sets SO_OOBINLINE, so that received urgent bytes
// stay in the stream. After an error, c is still the caller's to close.
func NewSocket(c Conn) (*Socket, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &Socket{conn: c, rc: rc}
	s.read, s.write = s.tryRead, s.tryWrite
	var serr error
	if err := rc.Control(func(fd uintptr) {
		serr = atonce.SetInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
	}); err != nil {
		return nil, err
	}
	return s, os.NewSyscallError("setsockopt", serr)
}

// Conn returns the connection that NewSocket got.
func (s *Socket) Conn() syscall.Conn { return s.conn }

// SetReadDeadline implements [End].
func (s *Socket) SetReadDeadline(t time.Time) error { return s.conn.SetReadDeadline(t) }

// Close implements [End].
func (s *Socket) Close() error {
	s.closed.Store(true)
	return s.conn.Close()
}

// failed returns the error of a call that the poller ended with err. It returns
// net.ErrClosed after Close, because the poller's error for a closed file is an unexported
// one of package os.
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
	if err := s.rc.Control(func(fd uintptr) { serr = atonce.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return err
	}
	return os.NewSyscallError("shutdown", serr)
}

// HungUp implements [End]. It is also true after Close.
func (s *Socket) HungUp() bool {
	up := false
	err := s.rc.Control(func(fd uintptr) { up = pollHup(int(fd)) })
	return up || err != nil
}

func pollHup(fd int) bool {
	return atonce.Ready(fd, 0)&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}

// Peek implements [End]. After a reset behind the end of its stream, a read of TCP reports that
// end, and SO_ERROR the reset (RFC 9293, section 3.10.7.4: CLOSE-WAIT).
func (s *Socket) Peek() (int, error) {
	var got struct { // one struct, so that only one variable escapes to the heap
		n   int
		err error
	}
	if err := s.rc.Control(func(fd uintptr) {
		if got.n, got.err = peek(int(fd)); got.n > 0 || got.err != nil {
			return
		}
		if code, err := atonce.GetInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			got.err = os.NewSyscallError("read", unix.ECONNRESET)
		}
	}); err != nil {
		return 0, err
	}
	return got.n, got.err
}

func peek(fd int) (n int, err error) {
	err = retry.Interrupted(func() (err error) { n, err = atonce.Peek(fd); return err })
	return n, err
}

// Unread implements [End].
func (s *Socket) Unread() int {
	n := 0
	_ = s.rc.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	return n
}

// AwaitHangUp implements [End]. It waits as a reader, because the poller wakes a reader for
// a hang-up too. A waiting writer would hold the write lock, and nobody could write what
// the peer still sends.
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

// ReadMark reads like an io.Reader, but never past an urgent byte: if urgent is true, the
// last byte read is urgent. Errors: io.EOF at the end of the stream, net.ErrClosed after
// Close, and errors that wrap a syscall.Errno.
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

// tryRead reads the available bytes, and returns false if there are none. It asks before
// the read whether the next byte is urgent. That is enough, because the kernel ends a read
// in front of an urgent byte, and because a byte that is in the queue already does not
// become urgent later.
func (s *Socket) tryRead(fd uintptr) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLPRI}}
	if err := retry.Interrupted(func() error { _, err := unix.Poll(p[:], 0); return err }); err != nil {
		s.err = err
		return true
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
	s.err = retry.Interrupted(func() (err error) { s.n, err = unix.Read(int(fd), buf); return err })
	if s.err == unix.EAGAIN {
		s.n, s.err, s.urgent = 0, nil, false
		return false
	}
	return true
}

// Read implements io.Reader. It returns urgent bytes like other bytes.
func (s *Socket) Read(p []byte) (int, error) {
	n, _, err := s.ReadMark(p)
	return n, err
}

// Write implements io.Writer. The errors are net.ErrClosed after Close, and errors that wrap
// a syscall.Errno.
func (s *Socket) Write(p []byte) (int, error) { return s.send(p, 0) }

// WriteUrgent writes p with the last byte urgent. Errors: see Write.
func (s *Socket) WriteUrgent(p []byte) (int, error) { return s.send(p, unix.MSG_OOB) }

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

// tryWrite writes as much as there is room for. It returns false if there is more to write.
func (s *Socket) tryWrite(fd uintptr) bool {
	for len(s.wp) > 0 {
		n, err := send(int(fd), s.wp, s.wflags)
		switch {
		case err == nil:
			s.wp = s.wp[n:]
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false
		default:
			s.werr = err
			return true
		}
	}
	return true
}

// send writes p, as much as there is room for.
func send(fd int, p []byte, flags int) (int, error) {
	flags |= unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	n, _, e := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(flags), 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}
