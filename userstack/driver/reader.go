// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"io"
	"time"

	"smcr/stats"
	"smcr/userstack/conn"
)

// inlineCopy is the size up to which data is copied under the group's lock. This is cheaper
// than locking twice.
const inlineCopy = 4 << 10

// readable returns what can be read now: data, or an error if no more data comes. If it
// returns neither, the caller has to wait. The group's lock is held.
func (r *Reader) readable() (a, b []byte, err error) {
	c := r.c
	defer c.g.caught()
	if c.End.closed.Load() {
		return nil, nil, conn.ErrClosed
	}
	if c.End.over {
		return nil, nil, overErr(c.End.readErr())
	}
	if r.shut.Load() {
		return nil, nil, cmp.Or(c.End.readErr(), io.EOF)
	}
	if a, b = c.core.RecvData(); len(a) > 0 {
		return a, b, nil
	}
	if c.core.Overlaid() {
		c.core.AbortOverlaid(time.Now())
	}
	return nil, nil, c.core.ReadErr()
}

// received counts a receive of n bytes, when avail bytes could be read.
func (r *Reader) received(n, avail int) {
	st := r.c.g.s.Stats
	st.RX(n)
	if avail >= r.c.core.RecvSize() {
		st.Buffer(stats.RX, stats.Full)
	}
}

// recvEnd returns why no data can follow the data that can be read now. The group's lock is
// held.
func (r *Reader) recvEnd() error {
	c := r.c
	defer c.g.caught()
	if c.g.end.broken {
		return conn.ErrReset
	}
	return c.core.RecvEnd()
}

// consumed tells the core that the program has read n more bytes. The group's lock is held.
func (r *Reader) consumed(now time.Time, n int) {
	c := r.c
	defer c.g.caught()
	c.core.Consumed(now, n)
	c.rxBytes += uint64(n)
}

// delivered ends a use of the RMB element without the group's lock. The program has read n
// bytes of it. The caller has locked the group again.
func (r *Reader) delivered(now time.Time, n int) {
	c := r.c
	r.delivering = false
	if c.End.over {
		return
	}
	r.consumed(now, n)
	r.discard(now)
	if c.End.closeAfter && !c.g.end.broken {
		c.core.Close(now)
	}
}

// Size returns the size of the RMB element in bytes.
func (r *Reader) Size() int { return r.c.core.RecvSize() }

// Read copies data that has arrived to p, which must not be empty. It returns 0 and no error
// if there is no data: Wait tells when there is. The error is io.EOF at the end of the
// stream, or an error of package conn.
func (r *Reader) Read(p []byte) (n int, err error) {
	c, g := r.c, r.c.g
	g.mu.Lock()
	a, b, err := r.readable()
	avail := len(a) + len(b)
	if avail == 0 {
		g.unlock()
		return 0, err
	}
	n = min(len(p), avail)
	g.s.beginPost()
	if n <= inlineCopy {
		copy(p[copy(p, a):], b)
		r.consumed(time.Now(), n)
		g.unlock()
	} else {
		c.End.hold()
		r.delivering = true
		g.unlock()
		copy(p[copy(p, a):], b)
		g.do(func(now time.Time) {
			r.delivered(now, n)
			c.End.release()
		})
	}
	g.s.endPost()
	r.received(n, avail)
	return n, nil
}

// Peek returns data that has arrived, in the RMB element itself, and keeps the element in
// place until EndPeek or Skip. ok is false if there are fewer than n bytes and more can come:
// Wait tells when. If fewer bytes come because the stream ends or an urgent byte follows, err
// is the reason, and the bytes are returned. All other errors come without bytes.
func (r *Reader) Peek(n int) (a, b []byte, ok bool, err error) {
	g := r.c.g
	g.mu.Lock()
	defer g.unlock()
	a, b, err = r.readable()
	if err != nil {
		return nil, nil, true, err
	}
	if len(a)+len(b) < n {
		if err = r.recvEnd(); err == nil || len(a) == 0 {
			return nil, nil, false, nil
		}
	}
	if len(a) > 0 && !r.peeked {
		r.peeked = true
		r.c.End.hold()
	}
	return a, b, true, err
}

