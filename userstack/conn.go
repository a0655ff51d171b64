// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"smcr/stats"
	"smcr/userstack/linkgroup"
	"smcr/userstack/wire"
)

// Conn is an SMC-R connection. It implements net.Conn and behaves as a
// *net.TCPConn does, half close included.
type Conn struct {
	s      *Stack
	g      *group
	core   *linkgroup.Conn
	tcp    TCPConn
	client bool
	ino    uint64 // for listings
	owner  Owner
	local  net.Addr
	remote net.Addr

	ready        chan error // outcome of announcing the RMB, buffered
	rwake, wwake chan struct{}
	uwake        chan struct{} // urgent data, for the application
	rmu, wmu     sync.Mutex    // one reader, one writer at a time
	rdl, wdl     deadline
	closed       atomic.Bool   // Close or Abort was called
	lingerZero   atomic.Bool   // Close resets
	done         chan struct{} // closed when the connection has ended
	endOnce      sync.Once
	err          error // how it ended; valid after done

	// Guarded by g.mu: the core takes back the buffers once the connection
	// has ended and no goroutine copies to or from them.
	holds            int
	delivering       bool // WriteTo is handing out data that is not consumed yet
	closeAfter       bool // Close came meanwhile
	over             bool
	rxBytes, txBytes uint64
}

// hold keeps the buffers in place while they are used outside g.mu, which
// the caller holds now and when it calls unhold.
func (c *Conn) hold() { c.holds++ }

func (c *Conn) unhold() {
	if c.holds--; c.holds == 0 && c.over {
		c.core.Release()
	}
}

// inlineCopy is the size up to which data is copied under the group's lock:
// cheaper than taking it twice.
const inlineCopy = 4 << 10

// newConn allocates the local part of a connection. g.mu is held.
func (g *group) newConn(now time.Time, h *clc, client bool) (*Conn, error) {
	s, tcp := g.s, h.tcp
	rmb, snd := g.rmbBytes, g.sendBytes
	rmbe := min(wire.BufSizeFor(max(s.cfg.RecvBuf, h.recv)), wire.MaxBufSizeRFC)
	core, err := g.core.NewConn(now, uint8(rmbe), s.cfg.SendBuf)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		s: s, g: g, core: core, tcp: tcp, client: client, owner: h.owner, ino: s.lastSock.Add(1),
		local: tcp.LocalAddr(), remote: tcp.RemoteAddr(),
		ready: make(chan error, 1), rwake: make(chan struct{}, 1), wwake: make(chan struct{}, 1), uwake: make(chan struct{}, 1),
		done: make(chan struct{}), rdl: makeDeadline(), wdl: makeDeadline(),
	}
	count := func(dir stats.Direction, size int, reused bool) {
		if reused {
			s.stats.BufferReuse(dir, size)
		} else {
			s.stats.BufferAlloc(dir, size)
		}
	}
	count(stats.RX, rmbe.Bytes(), g.rmbBytes == rmb)
	count(stats.TX, s.cfg.SendBuf, g.sendBytes == snd)
	core.Data = c
	core.SetNoDelay(now, true) // as package net has it
	g.conns[c] = struct{}{}
	if !g.peerAddr.IsValid() {
		g.peerAddr = peerOf(tcp)
	}
	return c, nil
}

// start begins watching the TCP connection below: after the rendezvous it
// carries nothing but its end.
func (c *Conn) start() {
	_ = c.tcp.SetDeadline(time.Time{})
	c.s.mu.Lock()
	c.s.conns[c] = struct{}{}
	c.s.mu.Unlock()
	c.g.do(func(time.Time) {
		if c.over { // it ended before it was counted
			c.forget()
		}
	})
	c.s.wg.Add(1)
	go c.watchTCP()
}

func (c *Conn) forget() {
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
}

