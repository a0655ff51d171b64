// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
)

// A Diverter is a [Handler] that can carry the bytes of a local connection.
type Diverter interface {
	// Divert carries bytes between former, which Conn.Local gave, and end: the
	// program has the other end of that instead. Both belong to Divert. It may come
	// as soon as Conn.Local was called, and once. ctx is that of the connection.
	Divert(ctx context.Context, c *Conn, former, end *Descriptor)
}

// Local gives the program one end of a pair whose other end is for the program at
// the peer, in the place of its TCP socket, which is connected. end stays the
// caller's.
//
// In Handler.Connect it takes the place of Established and Ready, waits for the
// launcher, and reports whether the program has the end. If not, the TCP socket is
// the program's, as after Established(false). In Handler.Accept it takes the place
// of TakeOver and Ready, and does not wait: a launcher that cannot pass the end on
// closes it.
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
	a, err := c.await(ctx, TypeProceed, TypeRelease)
	return err == nil && a.t == TypeProceed, err
}

// detour takes a descriptor of a detour. ss.mu is held.
func (ss *session) detour(c *Conn, d *Descriptor) error {
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
	ss.wg.Go(func() {
		if ss.s.guarded("a program's detour", func() { h.Divert(c.ctx, c, former, d) }) != nil {
			_ = former.Close()
			_ = d.Close()
		}
	})
	return nil
}

// Detour passes the end that EventLocal gave and the service's end of the pair that
// the program has instead. Both stay the caller's. If it fails, the service may have
// got the first.
func (c *ClientConn) Detour(former, end int) error {
	if err := c.send(TypeDetour, former); err != nil {
		return err
	}
	return c.send(TypeDetour, end)
}
