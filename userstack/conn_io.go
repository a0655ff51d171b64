// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"smcr/stats"
	"smcr/userstack/conn"
)

// inlineCopy is the size up to which data is copied under the group's lock:
// cheaper than taking it twice.
const inlineCopy = 4 << 10

// overErr is the error of a connection that has ended although the
// application did not close it: what the core has, or a reset.
func overErr(err error) error {
	if err == nil || err == io.EOF {
		return conn.ErrReset
	}
	return err
}

// readable returns what can be read now: data, or an error once there is
// none. With neither the caller waits. g.mu is held.
func (r *reader) readable() (a, b []byte, err error) {
	c := r.c
	defer c.g.caught()
	if c.end.closed.Load() {
		return nil, nil, net.ErrClosed
	}
	if c.end.over {
		return nil, nil, sysError("read", overErr(c.end.readErr()))
	}
	if a, b = c.core.RecvData(); len(a) > 0 {
		return a, b, nil
	}
	return nil, nil, sysError("read", c.core.ReadErr())
}

// writable tells why nothing can be written. g.mu is held.
func (w *writer) writable() error {
	c := w.c
	defer c.g.caught()
	if c.end.closed.Load() {
		return net.ErrClosed
	}
	if c.end.over {
		return sysError("write", overErr(c.end.writeErr()))
	}
	return sysError("write", c.core.WriteErr())
}

// lend returns send memory, least bytes if there is room for so many, and about
// most: see linkgroup.Conn.SendSpace. produced or dropSpace follows. g.mu is held.
func (w *writer) reserve(least, most int) (a, b []byte, err error) {
	c := w.c
	defer c.g.caught()
	if err := w.writable(); err != nil {
		return nil, nil, err
	}
	a, b, err = c.core.SendSpace(least, most)
	full := err == nil && len(a)+len(b) < least
	if full && !w.full {
		c.s.stats.Buffer(stats.TX, stats.Full)
	}
	w.full = full
	return a, b, sysError("write", err)
}

// received counts a receive of n bytes when avail could be read.
func (r *reader) received(n, avail int) {
	c := r.c
	c.s.stats.RX(n)
	if avail >= c.core.RecvSize() {
		c.s.stats.Buffer(stats.RX, stats.Full)
	}
}

// dropSpace ends a loan of lend of which nothing is sent. g.mu is held.
func (w *writer) dropSpace() {
	c := w.c
	defer c.g.caught()
	if !c.g.broken {
		c.core.DropSpace()
	}
}

