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
func (c *Conn) readable() (a, b []byte, err error) {
	defer c.g.caught()
	if c.closed.Load() {
		return nil, nil, net.ErrClosed
	}
	if c.over {
		return nil, nil, sysError("read", overErr(c.readErr()))
	}
	if a, b = c.core.RecvData(); len(a) > 0 {
		return a, b, nil
	}
	return nil, nil, sysError("read", c.core.ReadErr())
}

// writable tells why nothing can be written. g.mu is held.
func (c *Conn) writable() error {
	defer c.g.caught()
	if c.closed.Load() {
		return net.ErrClosed
	}
	if c.over {
		return sysError("write", overErr(c.writeErr()))
	}
	return sysError("write", c.core.WriteErr())
}

// lend returns send memory, least bytes if there is room for so many, and about
// most: see linkgroup.Conn.SendSpace. produced or dropSpace follows. g.mu is held.
func (c *Conn) lend(least, most int) (a, b []byte, err error) {
	defer c.g.caught()
	if err := c.writable(); err != nil {
		return nil, nil, err
	}
	a, b, err = c.core.SendSpace(least, most)
	full := err == nil && len(a)+len(b) < least
	if full && !c.sendFull {
		c.s.stats.Buffer(stats.TX, stats.Full)
	}
	c.sendFull = full
	return a, b, sysError("write", err)
}

// received counts a receive of n bytes when avail could be read.
func (c *Conn) received(n, avail int) {
	c.s.stats.RX(n)
	if avail >= c.core.RecvSize() {
		c.s.stats.Buffer(stats.RX, stats.Full)
	}
}

// dropSpace ends a loan of lend of which nothing is sent. g.mu is held.
func (c *Conn) dropSpace() {
	defer c.g.caught()
	if !c.g.end.broken {
		c.core.DropSpace()
	}
}

