// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
)

// A Diverter is a [Handler] that can carry the bytes of a local connection.
type Diverter interface {
	// Divert carries bytes between former and end. former is the end that the program
	// got by Conn.Local. The program now has the other end of the pair of end instead.
	// Divert must close both. It may be called as soon as Conn.Local was called, and is
	// called once at most. ctx is that of the connection.
	Divert(ctx context.Context, c *Conn, former, end *Descriptor)
}

// Local gives the program one end of a pair in place of its connected TCP socket. The other
// end is for the program at the peer. The caller still owns end.
//
// In Handler.Connect, Local replaces Established and Ready. It waits for the launcher and
// reports whether the program has the end. If not, the program keeps the TCP socket, as
// after Established(false). In Handler.Accept, Local replaces TakeOver and Ready, and does
// not wait. A launcher that cannot give the end to the program closes it.
func (c *Conn) Local(ctx context.Context, end *Descriptor) (placed bool, err error) {
	c.local.Store(true)
	m := Message{Type: TypeLocal, Mode: ModeLocal, Conn: c.id}
	if err := end.Control(func(fd int) error { return c.ss.t.send(&m, fd) }); err != nil {
		c.ss.t.shutdown()
		return false, err
	}
	if c.accept {
		return true, nil
	}
	// Without a limit: a launcher that is late may have given the end to the program already, so
	// the service must not take it back.
	a, err := c.awaitUntil(ctx, nil, TypeProceed, TypeRelease)
	return err == nil && a.t == TypeProceed, err
}

// detour handles one of the two descriptors of a detour. ss.mu is held.
func (ss *session) detour(c *Conn, m Message, d *Descriptor) error {
	h, ok := ss.s.Handler.(Diverter)
	c.detours++
	if !ok || !c.local.Load() || c.detours > 2 {
		ss.wg.Go(func() { _ = d.Close() })
		return fmt.Errorf("%w: %v out of turn", ErrMalformed, TypeDetour)
	}
	if c.detours == 1 {
		c.detoured = d
		return nil
	}
	former := c.detoured
	c.detoured = nil
	if !ss.checkEnd(c, m, d) {
		ss.wg.Go(func() { _ = former.Close() })
		return nil
	}
	ss.wg.Go(func() {
		if ss.s.guarded("a program's detour", func() { h.Divert(c.ctx, c, former, d) }) != nil {
			_ = former.Close()
			_ = d.Close()
		}
	})
	return nil
}

// Detour passes two descriptors to the service: former, the end that EventLocal gave, and
// end, the service's end of the pair that the program has instead. The caller still owns
// both. If Detour fails, the service may have received former.
func (c *ClientConn) Detour(former, end int) error {
	if err := c.send(TypeDetour, former); err != nil {
		return err
	}
	return c.send(TypeDetour, end)
}