// barred tells why nothing may begin now: the end of the connection comes
// before that of time, as with TCP.
func (c *Conn) barred(dl *deadline) error {
	switch {
	case c.end.closed.Load():
		return net.ErrClosed
	case dl.expired():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.endPeek()
	if len(p) == 0 {
		return 0, c.opError("read", c.barred(&c.in.deadline))
	}
	a, b, err := c.in.data(1)
	if err != nil {
		c.s.stats.RX(0)
		return 0, err
	}
	n := min(len(p), len(a)+len(b))
	c.s.beginPost()
	if n <= inlineCopy {
		copy(p[copy(p, a):], b)
		c.in.consumed(time.Now(), n)
		c.g.unlock()
	} else {
		c.end.hold()
		c.in.delivering = true
		c.g.unlock()
		copy(p[copy(p, a):], b)
		c.g.do(func(now time.Time) {
			c.in.delivered(now, n)
			c.end.release()
		})
	}
	c.s.endPost()
	c.in.received(n, len(a)+len(b))
	return n, nil
}

// data returns what can be read, with g.mu held unless there is an error. It waits
// until it is at least n bytes, or no more can come before it is consumed.
func (r *reader) data(n int) (a, b []byte, err error) {
	c := r.c
	for {
		if err := c.barred(&r.deadline); err != nil {
			return nil, nil, c.opError("read", err)
		}
		c.g.mu.Lock()
		a, b, err := r.readable()
		if err == nil && (len(a)+len(b) >= n || len(a) > 0 && r.recvEnd() != nil) {
			return a, b, nil
		}
		c.g.unlock()
		if err != nil {
			return nil, nil, c.opError("read", err)
		}
		if err := c.wait(r.wake, &r.deadline, r.ready); err != nil {
			return nil, nil, c.opError("read", err)
		}
	}
}

// recvEnd tells why nothing can come behind what can be read now. g.mu is held.
func (r *reader) recvEnd() error {
	c := r.c
	defer c.g.caught()
	if c.g.broken {
		return conn.ErrReset
	}
	return c.core.RecvEnd()
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
				c.receivedUrgent()
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

// delivered ends a use of the RMB element outside of g.mu, of which the program
// has n bytes. g.mu is held.
func (r *reader) delivered(now time.Time, n int) {
	c := r.c
	r.delivering = false
	if c.end.over {
		return
	}
	r.consumed(now, n)
	if c.end.closeAfter && !c.g.broken {
		c.core.Close(now)
	}
}

// consumed tells the core that the program has n bytes more. g.mu is held.
func (r *reader) consumed(now time.Time, n int) {
	c := r.c
	defer c.g.caught()
	c.core.Consumed(now, n)
	c.rxBytes += uint64(n)
}

// mark looks whether the next byte is urgent. One that is apart from the stream
// is taken; one that is inline is the first that can be read, if any can. g.mu
// is held.
func (r *reader) mark(readable bool) (u byte, apart, inline bool) {
	c := r.c
	defer c.g.caught()
	if c.g.broken || !c.core.AtMark() {
		return 0, false, false
	}
	if readable && c.core.UrgentInline() {
		return 0, false, true
	}
	u, err := c.core.Urgent(false)
	return u, err == nil, false
}

// space lends send memory, with g.mu held unless there is an error. It waits until
// there is room for least bytes.
func (w *writer) space(least, most int) (a, b []byte, err error) {
	c := w.c
	for {
		if err := c.barred(&w.deadline); err != nil {
			return nil, nil, c.opError("write", err)
		}
		c.g.mu.Lock()
		a, b, err := w.reserve(least, most)
		if err == nil && len(a)+len(b) >= least {
			return a, b, nil
		}
		if err == nil {
			w.awaitSpace()
		}
		c.g.unlock()
		if err != nil {
			return nil, nil, c.opError("write", err)
		}
		if err := c.wait(w.wake, &w.deadline, w.ready); err != nil {
			return nil, nil, c.opError("write", err)
		}
	}
}

// awaitSpace makes a wake-up follow when more of the send buffer is free. g.mu is
// held.
func (w *writer) awaitSpace() {
	c := w.c
	defer c.g.caught()
	c.core.DropSpace()
	c.core.AwaitSpace()
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (total int, err error) { return c.out.write(p, false) }

func (w *writer) write(p []byte, urgent bool) (total int, err error) {
	c := w.c
	w.mu.Lock()
	defer w.mu.Unlock()
	size := len(p)
	defer func() { c.s.stats.TX(size, total) }()
	w.dropReserve()
	for {
		a, b, err := w.space(min(1, len(p)), len(p))
		if err != nil {
			return total, err
		}
		if len(p) == 0 {
			c.g.unlock()
			return total, nil
		}
		n := min(len(p), len(a)+len(b))
		if n <= inlineCopy {
			copy(b, p[copy(a, p):])
			w.produced(time.Now(), n, urgent && n == len(p))
			c.txBytes += uint64(n)
			c.s.beginPost()
			c.g.unlock()
			c.s.endPost()
		} else {
			c.end.hold()
			c.g.copying++
			c.g.unlock()
			copy(b, p[copy(a, p):])
			c.s.beginPost()
			c.g.do(func(now time.Time) {
				c.g.copying--
				if !c.end.over {
					w.produced(now, n, urgent && n == len(p))
					c.txBytes += uint64(n)
				}
				c.end.release()
			})
			c.s.endPost()
		}
		total += n
		if p = p[n:]; len(p) == 0 {
			return total, nil
		}
	}
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
