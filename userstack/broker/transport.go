// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/printable"
	"smcr/internal/retry"
	"smcr/userstack/internal/bounded"
)

const (
	// sendTimeout is how long a message may wait for room in the socket. A process that
	// does not read for this time is regarded as dead.
	sendTimeout = 5 * time.Second
	// memoryTimeout is how long sending or receiving is tried again while the kernel has
	// no memory for it. After that the session ends.
	memoryTimeout = 5 * time.Second
)

// ErrNoMemory is the error of a session that has ended because the kernel had no memory
// for a message for too long. The process at the other end may still run.
var ErrNoMemory = errors.New("broker: the kernel had no memory for a message")

// errDescriptorLost is the error of a message whose descriptor did not arrive: this process
// has too many open files, or the message had too many descriptors. The message itself is
// valid, and the session continues.
var errDescriptorLost = errors.New("broker: the descriptor was lost")

// transport sends and receives messages, each with at most one descriptor.
type transport struct {
	c *net.UnixConn

	sendMu sync.Mutex
	sbuf   []byte

	// write and read are sendMessage and receiveMessage. Tests replace them.
	write func(b, oob []byte) error
	read  func() (n, oobn, flags int, err error)

	rbuf []byte // used by the receiving goroutine only, like oob
	oob  []byte

	// notSockets are received descriptors that are not sockets. They are not
	// closed here, because a file system may delay the close without limit.
	notSockets []int

	ended atomic.Bool // this side called shut
}

func newTransport(c *net.UnixConn) *transport {
	t := &transport{
		c: c, rbuf: make([]byte, MaxMessage+1),
		// Room for more descriptors than a message may have, so that extra ones are
		// received and closed here, and not truncated.
		oob: make([]byte, unix.CmsgSpace(4*4)),
	}
	t.write, t.read = t.sendMessage, t.receiveMessage
	return t
}

// send sends m, with the descriptor fd unless it is negative. The caller still owns fd.
func (t *transport) send(m *Message, fd int) error {
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	b, err := m.AppendBinary(t.sbuf[:0])
	if err != nil {
		return err
	}
	t.sbuf = b
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	// A message is sent whole or not at all, so it can be sent again after an error.
	if err := retry.While(retry.NoMemory, memoryTimeout, func() error { return t.write(b, oob) }); err != nil {
		return fmt.Errorf("broker: send %v: %w", m.Type, noMemory(err))
	}
	return nil
}

// sendMessage calls sendmsg(2), and waits up to sendTimeout for room in the socket.
func (t *transport) sendMessage(b, oob []byte) error { return bounded.Send(t.c, b, oob, sendTimeout) }

// noMemory marks an error that says that the kernel has no memory with ErrNoMemory.
func noMemory(err error) error {
	if retry.NoMemory(err) {
		return fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	return err
}

// shutdown ends the session: neither side can send any more, but messages that the other
// side sent before can still be received, followed by io.EOF. A close would discard the
// descriptors in these messages, which the other side regards as delivered.
func (t *transport) shutdown() {
	t.ended.Store(true)
	if rc, err := t.c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
}

// receive returns the next message and its descriptor, which is nil or must be closed by
// the caller. The error is io.EOF if the other side has closed the session. With
// errDescriptorLost the message is valid too.
func (t *transport) receive() (Message, *Descriptor, error) {
	var n, oobn, flags int
	err := retry.While(retry.NoMemory, memoryTimeout, func() (err error) {
		n, oobn, flags, err = t.read()
		return err
	})
	if err != nil {
		if errors.Is(err, net.ErrClosed) {
			return Message{}, nil, io.EOF
		}
		return Message{}, nil, noMemory(err)
	}
	fds, err := parseRights(t.oob[:oobn])
	closeAll := func() {
		for _, fd := range fds {
			_ = bounded.Close(fd)
		}
	}
	if i := slices.IndexFunc(fds, isNoSocket); i >= 0 {
		t.notSockets = append(t.notSockets, fds...)
		return Message{}, nil, fmt.Errorf("%w: a descriptor is %w", ErrMalformed, unix.ENOTSOCK)
	}
	if n == 0 && len(fds) == 0 {
		return Message{}, nil, io.EOF
	}
	if err != nil {
		closeAll()
		return Message{}, nil, err
	}
	if m, ok := otherVersion(t.rbuf[:n]); ok {
		closeAll()
		return m, nil, nil
	}
	if flags&unix.MSG_TRUNC != 0 {
		closeAll()
		return Message{}, nil, fmt.Errorf("%w: truncated", ErrMalformed)
	}
	m, err := ParseMessage(t.rbuf[:n])
	if err != nil {
		closeAll()
		return Message{}, nil, err
	}
	m.Text = printable.Line(m.Text) // of another process, for people
	want := 0
	if m.Type.carriesSocket() {
		want = 1
	}
	if flags&unix.MSG_CTRUNC != 0 && want == 1 {
		closeAll() // any of them could be the one
		return m, nil, fmt.Errorf("%w: %v", errDescriptorLost, m.Type)
	}
	if len(fds) != want || flags&unix.MSG_CTRUNC != 0 {
		closeAll()
		return Message{}, nil, fmt.Errorf("%w: %v with %d descriptors", ErrMalformed, m.Type, len(fds))
	}
	if want == 0 {
		return m, nil, nil
	}
	if err := passable(fds[0]); err != nil {
		closeAll()
		return Message{}, nil, fmt.Errorf("%w: %v with %w", ErrMalformed, m.Type, err)
	}
	return m, NewDescriptor(fds[0]), nil
}

// receiveMessage calls recvmsg(2). If a message has too many descriptors, the kernel closes those for
// which there is no room within the call. That could take as long as their SO_LINGER, so
// the call is interrupted.
func (t *transport) receiveMessage() (n, oobn, flags int, err error) {
	rc, err := t.c.SyscallConn()
	if err != nil {
		return 0, 0, 0, err
	}
	rerr := rc.Read(func(fd uintptr) bool {
		bounded.Receive(func() {
			n, oobn, flags, _, err = unix.Recvmsg(int(fd), t.rbuf, t.oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		})
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if rerr != nil {
		return 0, 0, 0, rerr
	}
	return n, oobn, flags, os.NewSyscallError("recvmsg", err)
}

// closeNotSockets closes the descriptors in t.notSockets, without waiting for that.
func (t *transport) closeNotSockets() {
	if fds := t.notSockets; len(fds) > 0 {
		t.notSockets = nil
		go func() {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
		}()
	}
}

// isNoSocket reports whether fd is not a socket. It does not call the file system of fd.
func isNoSocket(fd int) bool {
	_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	return err != nil
}

func parseRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: control message: %w", ErrMalformed, err)
	}
	var fds []int
	for i := range cmsgs {
		if cmsgs[i].Header.Level != unix.SOL_SOCKET || cmsgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		f, err := unix.ParseUnixRights(&cmsgs[i])
		if err != nil {
			return fds, fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		fds = append(fds, f...)
	}
	return fds, nil
}

// passable returns an error for a descriptor that no message may have: one that is not a
// socket, and a unix socket that is not a stream. A launcher that passed its own end of the
// session would keep the session open after its end. The service checks everything else.
func passable(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("a socket without a domain: %w", err)
	}
	if domain != unix.AF_UNIX {
		return nil
	}
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return fmt.Errorf("a descriptor that is not a socket: %w", err)
	}
	if typ != unix.SOCK_STREAM {
		return fmt.Errorf("a unix socket of type %d", typ)
	}
	return nil
}
