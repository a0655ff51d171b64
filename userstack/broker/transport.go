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

	"smcr/userstack/internal/bounded"
)

// sendTimeout bounds how long a message may wait for the other side to make
// room: whoever does not read for that long is taken as dead.
const sendTimeout = 5 * time.Second

// errDescriptorLost is the error of a message whose descriptor did not arrive: this process
// could not have more, or there were more than a message may have. The message is
// valid, and the session goes on.
var errDescriptorLost = errors.New("broker: the descriptor was lost")

// transport sends and receives messages, each with at most one descriptor.
type transport struct {
	c *net.UnixConn

	sendMu sync.Mutex
	sbuf   []byte

	rbuf []byte // the receiver's own
	oob  []byte

	// notSockets are received descriptors that are not sockets. They are not
	// closed here, because a file system may delay the close without limit.
	notSockets []int

	ended atomic.Bool // this side called shut
}

func newTransport(c *net.UnixConn) *transport {
	return &transport{
		c: c, rbuf: make([]byte, MaxMessage+1),
		// Room for a few descriptors more than allowed, so that surplus ones are
		// seen (and closed) instead of cut off.
		oob: make([]byte, unix.CmsgSpace(4*4)),
	}
}

// send sends m, and fd with it unless that is negative; fd stays the caller's.
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
	if err := t.c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("broker: send %v: %w", m.Type, err)
	}
	if _, _, err := t.c.WriteMsgUnix(b, oob, nil); err != nil {
		return fmt.Errorf("broker: send %v: %w", m.Type, err)
	}
	return nil
}

// shut ends the session: neither side can send any more, but messages that the
// other side sent before can still be received, followed by io.EOF. A close
// would discard descriptors in these messages, which the other side regards as
// delivered.
func (t *transport) shutdown() {
	t.ended.Store(true)
	if rc, err := t.c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
}

// receive returns the next message and its descriptor, which is nil or the
// caller's to close. io.EOF tells that the other side closed. With errDescriptorLost the
// message is there, too.
func (t *transport) receive() (Message, *Descriptor, error) {
	n, oobn, flags, err := t.read()
	if err != nil {
		if errors.Is(err, net.ErrClosed) {
			return Message{}, nil, io.EOF
		}
		return Message{}, nil, err
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
	if flags&unix.MSG_TRUNC != 0 {
		closeAll()
		return Message{}, nil, fmt.Errorf("%w: truncated", ErrMalformed)
	}
	m, err := ParseMessage(t.rbuf[:n])
	if err != nil {
		closeAll()
		return Message{}, nil, err
	}
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
	if want == 1 {
		return m, NewDescriptor(fds[0]), nil
	}
	return m, nil, nil
}

// read is recvmsg. What is cut off of a message's descriptors the kernel closes in
// the call, which takes as long as their SO_LINGER says unless it is woken.
func (t *transport) read() (n, oobn, flags int, err error) {
	rc, err := t.c.SyscallConn()
	if err != nil {
		return 0, 0, 0, err
	}
	rerr := rc.Read(func(fd uintptr) bool {
		bounded.Call(nil, func() {
			n, oobn, flags, _, err = unix.Recvmsg(int(fd), t.rbuf, t.oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		}, bounded.Interrupt)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if rerr != nil {
		return 0, 0, 0, rerr
	}
	return n, oobn, flags, os.NewSyscallError("recvmsg", err)
}

// closeNotSockets closes the received descriptors that are not sockets, without
// waiting until they are closed.
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

// isNoSocket reports whether fd is something else. It asks no file system.
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
