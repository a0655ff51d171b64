// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
)

// UrgentWriter takes urgent data, as send with MSG_OOB does: the last byte of
// p is urgent. [Conn] is one.
type UrgentWriter interface {
	WriteUrgent(p []byte) (int, error)
}

// UrgentReader reads as an io.Reader does, but never on behind an urgent byte:
// urgent says that the last byte read is one.
type UrgentReader interface {
	ReadMark(p []byte) (n int, urgent bool, err error)
}

var _ UrgentWriter = (*Conn)(nil)

// UrgentReady returns a channel on which a value comes when the peer has
// announced urgent data and when it has arrived, in place of SIGURG. Several
// events may come as one value.
func (c *Conn) UrgentReady() <-chan struct{} { return c.d.Urgent() }

// ReadUrgent takes the urgent byte, as recv with MSG_OOB does; it does not
// wait. The error is EAGAIN if the byte is announced but not here yet, and
// EINVAL if there is none, if it was taken or if it is in the stream.
func (c *Conn) ReadUrgent() (u byte, err error) {
	if c.d.End.Closed() {
		return 0, c.opError("read", net.ErrClosed)
	}
	u, err = c.d.In.Urgent()
	return u, c.opError("read", sysError("recv", err))
}

// AtMark reports whether the next Read begins at the urgent mark, as
// SIOCATMARK does. A Read never goes across the mark.
func (c *Conn) AtMark() bool { return c.d.In.AtMark() }

// SetOOBInline chooses whether urgent bytes that arrive from now on stay in
// the stream, as SO_OOBINLINE does.
func (c *Conn) SetOOBInline(on bool) error {
	if c.d.End.Closed() {
		return c.opError("set", net.ErrClosed)
	}
	c.d.In.SetUrgentInline(on)
	return nil
}