// barred tells why nothing may begin now: the end of the connection comes
// before that of time, as with TCP.
func (c *Conn) barred(dl *deadline) error {
	switch {
	case c.closed.Load():
		return net.ErrClosed
	case dl.expired():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.returnLoan()
	if len(p) == 0 {
		return 0, c.opError("read", c.barred(&c.rdl))
	}
	a, b, err := c.data(1)
	if err != nil {
		c.s.stats.RX(0)
		return 0, err
	}
	n := min(len(p), len(a)+len(b))
	c.s.beginPost()
	if n <= inlineCopy {
		copy(p[copy(p, a):], b)
		c.consumed(time.Now(), n)
		c.g.unlock()
	} else {
		c.hold()
		c.delivering = true
		c.g.unlock()
		copy(p[copy(p, a):], b)
		c.g.do(func(now time.Time) {
			c.delivered(now, n)
			c.unhold()
		})
	}
	c.s.endPost()
	c.received(n, len(a)+len(b))
	return n, nil
}

// data returns what can be read, with g.mu held unless there is an error. It waits
// until it is at least n bytes, or no more can come before it is consumed.
func (c *Conn) data(n int) (a, b []byte, err error) {
	for {
		if err := c.barred(&c.rdl); err != nil {
			return nil, nil, c.opError("read", err)
		}
		c.g.mu.Lock()
		a, b, err := c.readable()
		if err == nil && (len(a)+len(b) >= n || len(a) > 0 && c.recvEnd() != nil) {
			return a, b, nil
		}
		c.g.unlock()
		if err != nil {
			return nil, nil, c.opError("read", err)
		}
		if err := c.wait(c.rwake, &c.rdl, c.rready); err != nil {
			return nil, nil, c.opError("read", err)
		}
	}
}

// recvEnd tells why nothing can come behind what can be read now. g.mu is held.
func (c *Conn) recvEnd() error {
	defer c.g.caught()
	if c.g.end.broken {
		return conn.ErrReset
	}
	return c.core.RecvEnd()
}

// WriteTo implements io.WriterTo: it writes to w straight from the RMB
// element until the peer has said that it sends no more. A w which is an
// [UrgentWriter] gets the urgent bytes at their place in the stream.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.returnLoan()
	uw, _ := w.(UrgentWriter)
	for {
		moved, err := c.carryOut(w)
		if total += moved; err != nil {
			return total, os.NewSyscallError("write", err)
		}
		if err := c.barred(&c.rdl); err != nil {
			return total, c.opError("read", err)
		}
		c.g.mu.Lock()
		a, b, err := c.readable()
		avail, urgent := len(a)+len(b), false
		if uw != nil && err == nil {
			var u byte
			var apart bool
			if u, apart, urgent = c.mark(len(a) > 0); apart {
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
			if err := c.wait(c.rwake, &c.rdl, c.rready); err != nil {
				return total, c.opError("read", err)
			}
			continue
		}
		c.hold()
		c.delivering = true
		c.g.unlock()
		n, werr := c.deliver(w, uw, a, b, urgent)
		total += int64(n)
		if n > 0 {
			c.received(n, avail)
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
func (c *Conn) deliver(w io.Writer, uw UrgentWriter, a, b []byte, urgent bool) (n int, err error) {
	defer func() {
		c.s.beginPost()
		defer c.s.endPost()
		c.g.do(func(now time.Time) {
			c.delivered(now, n)
			c.unhold()
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
func (c *Conn) delivered(now time.Time, n int) {
	c.delivering = false
	if c.over {
		return
	}
	c.consumed(now, n)
	if c.closeAfter && !c.g.end.broken {
		c.core.Close(now)
	}
}

// consumed tells the core that the program has n bytes more. g.mu is held.
func (c *Conn) consumed(now time.Time, n int) {
	defer c.g.caught()
	c.core.Consumed(now, n)
	c.rxBytes += uint64(n)
}

// mark looks whether the next byte is urgent. One that is apart from the stream
// is taken; one that is inline is the first that can be read, if any can. g.mu
// is held.
func (c *Conn) mark(readable bool) (u byte, apart, inline bool) {
	defer c.g.caught()
	if c.g.end.broken || !c.core.AtMark() {
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
func (c *Conn) space(least, most int) (a, b []byte, err error) {
	for {
		if err := c.barred(&c.wdl); err != nil {
			return nil, nil, c.opError("write", err)
		}
		c.g.mu.Lock()
		a, b, err := c.lend(least, most)
		if err == nil && len(a)+len(b) >= least {
			return a, b, nil
		}
		if err == nil {
			c.awaitSpace()
		}
		c.g.unlock()
		if err != nil {
			return nil, nil, c.opError("write", err)
		}
		if err := c.wait(c.wwake, &c.wdl, c.wready); err != nil {
			return nil, nil, c.opError("write", err)
		}
	}
}

// awaitSpace makes a wake-up follow when more of the send buffer is free. g.mu is
// held.
func (c *Conn) awaitSpace() {
	defer c.g.caught()
	c.core.DropSpace()
	c.core.AwaitSpace()
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (total int, err error) { return c.write(p, false) }

func (c *Conn) write(p []byte, urgent bool) (total int, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	size := len(p)
	defer func() { c.s.stats.TX(size, total) }()
	c.dropReserved()
	for {
		a, b, err := c.space(min(1, len(p)), len(p))
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
			c.produced(time.Now(), n, urgent && n == len(p))
			c.txBytes += uint64(n)
			c.s.beginPost()
			c.g.unlock()
			c.s.endPost()
		} else {
			c.hold()
			c.g.mem.copying++
			c.g.unlock()
			copy(b, p[copy(a, p):])
			c.s.beginPost()
			c.g.do(func(now time.Time) {
				c.g.mem.copying--
				if !c.over {
					c.produced(now, n, urgent && n == len(p))
					c.txBytes += uint64(n)
				}
				c.unhold()
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
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.dropReserved()
	ur, _ := r.(UrgentReader)
	for {
		moved, err := c.carryIn(r)
		if total += moved; err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, os.NewSyscallError("read", err)
		}
		a, _, err := c.space(1, 1)
		if err != nil {
			return total, err
		}
		c.hold()
		c.g.unlock()
		n, lost, rerr := c.fill(r, ur, a)
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
func (c *Conn) fill(r io.Reader, ur UrgentReader, a []byte) (n int, lost bool, err error) {
	urgent := false
	defer func() {
		c.s.beginPost()
		defer c.s.endPost()
		c.g.do(func(now time.Time) {
			// What the peer did not wait for is lost, as with TCP.
			lost = n > 0 && errors.Is(c.writeErr(), conn.ErrPeerClosed)
			switch {
			case c.over:
			case n > 0:
				c.produced(now, n, urgent)
				c.txBytes += uint64(n)
			default:
				c.dropSpace()
			}
			c.unhold()
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