// EndPeek ends what Peek has begun. It does nothing without a Peek.
func (r *Reader) EndPeek() {
	if r.peeked {
		r.c.g.do(func(now time.Time) {
			r.peeked = false
			r.c.End.release()
			r.discard(now)
		})
	}
}

// Shut ends the stream for the program: what has arrived and what arrives later is discarded, so
// that the peer can go on, and errors are io.EOF unless the connection was reset. The peer is not
// told. Any goroutine may call it. Bytes that the program has from Peek or Take stay valid, and
// nothing is discarded until it returns them.
func (r *Reader) Shut() {
	c, g := r.c, r.c.g
	r.shut.Store(true)
	g.s.beginPost()
	defer g.s.endPost()
	g.do(r.discard)
	r.tell()
	c.kick()
}

// discard discards what has arrived, if nobody will read it. The group's lock is held.
func (r *Reader) discard(now time.Time) {
	c := r.c
	if !r.shut.Load() || r.peeked || r.delivering || c.End.over || c.g.end.dead || c.g.end.broken {
		return
	}
	for {
		a, b := c.core.RecvData()
		n := len(a) + len(b)
		if n == 0 {
			break
		}
		c.core.Consumed(now, n)
	}
	c.core.AbortOverlaid(now)
}

// Skip discards at most n bytes of the data that has arrived, and ends a Peek. It returns 0
// and no error if there is no data. Its errors are those of Read.
func (r *Reader) Skip(n int) (skipped int, err error) {
	c, g := r.c, r.c.g
	g.mu.Lock()
	a, b, err := r.readable()
	avail := len(a) + len(b)
	if avail == 0 {
		g.unlock()
		return 0, err
	}
	if avail >= c.core.RecvSize() {
		g.s.Stats.Buffer(stats.RX, stats.Full)
	}
	skipped = min(n, avail)
	r.consumed(time.Now(), skipped)
	if r.peeked {
		r.peeked = false
		c.End.release()
	}
	g.s.beginPost()
	g.unlock()
	g.s.endPost()
	return skipped, nil
}

// Piece is data that Take gives to a program.
type Piece struct {
	A, B   []byte // B continues A where the ring begins again
	Urgent bool   // A is one byte, which is urgent
	Apart  bool   // so, and the byte is not in the stream: Taken must not be called

	avail int
}

// Take returns data that has arrived, in the RMB element itself. It is valid until Taken. The
// piece is empty if there is no data. With marks, an urgent byte is a piece of its own. Its
// errors are those of Read.
func (r *Reader) Take(marks bool) (p Piece, err error) {
	g := r.c.g
	g.mu.Lock()
	defer g.unlock()
	if p.A, p.B, err = r.readable(); err != nil {
		return Piece{}, err
	}
	p.avail = len(p.A) + len(p.B)
	if marks {
		u, apart, inline := r.mark(p.avail > 0)
		if apart {
			r.receivedUrgent()
			return Piece{A: []byte{u}, Urgent: true, Apart: true}, nil
		}
		if inline {
			p.A, p.B, p.Urgent = p.A[:1], nil, true
		}
	}
	if len(p.A) > 0 {
		r.c.End.hold()
		r.delivering = true
	}
	return p, nil
}

// Taken ends what Take has begun. The program has read n bytes of the piece.
func (r *Reader) Taken(p Piece, n int) {
	c, g := r.c, r.c.g
	g.s.beginPost()
	defer g.s.endPost()
	g.do(func(now time.Time) {
		r.delivered(now, n)
		c.End.release()
	})
	if n > 0 {
		r.received(n, p.avail)
	}
	if p.Urgent {
		g.s.Stats.Call(stats.Urgent)
	}
}

// overErr returns the error of a connection that has ended without a Close of the program:
// the error of the core, or a reset.
func overErr(err error) error {
	if err == nil || err == io.EOF {
		return conn.ErrReset
	}
	return err
}
