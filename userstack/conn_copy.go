// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"io"
	"os"
	"time"

	"smcr/stats"
	"smcr/userstack/conn"
)

// deliver writes what was read to w, and lets go of the buffer also if w panics.
func (r *reader) deliver(w io.Writer, uw UrgentWriter, a, b []byte, urgent bool) (n int, err error) {
	c := r.c
	defer func() {
		c.s.beginPost()
		defer c.s.endPost()
		c.g.do(func(now time.Time) {
			r.delivered(now, n)
			c.end.release()
		})
	}()
	if urgent {
		n, err = uw.WriteUrgent(a)
	} else {
		n, err = w.Write(a)
	}
	if err == nil && len(b) > 0 {
		var m int
		m, err = w.Write(b)
		n += m
	}
	return n, err
}

// WriteTo implements io.WriterTo: it writes to w straight from the RMB
// element until the peer has said that it sends no more. A w which is an
// [UrgentWriter] gets the urgent bytes at their place in the stream.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.endPeek()
	uw, _ := w.(UrgentWriter)
	for {
		moved, err := c.carried.carryOut(w)
		if total += moved; err != nil {
			return total, os.NewSyscallError("write", err)
		}
		if err := c.barred(&c.in.deadline); err != nil {
			return total, c.opError("read", err)
		}
		c.g.mu.Lock()
		a, b, err := c.in.readable()
		avail, urgent := len(a)+len(b), false
		if uw != nil && err == nil {
			var u byte
			var apart bool
			if u, apart, urgent = c.in.mark(len(a) > 0); apart {
				c.g.unlock()
				c.in.receivedUrgent()
				if _, err := uw.WriteUrgent([]byte{u}); err != nil {
					return total, err
				}
				continue
			}
			if urgent {
				a, b = a[:1], nil
			}
		}
		if err != nil {
			c.g.unlock()
			if err == io.EOF {
				err = nil
			}
			return total, c.opError("read", err)
		}
		if len(a) == 0 {
			c.g.unlock()
			if err := c.wait(c.in.wake, &c.in.deadline, c.in.ready); err != nil {
				return total, c.opError("read", err)
			}
			continue
		}
		c.end.hold()
		c.in.delivering = true
		c.g.unlock()
		n, werr := c.in.deliver(w, uw, a, b, urgent)
		total += int64(n)
		if n > 0 {
			c.in.received(n, avail)
		}
		if urgent {
			c.s.stats.Call(stats.Urgent)
		}
		if werr != nil {
			return total, werr
		}
	}
}

// fill reads from r into a piece of send memory, and lets go of it also if r
// panics. lost tells that the peer did not wait for what was read.
func (w *writer) fill(r io.Reader, ur UrgentReader, a []byte) (n int, lost bool, err error) {
	c := w.c
	urgent := false
	defer func() {
		c.s.beginPost()
		defer c.s.endPost()
		c.g.do(func(now time.Time) {
			// What the peer did not wait for is lost, as with TCP.
			lost = n > 0 && errors.Is(c.end.writeErr(), conn.ErrPeerClosed)
			switch {
			case c.end.over:
			case n > 0:
				w.produced(now, n, urgent)
				c.txBytes += uint64(n)
			default:
				w.dropSpace()
			}
			c.end.release()
		})
	}()
	if ur != nil {
		n, urgent, err = ur.ReadMark(a)
	} else {
		n, err = r.Read(a)
	}
	n = max(n, 0)
	return n, lost, err
}

// ReadFrom implements io.ReaderFrom: it reads from r straight into send
// memory until r ends. An r which is an [UrgentReader] may have urgent bytes.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.dropReserve()
	ur, _ := r.(UrgentReader)
	for {
		moved, err := c.carried.carryIn(r)
		if total += moved; err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, os.NewSyscallError("read", err)
		}
		a, _, err := c.out.space(1, 1)
		if err != nil {
			return total, err
		}
		c.end.hold()
		c.g.unlock()
		n, lost, rerr := c.out.fill(r, ur, a)
		if lost {
			return total, c.opError("write", sysError("write", conn.ErrReset))
		}
		if n > 0 {
			c.s.stats.TX(n, n)
		}
		total += int64(n)
		if rerr == io.EOF {
			return total, nil
		}
		if rerr != nil {
			return total, rerr
		}
	}
}
