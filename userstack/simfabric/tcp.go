// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Retransmission of TCP segments: the first and the longest wait, and how often a segment
// is sent again before the connection fails (like net.ipv4.tcp_retries2).
const (
	tcpRTO     = 200 * time.Millisecond
	tcpMaxRTO  = 120 * time.Second
	tcpRetries = 15
)

// TCPConn is one end of a TCP connection. It implements net.Conn. SetLinger and
// CloseWrite do the same as those of *net.TCPConn.
type TCPConn struct {
	w             *World
	n             *netdev
	local, remote *net.TCPAddr
	peer          *TCPConn
	rng           *rand.Rand

	// The fields below are guarded by w.mu, which cond uses.
	cond       *sync.Cond
	buf        []byte // received but not read
	eof        bool   // FIN has arrived
	err        error  // why the connection has failed: ECONNRESET or ETIMEDOUT
	flight     int    // bytes written that the peer has not read
	finSent    bool   // FIN was sent, so writes fail
	closed     bool
	linger0    bool
	segs       []segment // on the way to the peer
	armed      bool
	tries      int
	lastArrive time.Time
	rdl, wdl   deadline
}

// segment is data, FIN or RST.
type segment struct {
	at   time.Time
	data []byte
	fin  bool
	rst  bool
}

type deadline struct {
	t     time.Time
	timer *time.Timer
}

func (d *deadline) passed(now time.Time) bool { return !d.t.IsZero() && !now.Before(d.t) }

// Connect makes an established TCP connection between addresses of two hosts, and returns
// both ends. Port 0 means any port.
func (w *World) Connect(from, to netip.AddrPort) (client, server *TCPConn, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, b := w.addrs[from.Addr()], w.addrs[to.Addr()]
	if a == nil || b == nil || !a.reaches(b) {
		return nil, nil, fmt.Errorf("simfabric: connect %s to %s: %w", from, to, syscall.EHOSTUNREACH)
	}
	end := func(n *netdev, ap netip.AddrPort) *TCPConn {
		w.port++
		if ap.Port() == 0 {
			ap = netip.AddrPortFrom(ap.Addr(), uint16(w.port))
		}
		return &TCPConn{w: w, n: n, local: net.TCPAddrFromAddrPort(ap), cond: sync.NewCond(&w.mu), rng: w.random(atTCP, w.port)}
	}
	client, server = end(a, from), end(b, to)
	client.peer, server.peer = server, client
	client.remote, server.remote = server.local, client.local
	return client, server, nil
}

// LocalAddr implements net.Conn; the address is a *net.TCPAddr.
func (c *TCPConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *TCPConn) RemoteAddr() net.Addr { return c.remote }

