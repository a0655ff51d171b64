// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"time"

	"smcr/stats"
	"smcr/userstack/conn"
)

// writable returns why nothing can be written, or nil. The group's lock is held.
func (w *Writer) writable() error {
	c := w.c
	defer c.g.caught()
	if c.End.closed.Load() {
		return conn.ErrClosed
	}
	if c.End.over {
		return overErr(c.End.writeErr())
	}
	return c.core.WriteErr()
}

// Sending reports whether there is something to be sent that the peer has room for.
func (w *Writer) Sending() (is bool) {
	g := w.c.g
	g.do(func(time.Time) { is = !g.end.dead && !w.c.End.over && w.c.core.Sending() })
	return is
}

// produced tells the core about n more bytes in the send buffer. The group's lock is held.
func (w *Writer) produced(now time.Time, n int, urgent bool) {
	c := w.c
	defer c.g.caught()
	if c.g.end.broken {
		return
	}
	if urgent {
		c.g.s.Stats.Call(stats.Urgent)
		c.core.ProducedUrgent(now, n)
		return
	}
	c.core.Produced(now, n)
}

// placed is produced for a caller that has more data. The caller then calls produced. The
// group's lock is held.
func (w *Writer) placed(n int) {
	c := w.c
	defer c.g.caught()
	if !c.g.end.broken {
		c.core.Placed(n)
	}
}

// reserve returns send memory: at least least bytes, and about most (see SendSpace of package
// conn). It is empty without room. produced or dropSpace must follow. The group's lock is
// held.
func (w *Writer) reserve(least, most int) (a, b []byte, err error) {
	c := w.c
	defer c.g.caught()
	if err := w.writable(); err != nil {
		return nil, nil, err
	}
	a, b, err = c.core.SendSpace(least, most)
	full := err == nil && len(a)+len(b) < least
	if full && !w.full {
		c.g.s.Stats.Buffer(stats.TX, stats.Full)
	}
	w.full = full
	return a, b, err
}

// dropSpace frees what reserve has returned. Nothing of it is sent. The group's lock is held.
func (w *Writer) dropSpace() {
	c := w.c
	defer c.g.caught()
	if !c.g.end.broken {
		c.core.DropSpace()
	}
}

// awaitSpace requests a wake-up for the time when more of the send buffer is free. The
// group's lock is held.
func (w *Writer) awaitSpace() {
	c := w.c
	defer c.g.caught()
	c.core.DropSpace()
	c.core.AwaitSpace()
}

// space returns send memory, with the group's lock held, if there is room for least bytes.
// Otherwise ok is false, and the lock is not held. If there is no error then, Wait tells when
// there is room.
func (w *Writer) space(least, most int) (a, b []byte, ok bool, err error) {
	g := w.c.g
	g.mu.Lock()
	a, b, err = w.reserve(least, most)
	if err == nil && len(a)+len(b) >= least {
		return a, b, true, nil
	}
	if err == nil {
		w.awaitSpace()
	}
	g.unlock()
	return nil, nil, false, err
}

// Size returns the size of the send buffer in bytes.
func (w *Writer) Size() int { return w.c.core.SendSize() }

// Write writes as many bytes of p as there is room for, and returns how many. With urgent,
// the last byte of p is urgent. It returns 0 and no error if there is no room: Wait tells
// when there is. For an empty p, it only reports whether the program could write. The error
// is one of package conn.
func (w *Writer) Write(p []byte, urgent bool) (n int, err error) {
	c, g := w.c, w.c.g
	a, b, ok, err := w.space(min(1, len(p)), len(p))
	if !ok {
		return 0, err
	}
	if len(p) == 0 {
		g.unlock()
		return 0, nil
	}
	n = min(len(p), len(a)+len(b))
	if n <= inlineCopy {
		copy(b, p[copy(a, p):])
		w.produced(time.Now(), n, urgent && n == len(p))
		c.txBytes += uint64(n)
		g.s.beginPost()
		g.unlock()
		g.s.endPost()
		return n, nil
	}
	c.End.hold()
	g.mem.copying++
	g.unlock()
	copy(b, p[copy(a, p):])
	g.s.beginPost()
	g.do(func(now time.Time) {
		g.mem.copying--
		if !c.End.over {
			w.produced(now, n, urgent && n == len(p))
			c.txBytes += uint64(n)
		}
		c.End.release()
	})
	g.s.endPost()
	return n, nil
}

// Reserve returns send memory for at least n bytes, and keeps it in place until Commit or
// EndReserve. ok is false if there is no room: Wait tells when there is. The error is one of
// package conn.
func (w *Writer) Reserve(n int) (a, b []byte, ok bool, err error) {
	c := w.c
	if a, b, ok, err = w.space(n, c.core.SendChunk()); !ok {
		return nil, nil, false, err
	}
	if w.reserved == 0 && len(a) > 0 {
		c.End.hold()
	}
	w.reserved = len(a) + len(b)
	c.g.unlock()
	return a, b, true, nil
}

// Reserved returns how many bytes the program has from Reserve.
func (w *Writer) Reserved() int { return w.reserved }

// EndReserve frees what Reserve has returned. It does nothing without a Reserve. Nothing is
// sent.
func (w *Writer) EndReserve() {
	c := w.c
	if w.reserved > 0 {
		w.reserved = 0
		c.g.do(func(time.Time) {
			w.dropSpace()
			c.End.release()
		})
	}
}

// Commit sends the first n bytes of the memory from Reserve, and frees the rest. n is at
// least 1 and at most Reserved. After an error nothing is sent. The error is one of package
// conn.
func (w *Writer) Commit(n int) error {
	c, g := w.c, w.c.g
	g.mu.Lock()
	err := w.writable()
	if err == nil {
		w.produced(time.Now(), n, false)
		c.txBytes += uint64(n)
	} else if !c.End.over {
		w.dropSpace()
	}
	w.reserved = 0
	c.End.release()
	g.s.beginPost()
	g.unlock()
	g.s.endPost()
	return err
}

// Space returns a piece of send memory, and keeps it in place until Fill. It is empty if
// there is no room: Wait tells when there is. The error is one of package conn.
func (w *Writer) Space() (a []byte, err error) {
	c := w.c
	a, _, ok, err := w.space(1, 1)
	if !ok {
		return nil, err
	}
	c.End.hold()
	c.g.unlock()
	return a, nil
}

// Fill sends the first n bytes of the memory from Space, and frees the rest. With urgent, the
// last of the n bytes is urgent. lost means that the peer has closed the connection and does
// not receive the bytes.
func (w *Writer) Fill(n int, urgent bool) (lost bool) {
	c, g := w.c, w.c.g
	g.s.beginPost()
	defer g.s.endPost()
	g.do(func(now time.Time) {
		lost = n > 0 && errors.Is(c.End.writeErr(), conn.ErrPeerClosed)
		switch {
		case c.End.over:
		case n > 0:
			w.produced(now, n, urgent)
			c.txBytes += uint64(n)
		default:
			w.dropSpace()
		}
		c.End.release()
	})
	return lost
}
