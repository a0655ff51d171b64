// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"smcr/userstack"
	"smcr/userstack/conn"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
)

// simPair is one connection: a program at each end.
type simPair struct {
	s       *simulation
	id      int
	from    time.Time
	ends    [2]*simEnd // client, server
	sure    bool       // it must end in order, with all bytes delivered
	tainted bool       // one host lies or stops, so any bytes may arrive
}

// simEnd is a program at one end of a connection. It never blocks: it acts when the
// connection has signalled it, as an event of the world.
type simEnd struct {
	p     *simPair
	side  int // 0 client, 1 server
	host  *simHost
	stack *userstack.Stack
	tcp   *simfabric.TCPConn
	other *simEnd

	cancel context.CancelFunc // of the rendezvous
	done   atomic.Bool        // the rendezvous is over
	c      *userstack.Conn
	io     simIO     // valid with c
	relay  *simRelay // io, if the engine carries the bytes
	err    error

	// How the program behaves.
	total      int64 // bytes to write
	chunk      int
	slow       time.Duration // longest pause before the next piece
	closeEarly bool          // Close in place of CloseWrite
	abortAt    int64         // reset after this number of bytes in both directions; 0 means never
	cutTCP     bool          // reset the TCP connection below instead of the connection
	urgent     bool          // some of the data is urgent
	afterPeer  bool          // end the stream only after the end of the peer's
	untilReset bool          // end the stream only after the peer's reset
	writesOn   bool          // after the end of the peer's stream, write until that fails
	endsRough  bool          // reset the connection behind the end of the stream
	roughAfter time.Duration // so long after; 0 means right behind

	wrote, read int64
	wdone, eof  bool
	acted       bool
	closed      bool
	rough       bool // the program has aborted
	cut         bool // so, and the relay must reset the connection
	lost        bool // the program has written what the peer, which has closed, does not take
	queued      bool
	inline      bool // urgent bytes stay in the stream (SO_OOBINLINE)
	over        bool
	rerr, werr  error
	end         error
}

// simByte returns the byte at a position of a stream.
func simByte(id, side int, pos int64) byte {
	x := uint64(pos)*0x9E3779B97F4A7C15 + uint64(id)*0xD1B54A32D192ED03 + uint64(side)*0x2545F4914F6CDD1D
	return byte(x >> 56)
}

func (e *simEnd) name() string { return e.host.name }

// chooseBehaviour chooses the behaviour of the two programs.
func (p *simPair) chooseBehaviour(gentle bool) {
	r := p.s.rng
	for _, e := range p.ends {
		switch r.IntN(4) {
		case 0:
			e.total = int64(r.IntN(50))
		case 1:
			e.total = int64(r.IntN(4 << 10))
		case 2:
			e.total = int64(r.IntN(60 << 10))
		}
		e.chunk = 1 + r.IntN(20<<10)
		if r.IntN(4) == 0 {
			e.chunk = 1 + r.IntN(200)
			e.total = min(e.total, 3000)
		}
		if r.IntN(3) == 0 {
			e.slow = time.Duration(1+r.IntN(3000)) * time.Microsecond
		}
		e.urgent = r.IntN(4) == 0
		if gentle {
			continue
		}
		e.closeEarly = r.IntN(6) == 0
		if r.IntN(10) == 0 {
			e.abortAt = 1 + int64(r.IntN(40<<10))
			e.cutTCP = r.IntN(3) == 0
		}
	}
	p.chooseEnds(gentle)
}

// chooseEnds chooses how the streams of the two programs end. It has a source of its own, so that the rest of a
// history does not depend on it.
func (p *simPair) chooseEnds(gentle bool) {
	r := rand.New(rand.NewPCG(p.s.seed, 0x656e6473<<8+uint64(p.id)))
	if r.IntN(3) == 0 {
		p.ends[r.IntN(2)].afterPeer = true
	}
	for _, e := range p.ends {
		// Two programs must not wait for each other.
		e.writesOn = e.other.closeEarly && !e.other.afterPeer && !e.other.writesOn && r.IntN(2) == 0
	}
	for _, e := range p.ends {
		if r.IntN(8) > 0 || gentle || e.closeEarly || e.writesOn || e.other.endsRough {
			continue
		}
		e.endsRough = true
		if r.IntN(2) == 0 {
			e.roughAfter = time.Duration(1 + r.Int64N(int64(20*time.Millisecond)))
		}
		e.other.untilReset = !e.afterPeer && !e.other.closeEarly && r.IntN(2) == 0
	}
}

