// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
)

// UrgentWriter sends urgent data, like send with MSG_OOB: the last byte of p is urgent.
// [Conn] implements it.
type UrgentWriter interface {
	WriteUrgent(p []byte) (int, error)
}

// UrgentReader reads like an io.Reader, but a read ends at an urgent byte: urgent means that
// the last byte read is urgent.
type UrgentReader interface {
	ReadMark(p []byte) (n int, urgent bool, err error)
}

var _ UrgentWriter = (*Conn)(nil)

// UrgentReady returns a channel on which a value comes when the peer has announced urgent
// data, and when the data has arrived. It replaces SIGURG. Several events may come as one
// value.
func (c *Conn) UrgentReady() <-chan struct{} { return c.d.Urgent() }

// ReadUrgent reads the urgent byte, like recv with MSG_OOB. It does not wait. The error is
// EAGAIN if the byte was announced and has not arrived. It is EINVAL if there is no urgent
// byte, if it was read before, or if it is in the stream.
func (c *Conn) ReadUrgent() (u byte, err error) {
	if c.d.End.Closed() {
		return 0, c.opError("read", net.ErrClosed)
	}
	u, err = c.d.In.Urgent()
	return u, c.opError("read", sysError("recv", err))
}

// AtMark reports whether the next Read begins at the urgent mark, like SIOCATMARK. A Read
// never goes across the mark.
func (c *Conn) AtMark() bool { return c.d.In.AtMark() }

// SetOOBInline sets whether urgent bytes that arrive from now on stay in the stream, like
// SO_OOBINLINE.
func (c *Conn) SetOOBInline(on bool) error {
	if c.d.End.Closed() {
		return c.opError("set", net.ErrClosed)
	}
	c.d.In.SetUrgentInline(on)
	return nil
}