func (c *Conn) watchTCP() {
	defer c.s.wg.Done()
	var b [1]byte
	n, err := c.tcp.Read(b[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// The end of a rendezvous that was cut while it succeeded.
		_ = c.tcp.SetReadDeadline(time.Time{})
		n, err = c.tcp.Read(b[:])
	}
	select {
	case <-c.done:
		return
	default:
	}
	c.g.do(func(now time.Time) {
		switch {
		case c.g.dead || c.over:
		case n > 0:
			c.s.log.Warn("peer sent data on the TCP connection below SMC-R", "remote", c.remote)
			c.core.Abort(now)
		default:
			c.core.TCPClosed(now, err != io.EOF)
		}
	})
}

// ended is called once the core is through with the connection.
func (c *Conn) ended(err error) {
	c.endOnce.Do(func() {
		c.err = err
		c.g.do(func(time.Time) {
			delete(c.g.conns, c)
			c.over = true
			if c.holds == 0 {
				c.core.Release()
			}
		})
		c.forget()
		if err != nil {
			_ = c.tcp.SetLinger(0)
		}
		close(c.done)
		_ = c.tcp.Close()
	})
}

// abandon resets a connection that was attached but never given out.
func (c *Conn) abandon() {
	c.closed.Store(true)
	c.g.do(func(now time.Time) {
		if !c.g.dead {
			c.core.Abort(now)
		}
	})
}

// Done returns a channel that is closed when the connection has ended on
// both sides and its resources are free. Err then tells how.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns nil for an orderly end, or why the connection was reset. It
// may be called after Done is closed.
func (c *Conn) Err() error { return c.err }

func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// overErr is the error of a connection that has ended although the
// application did not close it: what the core has, or a reset.
func overErr(err error) error {
	if err == nil || err == io.EOF {
		return linkgroup.ErrReset
	}
	return err
}

// readable returns what can be read now: data, or an error once there is
// none. With neither the caller waits. g.mu is held.
func (c *Conn) readable() (a, b []byte, err error) {
	if c.closed.Load() {
		return nil, nil, net.ErrClosed
	}
	if c.over {
		return nil, nil, sysError("read", overErr(c.core.ReadErr()))
	}
	if a, b = c.core.RecvData(); len(a) > 0 {
		return a, b, nil
	}
	return nil, nil, sysError("read", c.core.ReadErr())
}

// writable likewise returns the free pieces of the send buffer.
func (c *Conn) writable() (a, b []byte, err error) {
	if c.closed.Load() {
		return nil, nil, net.ErrClosed
	}
	if c.over {
		return nil, nil, sysError("write", overErr(c.core.WriteErr()))
	}
	if err := c.core.WriteErr(); err != nil {
		return nil, nil, sysError("write", err)
	}
	a, b = c.core.SendSpace()
	return a, b, nil
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

// wait waits for a wake-up, the deadline or the end of the connection.
func (c *Conn) wait(ch <-chan struct{}, dl *deadline) error {
	select {
	case <-ch:
		return nil
	case <-c.done:
		return nil
	case <-dl.wait():
		return os.ErrDeadlineExceeded
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	for {
		if err := c.barred(&c.rdl); err != nil {
			return 0, c.opError("read", err)
		}
		if len(p) == 0 {
			return 0, nil
		}
		c.g.mu.Lock()
		a, b, err := c.readable()
		if err != nil {
			c.g.unlock()
			return 0, c.opError("read", err)
		}
		if len(a) > 0 {
			n := copy(p, a)
			n += copy(p[n:], b)
			c.core.Consumed(time.Now(), n)
			c.rxBytes += uint64(n)
			c.s.stats.RX(n)
			c.g.unlock()
			return n, nil
		}
		c.g.unlock()
		if err := c.wait(c.rwake, &c.rdl); err != nil {
			return 0, c.opError("read", err)
		}
	}
}

// WriteTo implements io.WriterTo: it writes to w straight from the RMB
// element until the peer has said that it sends no more. A w which is an
// [UrgentWriter] gets the urgent bytes at their place in the stream.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	uw, _ := w.(UrgentWriter)
	for {
		if err := c.barred(&c.rdl); err != nil {
			return total, c.opError("read", err)
		}
		c.g.mu.Lock()
		a, b, err := c.readable()
		urgent := uw != nil && err == nil && c.core.AtMark()
		if urgent && len(a) > 0 && c.core.UrgentInline() {
			a, b = a[:1], nil
		} else if urgent {
			u, uerr := c.core.Urgent(false)
			if uerr == nil {
				c.g.unlock()
				if _, err := uw.WriteUrgent([]byte{u}); err != nil {
					return total, err
				}
				continue
			}
			urgent = false
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
			if err := c.wait(c.rwake, &c.rdl); err != nil {
				return total, c.opError("read", err)
			}
			continue
		}
		c.hold()
		c.delivering = true
		c.g.unlock()
		var n int
		var werr error
		if urgent {
			n, werr = uw.WriteUrgent(a)
		} else {
			n, werr = w.Write(a)
		}
		if werr == nil && len(b) > 0 {
			var m int
			m, werr = w.Write(b)
			n += m
		}
		total += int64(n)
		c.g.do(func(now time.Time) {
			c.delivering = false
			if !c.over {
				c.core.Consumed(now, n)
				c.rxBytes += uint64(n)
				if c.closeAfter {
					c.core.Close(now)
				}
			}
			c.unhold()
		})
		c.s.stats.RX(n)
		if werr != nil {
			return total, werr
		}
	}
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (total int, err error) { return c.write(p, false) }

func (c *Conn) write(p []byte, urgent bool) (total int, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for {
		if err := c.barred(&c.wdl); err != nil {
			return total, c.opError("write", err)
		}
		c.g.mu.Lock()
		a, b, err := c.writable()
		if err != nil {
			c.g.unlock()
			return total, c.opError("write", err)
		}
		if len(p) == 0 {
			c.g.unlock()
			return total, nil
		}
		if len(a) == 0 {
			c.g.unlock()
			c.s.stats.Buffer(stats.TX, stats.Full)
			if err := c.wait(c.wwake, &c.wdl); err != nil {
				return total, c.opError("write", err)
			}
			continue
		}
		n := min(len(p), len(a)+len(b))
		if n <= inlineCopy {
			copy(b, p[copy(a, p):])
			c.produced(time.Now(), n, urgent && n == len(p))
			c.txBytes += uint64(n)
			c.g.unlock()
		} else {
			c.hold()
			c.g.unlock()
			copy(b, p[copy(a, p):])
			c.g.do(func(now time.Time) {
				if !c.over {
					c.produced(now, n, urgent && n == len(p))
					c.txBytes += uint64(n)
				}
				c.unhold()
			})
		}
		c.s.stats.TX(n, n)
		total += n
		if p = p[n:]; len(p) == 0 {
			return total, nil
		}
	}
}

// ReadFrom implements io.ReaderFrom: it reads from r straight into the send
// buffer until r ends. An r which is an [UrgentReader] may have urgent bytes.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	ur, _ := r.(UrgentReader)
	for {
		if err := c.barred(&c.wdl); err != nil {
			return total, c.opError("write", err)
		}
		c.g.mu.Lock()
		a, _, err := c.writable()
		if err != nil {
			c.g.unlock()
			return total, c.opError("write", err)
		}
		if len(a) == 0 {
			c.g.unlock()
			c.s.stats.Buffer(stats.TX, stats.Full)
			if err := c.wait(c.wwake, &c.wdl); err != nil {
				return total, c.opError("write", err)
			}
			continue
		}
		c.hold()
		c.g.unlock()
		var n int
		var urgent bool
		var rerr error
		if ur != nil {
			n, urgent, rerr = ur.ReadMark(a)
		} else {
			n, rerr = r.Read(a)
		}
		n = max(n, 0)
		lost := false
		c.g.do(func(now time.Time) {
			// What the peer did not wait for is lost, as with TCP.
			lost = n > 0 && errors.Is(c.core.WriteErr(), linkgroup.ErrPeerClosed)
			if n > 0 && !c.over {
				c.produced(now, n, urgent)
				c.txBytes += uint64(n)
			}
			c.unhold()
		})
		if lost {
			return total, c.opError("write", sysError("write", linkgroup.ErrReset))
		}
		c.s.stats.TX(n, n)
		total += int64(n)
		if rerr == io.EOF {
			return total, nil
		}
		if rerr != nil {
			return total, rerr
		}
	}
}

// shut hands a kind of close to the core.
func (c *Conn) shut(f func(now time.Time)) {
	c.g.do(func(now time.Time) {
		if !c.g.dead && !c.over {
			f(now)
		}
	})
}

// Close closes the connection. Data already written is still sent; unread
// data makes it a reset, as with TCP (RFC 7609, section 4.8.1).
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.shut(func(now time.Time) {
		switch {
		case c.lingerZero.Load():
			c.core.Abort(now)
		case c.delivering:
			// What the reader has been given already is not unread data.
			c.closeAfter = true
		default:
			c.core.Close(now)
		}
	})
	wake(c.rwake)
	wake(c.wwake)
	return nil
}

// Abort resets the connection: what is unsent is dropped.
func (c *Conn) Abort() error {
	if c.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.shut(c.core.Abort)
	wake(c.rwake)
	wake(c.wwake)
	return nil
}

// CloseWrite tells the peer that no more data follows; reading goes on.
func (c *Conn) CloseWrite() error {
	if c.closed.Load() {
		return c.opError("close", net.ErrClosed)
	}
	c.shut(c.core.CloseWrite)
	return nil
}

// LocalAddr implements net.Conn: the address of the TCP connection below.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	c.rdl.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	c.wdl.set(t)
	return nil
}