// launch starts the rendezvous. Both sides run in goroutines, because they block; the
// programs do not block.
func (p *simPair) launch(timeout time.Duration) {
	run := func(e *simEnd, f func(context.Context, userstack.TCPConn) (*userstack.Conn, error)) {
		// Each side has its own context: with a shared one, the order of their ends would
		// be random.
		timeout += time.Microsecond
		var ctx context.Context
		ctx, e.cancel = context.WithTimeout(context.Background(), timeout)
		go e.rendezvous(ctx, f)
	}
	run(p.ends[0], p.ends[0].stack.Client)
	// The server starts later, so that the time limits of both never end together.
	p.s.w.After(p.s.some(50*time.Microsecond), func() { run(p.ends[1], p.ends[1].stack.Server) })
}

func (e *simEnd) rendezvous(ctx context.Context, f func(context.Context, userstack.TCPConn) (*userstack.Conn, error)) {
	e.c, e.err = f(ctx, e.tcp)
	if e.err != nil {
		e.c = nil
		e.tcp.Close() // a real program would use the TCP connection
		if e.relay != nil {
			_ = e.relay.sock.Close()
		}
	} else if e.io = (simDirect{e.c, inspect(e.stack)}); e.relay != nil {
		e.io, e.inline = e.relay, true
		e.relay.start(e.c)
	}
	e.done.Store(true)
}

// wanted reports whether there is a reason for the program to act.
func (e *simEnd) wanted() bool {
	if !e.done.Load() || e.over || e.queued {
		return false
	}
	if e.c == nil {
		return true
	}
	return e.io.Woken() || !e.acted || e.io.Over()
}

// act reads and writes once.
func (e *simEnd) act() {
	e.queued = false
	e.acted = e.acted || e.c != nil
	s := e.p.s
	if e.over || s.ending {
		return
	}
	if e.c == nil {
		e.finish(e.err)
		return
	}
	if e.io.Over() {
		e.drain()
		e.finish(e.c.Err())
		return
	}
	if e.closed {
		return
	}
	if e.abortAt > 0 && e.wrote+e.read >= e.abortAt {
		if e.cutTCP {
			s.trace.notef("%s program %d cuts TCP", e.name(), e.p.id)
			_ = e.tcp.SetLinger(0)
			e.tcp.Close()
			e.rough, e.abortAt = true, 0
			return
		}
		e.abort()
		return
	}
	if !e.inline {
		e.inline = true
		if err := e.c.SetOOBInline(true); err != nil {
			s.fail("%s connection %d: SetOOBInline: %v", e.name(), e.p.id, err)
		}
	}
	again := e.readSome()
	again = e.writeSome() || again
	if e.wdone && (e.eof || e.rerr != nil) || e.werr != nil && e.rerr != nil {
		e.close()
		return
	}
	if again {
		e.wake()
	}
}

// abort resets the connection. If one of its streams had not ended before, the peer must hear of that.
func (e *simEnd) abort() {
	if e.closed || e.over || e.p.s.ending {
		return
	}
	e.p.s.trace.notef("%s program %d aborts: wrote %d, read %d", e.name(), e.p.id, e.wrote, e.read)
	e.rough, e.closed = true, true
	e.cut = e.relay != nil && e.relay.Open()
	e.io.Abort()
}

func (e *simEnd) close() {
	if !e.closed {
		e.p.s.trace.notef("%s program %d closes: wrote %d, read %d", e.name(), e.p.id, e.wrote, e.read)
		e.closed = true
		e.io.Close()
	}
}

// wake makes the program act soon.
func (e *simEnd) wake() {
	if e.queued {
		return
	}
	e.queued = true
	s := e.p.s
	d := time.Duration(1 + s.rng.IntN(20000))
	if e.slow > 0 {
		d += time.Duration(s.rng.Int64N(int64(e.slow)))
	}
	s.w.After(d, e.act)
}

func (e *simEnd) readSome() bool {
	if e.eof || e.rerr != nil {
		return false
	}
	n, err := e.io.Readable()
	if err == io.EOF {
		e.sawEnd()
		return true
	}
	if err != nil {
		e.rerr = err
		return true
	}
	if n == 0 {
		return false
	}
	buf := e.p.s.buf[:min(n, 1+e.p.s.rng.IntN(e.chunk))]
	m, err := e.io.Read(buf)
	if err != nil || m != len(buf) {
		e.p.s.fail("%s connection %d: read %d of %d bytes that are there: %v", e.name(), e.p.id, m, len(buf), err)
		return false
	}
	e.check(buf)
	return true
}

// check compares received bytes with the stream.
func (e *simEnd) check(b []byte) {
	if !e.p.tainted {
		for i := range b {
			pos := e.read + int64(i)
			if want := simByte(e.p.id, 1-e.side, pos); b[i] != want || pos >= e.other.wrote {
				e.p.s.fail("%s connection %d: byte %d is %#02x, the peer wrote %#02x and %d bytes in all", e.name(), e.p.id, pos, b[i], want, e.other.wrote)
				return
			}
		}
	}
	e.read += int64(len(b))
}

