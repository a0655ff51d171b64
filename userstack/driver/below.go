// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
)

// The TCP connection below an SMC-R connection only shows when it ends. The engine watches
// it. A goroutine does so if there is no engine, or if the connection is not a socket.

// tcpWatch is the engine's watch on a TCP connection.
type tcpWatch struct {
	c  *Conn
	rc syscall.RawConn
	w  *engine.Watch
	of inside.Notifier // has an engine of its own, in place of w; or nil
}

// watch begins to watch the TCP connection below.
func (b *tcpWatch) watch() {
	c := b.c
	if b.watchByEngine() {
		return
	}
	c.g.s.wg.Add(1)
	go func() {
		defer c.g.s.wg.Done()
		if c.g.s.Guard.Do("the watch on a TCP connection", b.watchTCP) != nil {
			c.End.Abort()
		}
	}()
}

// watchByEngine makes the engine watch the TCP connection. It returns false if a goroutine
// has to watch.
func (b *tcpWatch) watchByEngine() bool {
	c := b.c
	loop := c.g.loop
	sc, ok := c.tcp.(syscall.Conn)
	if loop == nil || !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	watched := false
	if of := inside.NotifierOf(c.tcp); of != nil {
		over := false
		c.g.do(func(time.Time) {
			if over = c.End.over; !over {
				b.of = of
			}
		})
		if !over {
			of.Notify(func() { b.lookTCP(rc) }, 0)
		}
		return true
	}
	c.g.do(func(time.Time) {
		if c.End.over {
			watched = true // there is nothing more to watch
			return
		}
		_ = rc.Control(func(fd uintptr) {
			w, err := loop.Watch(int(fd), unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLET&0xffffffff, func(uint32) { b.lookTCP(rc) })
			if watched = err == nil; watched {
				b.rc, b.w = rc, w
			}
		})
	})
	return watched
}

// lookTCP is called by the engine after an event on the TCP connection.
func (b *tcpWatch) lookTCP(rc syscall.RawConn) {
	c := b.c
	var one [1]byte
	n, err := 0, error(nil)
	if cerr := rc.Control(func(fd uintptr) {
		err = retry.Interrupted(func() (err error) { n, err = unix.Read(int(fd), one[:]); return err }) // it does not block
	}); cerr != nil {
		err = cerr
	}
	switch {
	case err == unix.EAGAIN:
		return
	case n == 0 && err == nil:
		err = io.EOF
	}
	if c.g.s.Guard.Do("the watch on a TCP connection", func() { b.sawTCP(n, err) }) != nil {
		c.End.Abort()
	}
}

// watchTCP waits for the end of the TCP connection.
func (b *tcpWatch) watchTCP() {
	c := b.c
	var one [1]byte
	n, err := c.tcp.Read(one[:])
	b.sawTCP(n, err)
}

// sawTCP handles the result of a read from the TCP connection.
func (b *tcpWatch) sawTCP(n int, err error) {
	c := b.c
	select {
	case <-c.End.done:
		return
	default:
	}
	c.g.do(func(now time.Time) {
		switch {
		case c.g.end.dead || c.End.over:
		case n > 0:
			c.g.s.Log.Warn("the peer sent data on the TCP connection below SMC-R", "remote", c.remote)
			c.core.Abort(now)
		default:
			c.core.TCPClosed(now, err != io.EOF)
		}
	})
}

// stop ends the watch. It is called before the TCP connection is closed.
func (b *tcpWatch) stop() {
	if b.of != nil {
		b.of.Notify(nil, 0)
		b.of = nil
	}
	if b.w != nil {
		_ = b.rc.Control(func(fd uintptr) { b.w.Stop(int(fd)) })
		b.w = nil
	}
}
