// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
	"smcr/userstack/internal/bounded"
)

// sendTimeout is how long a message may wait for room in the socket, and how long it is sent
// again while the kernel has no memory for it.
const sendTimeout = 5 * time.Second

// A Conn sends and receives messages.
type Conn struct {
	c   *net.UnixConn
	old bool // this process hands over

	write func(b, oob []byte) error // sendMessage, which tests replace
}

// New makes a Conn of c, of network "unixpacket", which it owns. old says that this process
// is the one that hands over, for the text of a VersionError.
func New(c *net.UnixConn, old bool) *Conn {
	conn := &Conn{c: c, old: old}
	conn.write = conn.sendMessage
	return conn
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// PID returns the ID of the other process, as this process sees it (SO_PEERCRED). It is 0 if
// the other process is in a PID namespace that this one does not see.
func (c *Conn) PID() (int, error) {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("takeover: %w", err)
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("takeover: %w", err)
	}
	if cerr != nil {
		return 0, fmt.Errorf("takeover: %w", os.NewSyscallError("getsockopt", cerr))
	}
	return int(cred.Pid), nil
}

// Send sends m. The caller still owns the files.
func (c *Conn) Send(m Message) error {
	b, err := m.appendBinary(nil)
	if err != nil {
		return err
	}
	var oob []byte
	if len(m.Files) > 0 {
		fds := make([]int, len(m.Files))
		for i, f := range m.Files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	if err := retry.While(retry.NoMemory, sendTimeout, func() error { return c.write(b, oob) }); err != nil {
		return fmt.Errorf("takeover: send %v: %w", m.Type, err)
	}
	return nil
}

// sendMessage sends one message, whole or not at all.
func (c *Conn) sendMessage(b, oob []byte) error { return bounded.Send(c.c, b, oob, sendTimeout) }

// Receive waits for the next message, no longer than limit. Errors: io.EOF if the other
// process has closed the connection or has ended, [VersionError], ErrMalformed,
// os.ErrDeadlineExceeded.
func (c *Conn) Receive(limit time.Duration) (Message, error) {
	if err := c.c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return Message{}, fmt.Errorf("takeover: %w", err)
	}
	b, oob := make([]byte, maxMessage+1), make([]byte, unix.CmsgSpace(4*(MaxFiles+1))) // one too many is seen, and not only by a flag
	n, oobn, flags, _, err := c.c.ReadMsgUnix(b, oob)
	if err != nil {
		if errors.Is(err, unix.ECONNRESET) {
			err = io.EOF
		}
		return Message{}, fmt.Errorf("takeover: %w", err)
	}
	files, err := filesIn(oob[:oobn])
	if n == 0 && len(files) == 0 {
		return Message{}, io.EOF
	}
	var m Message
	var sender uint32
	if err == nil && (len(files) > MaxFiles || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0) {
		err = fmt.Errorf("%w: truncated", ErrMalformed)
	}
	if err == nil {
		m, sender, err = parse(b[:n])
	}
	if err == nil && sender != Version() {
		e := &VersionError{Old: sender, New: Version()}
		if c.old {
			e.Old, e.New = e.New, e.Old
		}
		err = e
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return Message{}, err
	}
	m.Files = files
	return m, nil
}

// Expect is Receive for a message of one type. The error of a message of type Refuse is its
// text, and matches ErrRefused.
func (c *Conn) Expect(t Type, limit time.Duration) (Message, error) {
	m, err := c.Receive(limit)
	if err != nil || m.Type == t {
		return m, err
	}
	m.Close()
	if m.Type == Refuse {
		return Message{}, fmt.Errorf("%w: %s", ErrRefused, m.Text)
	}
	return Message{}, fmt.Errorf("%w: %v instead of %v", ErrMalformed, m.Type, t)
}

// ErrRefused means that the stack that runs does not hand over.
var ErrRefused = errors.New("the stack that runs does not hand over")

// Close closes the files of m.
func (m *Message) Close() {
	for _, f := range m.Files {
		_ = f.Close()
	}
	m.Files = nil
}

// filesIn returns the descriptors of control messages as files.
func filesIn(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: control message: %w", ErrMalformed, err)
	}
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
		if err != nil {
			return files, fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	return files, nil
}