// sawEnd checks that the end comes after all bytes that the other program wrote.
func (e *simEnd) sawEnd() {
	e.eof = true
	if !e.p.tainted && e.read != e.other.wrote {
		e.p.s.fail("%s connection %d: the end of the stream after %d of %d bytes", e.name(), e.p.id, e.read, e.other.wrote)
	}
}

func (e *simEnd) writeSome() bool {
	if e.wdone {
		return false
	}
	if e.wrote >= e.total && (!e.writesOn || !e.eof) {
		if e.rerr == nil && (e.untilReset || (e.afterPeer || e.writesOn) && !e.eof) {
			return false
		}
		e.wdone = true
		if e.closeEarly {
			e.rough = true
			e.close()
		} else if err := e.io.CloseWrite(); err != nil {
			e.p.s.fail("%s connection %d: CloseWrite: %v", e.name(), e.p.id, err)
		} else if e.endsRough && e.roughAfter == 0 {
			e.abort()
		} else if e.endsRough {
			e.p.s.w.After(e.roughAfter, e.abort)
		}
		return true
	}
	n, err := e.io.Writable()
	if err != nil {
		e.werr, e.wdone = err, true
		return true
	}
	if n == 0 {
		return false
	}
	most := int64(e.chunk)
	if e.wrote < e.total {
		most = e.total - e.wrote
	}
	buf := e.p.s.buf[:min(int64(n), int64(1+e.p.s.rng.IntN(e.chunk)), most)]
	for i := range buf {
		buf[i] = simByte(e.p.id, e.side, e.wrote+int64(i))
	}
	// Counted before Write, because the peer may have them before Write returns.
	e.wrote += int64(len(buf))
	e.lost = e.lost || e.relay != nil && e.peerClosed()
	write := e.io.Write
	if e.urgent && e.other.inline && e.p.s.rng.IntN(6) == 0 {
		write = e.io.WriteUrgent // the last byte
	}
	if m, err := write(buf); err != nil || m != len(buf) {
		e.p.s.fail("%s connection %d: wrote %d of %d bytes for which there was room: %v", e.name(), e.p.id, m, len(buf), err)
	}
	return true
}

// peerClosed reports whether the stack knows that the peer has closed the connection.
func (e *simEnd) peerClosed() (is bool) {
	inspect(e.stack).View(e.c, func(core *linkgroup.Conn) { is = errors.Is(core.WriteErr(), conn.ErrPeerClosed) })
	return is
}

// drain reads once more after the end, and checks that the end fits what was received.
func (e *simEnd) drain() {
	if e.rerr != nil || e.eof || e.closed {
		return
	}
	n, err := e.io.Readable()
	for ; n > 0 && e.relay != nil; n, err = e.io.Readable() { // a socketpair keeps data after the end
		m, _ := e.io.Read(e.p.s.buf[:min(n, len(e.p.s.buf))])
		e.check(e.p.s.buf[:m])
	}
	if err == io.EOF {
		e.sawEnd()
	}
}

// finish records the end of the connection on this side.
func (e *simEnd) finish(err error) {
	s := e.p.s
	e.over, e.end = true, err
	switch {
	case err != nil || e.p.tainted:
	case e.cut:
		s.fail("%s connection %d ended in order although the program has reset it", e.name(), e.p.id)
	case e.lost:
		s.fail("%s connection %d ended in order although the peer did not take what the program wrote", e.name(), e.p.id)
	}
	if err != nil {
		s.trace.notef("%s connection %d is over: wrote %d, read %d: %v", e.name(), e.p.id, e.wrote, e.read, err)
	} else {
		s.trace.notef("%s connection %d is over: wrote %d, read %d", e.name(), e.p.id, e.wrote, e.read)
	}
	if e.c != nil && !e.closed {
		e.closed = true
		e.io.Close()
	}
	if e.other.over {
		s.pairOver(e.p)
	}
}

// judge checks how the connection ended.
func (p *simPair) judge() {
	if p.tainted {
		return
	}
	a, b := p.ends[0], p.ends[1]
	rough := a.rough || b.rough
	orderly := a.c != nil && b.c != nil && a.end == nil && b.end == nil
	if p.sure && !orderly && !rough {
		p.s.fail("connection %d ended with %v at the client and %v at the server although nothing failed", p.id, a.end, b.end)
		return
	}
	if !orderly || rough {
		return
	}
	for _, e := range p.ends {
		if e.read != e.other.total {
			p.s.fail("%s connection %d ended in order after %d of %d bytes", e.name(), p.id, e.read, e.other.total)
		}
	}
}