// SetLinger as for TCP: with sec 0, Close resets the connection; anything
// else leaves Close as it is, which sends unsent data in the background.
func (c *Conn) SetLinger(sec int) error {
	c.lingerZero.Store(sec == 0)
	return nil
}

// SetCork holds back small pieces of data until more is written, it is called
// with false, or a quarter of a second has passed, as TCP_CORK does.
func (c *Conn) SetCork(on bool) error {
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	c.shut(func(now time.Time) { c.core.SetCork(now, on) })
	return nil
}

// SetNoDelay chooses whether small pieces of data go out at once (the default)
// or wait, as with the Nagle algorithm, until the message before is delivered
// (RFC 7609, section 4.5.2).
func (c *Conn) SetNoDelay(on bool) error {
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	c.shut(func(now time.Time) { c.core.SetNoDelay(now, on) })
	return nil
}

// SetKeepAliveConfig sets keepalive as for a net.TCPConn, at both levels of RFC
// 7609, section 4.5.3: the kernel sends TCP keepalives on the TCP connection
// below, and the link is tested when the connection and it have been idle for
// config.Idle (zero: 15 seconds, as package net has it). Interval and Count act
// on TCP alone.
func (c *Conn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	if tcp, ok := c.tcp.(*net.TCPConn); ok {
		if err := tcp.SetKeepAliveConfig(config); err != nil {
			return err
		}
	}
	idle := config.Idle
	switch {
	case !config.Enable:
		idle = 0
	case idle <= 0:
		idle = 15 * time.Second
	}
	c.KeepLinkAlive(idle)
	return nil
}

// KeepLinkAlive is the part of SetKeepAliveConfig that concerns SMC-R: the link
// is tested when it and the connection have been idle so long. Zero switches
// that off.
func (c *Conn) KeepLinkAlive(idle time.Duration) {
	c.shut(func(now time.Time) { c.core.SetKeepAlive(now, idle) })
}

// SyscallConn gives access to the TCP connection below, for its options.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := c.tcp.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, c.opError("syscall", errors.ErrUnsupported)
}

// name returns the group's id as listings print it.
func (g *group) name() string {
	id := g.core.ID()
	return hex.EncodeToString(id[:])
}