func (c *TCPConn) opError(op string, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// Read implements net.Conn.
func (c *TCPConn) Read(p []byte) (int, error) {
	c.w.mu.Lock()
	defer c.w.unlock()
	for {
		switch {
		case c.closed:
			return 0, c.opError("read", net.ErrClosed)
		case c.rdl.passed(time.Now()):
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		case len(c.buf) > 0:
			return c.take(p), nil
		case c.err != nil:
			return 0, c.opError("read", c.err)
		case c.eof:
			return 0, io.EOF
		}
		c.cond.Wait()
	}
}

// ReadNow reads bytes that have arrived. It does not wait, whatever the deadline is, and
// returns 0 if there are none.
func (c *TCPConn) ReadNow(p []byte) int {
	c.w.mu.Lock()
	defer c.w.unlock()
	return c.take(p)
}

// take takes bytes out of the receive buffer. The world is locked.
func (c *TCPConn) take(p []byte) int {
	n := copy(p, c.buf)
	c.buf = c.buf[n:]
	c.peer.flight -= n
	c.peer.cond.Broadcast()
	return n
}

// Write implements net.Conn.
func (c *TCPConn) Write(p []byte) (total int, err error) {
	c.w.mu.Lock()
	defer c.w.unlock()
	for {
		now := time.Now()
		switch {
		case c.closed:
			return total, c.opError("write", net.ErrClosed)
		case c.wdl.passed(now):
			return total, c.opError("write", os.ErrDeadlineExceeded)
		case c.err != nil:
			return total, c.opError("write", c.err)
		case c.finSent:
			return total, c.opError("write", syscall.EPIPE)
		case len(p) == 0:
			return total, nil
		}
		if n := min(len(p), c.w.cfg.TCPWindow-c.flight); n > 0 {
			// The lengths are random: no reader may rely on the boundaries of writes.
			n = 1 + c.rng.IntN(n)
			c.send(now, segment{data: append([]byte(nil), p[:n]...)})
			c.flight += n
			total += n
			p = p[n:]
			continue
		}
		c.cond.Wait()
	}
}

// send sends s. mu is held.
func (c *TCPConn) send(now time.Time, s segment) {
	c.lastArrive = c.w.arrival(c.rng, now, c.lastArrive)
	s.at = c.lastArrive
	c.segs = append(c.segs, s)
	c.arm()
}

func (c *TCPConn) arm() {
	if c.armed || len(c.segs) == 0 {
		return
	}
	c.armed = true
	c.w.at(c.segs[0].at, func(now time.Time) {
		c.armed = false
		c.arrive(now)
		c.arm()
	})
}

// arrive delivers the first segment on the way, if it is due.
func (c *TCPConn) arrive(now time.Time) {
	if len(c.segs) == 0 || c.segs[0].at.After(now) {
		return
	}
	s := &c.segs[0]
	if !c.n.reaches(c.peer.n) {
		if c.tries >= tcpRetries || s.rst { // RST is not sent again
			c.segs = nil
			c.fail(syscall.ETIMEDOUT)
			return
		}
		s.at = now.Add(min(tcpRTO<<c.tries, tcpMaxRTO))
		c.tries++
		return
	}
	c.tries = 0
	p := c.peer
	c.alterAndObserve(p, s)
	switch {
	case s.rst:
		c.segs = nil
		p.segs = nil
		p.buf = nil
		p.fail(syscall.ECONNRESET)
		return
	case p.closed && len(s.data) > 0:
		p.send(now, segment{rst: true})
	case p.err != nil || p.closed:
	default:
		p.buf = append(p.buf, s.data...)
		p.eof = p.eof || s.fin
		p.cond.Broadcast()
	}
	c.segs = c.segs[1:]
}

// alterAndObserve calls AlterTCP and Observe for s, which arrives at p.
func (c *TCPConn) alterAndObserve(p *TCPConn, s *segment) {
	from, to := c.where(), p.where()
	if c.w.cfg.AlterTCP != nil && len(s.data) > 0 {
		n := len(s.data)
		s.data = c.w.cfg.AlterTCP(from, to, s.data)
		c.flight += len(s.data) - n
	}
	if c.w.cfg.Observe == nil {
		return
	}
	e := Event{Kind: EventTCP, From: from, To: to, Data: s.data}
	switch {
	case s.rst:
		e.Note = "RST"
	case s.fin:
		e.Note = "FIN"
	}
	c.w.observe(&e)
}

// Probe reports whether data on the way to the peer is not acknowledged, and returns the
// first bytes that can be read, without reading them.
func (c *TCPConn) Probe() (unacked bool, first []byte) {
	c.w.mu.Lock()
	defer c.w.unlock()
	return len(c.segs) > 0, slices.Clone(c.buf[:min(len(c.buf), probeLen)])
}

// probeLen is the largest number of bytes that [TCPConn.Probe] returns.
const probeLen = 64

func (c *TCPConn) where() Place { return Place{c.n.host.name, c.n.Name, uint32(c.local.Port)} }

// fail ends the connection at this side.
func (c *TCPConn) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.cond.Broadcast()
}

// Close implements net.Conn: FIN, or RST if data is unread or the linger time
// is 0.
func (c *TCPConn) Close() error {
	c.w.mu.Lock()
	defer c.w.unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	for _, d := range []*deadline{&c.rdl, &c.wdl} {
		if d.timer != nil {
			d.timer.Stop()
		}
	}
	c.cond.Broadcast()
	now := time.Now()
	switch {
	case c.err != nil:
	case c.linger0 || len(c.buf) > 0:
		if c.linger0 {
			c.segs = nil
		}
		c.send(now, segment{rst: true})
	case !c.finSent:
		c.send(now, segment{fin: true})
	}
	c.buf = nil
	return nil
}

// CloseWrite sends FIN.
func (c *TCPConn) CloseWrite() error {
	c.w.mu.Lock()
	defer c.w.unlock()
	switch {
	case c.closed:
		return c.opError("close", net.ErrClosed)
	case c.err != nil:
		return c.opError("shutdown", syscall.ENOTCONN)
	case !c.finSent:
		c.finSent = true
		c.send(time.Now(), segment{fin: true})
		c.cond.Broadcast()
	}
	return nil
}

// SetLinger with 0 makes Close reset the connection.
func (c *TCPConn) SetLinger(sec int) error {
	c.w.mu.Lock()
	defer c.w.unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.linger0 = sec == 0
	return nil
}

// SetDeadline implements net.Conn.
func (c *TCPConn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.rdl, &c.wdl) }

// SetReadDeadline implements net.Conn.
func (c *TCPConn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.rdl) }

// SetWriteDeadline implements net.Conn.
func (c *TCPConn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.wdl) }

func (c *TCPConn) setDeadlines(t time.Time, ds ...*deadline) error {
	c.w.mu.Lock()
	defer c.w.unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range ds {
		if d.timer != nil {
			d.timer.Stop()
			d.timer = nil
		}
		d.t = t
		if dur := time.Until(t); !t.IsZero() && dur > 0 {
			d.timer = time.AfterFunc(dur, func() {
				c.w.mu.Lock()
				defer c.w.unlock()
				c.cond.Broadcast()
			})
		}
	}
	c.cond.Broadcast()
	return nil
}
