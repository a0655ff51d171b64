// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"io"
	"os"

	"smcr/userstack/conn"
	"smcr/userstack/driver"
)

// deliver writes a piece to w. It also gives the piece back if w panics.
func (c *Conn) deliver(w io.Writer, uw UrgentWriter, p driver.Piece) (n int, err error) {
	defer func() { c.d.In.Taken(p, n) }()
	if p.Urgent {
		n, err = uw.WriteUrgent(p.A)
	} else {
		n, err = w.Write(p.A)
	}
	if err == nil && len(p.B) > 0 {
		var m int
		m, err = w.Write(p.B)
		n += m
	}
	return n, err
}

// WriteTo implements io.WriterTo. It writes to w directly from the RMB element, until the
// peer has sent everything. If w is an [UrgentWriter], it gets the urgent bytes at their
// place in the stream.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.d.In.EndPeek()
	uw, marks := w.(UrgentWriter)
	for {
		moved, err := c.d.Carried.CarryOut(w)
		if total += moved; err != nil {
			return total, os.NewSyscallError("write", err)
		}
		if err := c.d.In.Barred(); err != nil {
			return total, c.readError(err)
		}
		p, err := c.d.In.Take(marks)
		switch {
		case err == io.EOF:
			return total, nil
		case err != nil:
			return total, c.readError(err)
		case p.Apart:
			if _, err := uw.WriteUrgent(p.A); err != nil {
				return total, err
			}
			continue
		case len(p.A) == 0:
			if err := c.d.In.Wait(); err != nil {
				return total, c.readError(err)
			}
			continue
		}
		n, err := c.deliver(w, uw, p)
		if total += int64(n); err != nil {
			return total, err
		}
	}
}

// fill reads from r into a piece of send memory. It also gives the piece back if r panics.
// lost means that the peer has closed the connection before the data could be sent.
func (c *Conn) fill(r io.Reader, ur UrgentReader, a []byte) (n int, lost bool, err error) {
	urgent := false
	defer func() { lost = c.d.Out.Fill(n, urgent) }()
	if ur != nil {
		n, urgent, err = ur.ReadMark(a)
	} else {
		n, err = r.Read(a)
	}
	n = max(n, 0)
	return n, false, err
}

// ReadFrom implements io.ReaderFrom. It reads from r directly into send memory until r ends.
// If r is an [UrgentReader], it may have urgent bytes.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.d.Out.EndReserve()
	ur, _ := r.(UrgentReader)
	for {
		moved, err := c.d.Carried.CarryIn(r)
		if total += moved; err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, os.NewSyscallError("read", err)
		}
		a, err := c.room()
		if err != nil {
			return total, err
		}
		n, lost, rerr := c.fill(r, ur, a)
		if lost { // TCP does the same
			return total, c.writeError(conn.ErrReset)
		}
		if n > 0 {
			c.stats.TX(n, n)
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

// room waits for a piece of send memory.
func (c *Conn) room() ([]byte, error) {
	for {
		err := c.d.Out.Barred()
		if err == nil {
			var a []byte
			if a, err = c.d.Out.Space(); len(a) > 0 {
				return a, nil
			}
		}
		if err == nil {
			err = c.d.Out.Wait()
		}
		if err != nil {
			return nil, c.writeError(err)
		}
	}
}
