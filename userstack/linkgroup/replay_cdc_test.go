// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"

	"smcr/userstack/wire"

	"github.com/google/go-cmp/cmp"
)

// expectCDC is expect for the messages of a connection. Which consumer cursor
// goes along with which producer cursor is a matter of timing: where a message
// differs, the course of each cursor must still be the same, see same.
func (r *replay) expectCDC(m capMessage) {
	k, err := wire.ParseCDC(m.msg)
	if err != nil {
		r.t.Fatalf("%s: %v", m.where, err)
	}
	c := r.byToken(k.Token)
	if c == nil {
		r.t.Errorf("%s: no connection has alert token %#x", m.where, k.Token)
		return
	}
	c.kernel.add(k, r.theirs)
	r.theirs = nil
	r.actConn(m, c, k)
	i := r.find(m)
	if i < 0 {
		r.timing++
		return
	}
	o := r.out[i]
	r.out = slices.Delete(r.out, i, i+1)
	r.said++
	g, err := wire.ParseCDC(o.msg)
	if err != nil {
		r.t.Fatalf("%s: %v", m.where, err)
	}
	c.group.add(g, o.writes)
	if g == k {
		return
	}
	full, purged, same := k, k, g
	full.Flags &^= wire.ProdWriterBlocked
	purged.Cons = g.Cons
	same.Seq = k.Seq
	switch {
	case same == k:
		r.timing++ // one more, or less, before
	case full == same && c.c.Positions().Produced == c.c.Positions().Written:
		r.known[justFull]++
	case purged == same && k.State&wire.ConnAbnormalClose != 0:
		r.known[readsOn]++
		c.kernel.cons = c.kernel.cons[:len(c.kernel.cons)-1]
	default:
		r.t.Logf("%s: %s: kernel %+v, group %+v", m.where, describe(m.msg), k, g)
		r.timing++
	}
}

// A course is what a side said over a connection, each cursor on its own.
type course struct {
	prod, cons []wire.Cursor
	states     []wire.StateFlags
	writes     []capWrite
}

func (c *course) add(m wire.CDC, writes []capWrite) {
	c.prod, c.cons, c.states = appendNew(c.prod, m.Prod), appendNew(c.cons, m.Cons), appendNew(c.states, m.State)
	for _, w := range writes {
		c.writes = appendWrite(c.writes, w)
	}
}

func appendNew[T comparable](list []T, x T) []T {
	if n := len(list); n > 0 && list[n-1] == x {
		return list
	}
	return append(list, x)
}

// same compares the courses of all connections at the end.
func (r *replay) same() {
	for _, o := range r.out {
		g, err := wire.ParseCDC(o.msg)
		if err != nil {
			r.t.Errorf("the group sent %s, the kernel not", describe(o.msg))
		} else if c := r.byToken(g.Token); c != nil {
			c.group.add(g, o.writes)
			r.timing++
		}
	}
	for port, c := range r.byPort {
		if d := cmp.Diff(c.kernel, c.group, cmp.AllowUnexported(course{}, capWrite{})); d != "" {
			r.t.Errorf("connection of port %d: kernel - group +\n%s", port, d)
		}
	}
}

func (r *replay) byToken(token uint32) *replayConn {
	for _, c := range r.byPort {
		if c.of(1-r.role).AlertToken == token && c.c != nil {
			return c
		}
	}
	return nil
}

// actConn reads, writes and closes up to where the kernel's application was.
func (r *replay) actConn(m capMessage, c *replayConn, x wire.CDC) {
	r.feedUntil(func() bool {
		cons, _ := c.c.ours().ahead(x.Cons, c.c.Positions().Read)
		prod, _ := c.c.theirs().ahead(x.Prod, c.c.Positions().Written)
		at := c.c.Positions()
		return cons <= at.Received-at.Read && prod <= uint64(at.Window) && x.State == c.c.Info().TxState
	})
	if n, ok := c.c.ours().ahead(x.Cons, c.c.Positions().Read); ok && n > 0 && n <= c.c.Positions().Received-c.c.Positions().Read {
		c.c.Consumed(r.now, int(n))
	}
	if n, ok := c.c.theirs().ahead(x.Prod, c.c.Positions().Produced); ok && n > 0 && n <= uint64(c.c.theirs().size) {
		produce(c.c, r.now, int(n)+r.waiting(m, c, x))
	}
	if x.State&wire.ConnSendingDone != 0 {
		c.c.CloseWrite(r.now)
	}
	if x.State&(wire.ConnClosed|wire.ConnAbnormalClose) != 0 {
		c.c.Close(r.now)
	}
	r.drain()
}

// waiting returns how many bytes the kernel had to send beyond those of a
// message that says that the writer is blocked.
func (r *replay) waiting(m capMessage, c *replayConn, x wire.CDC) (n int) {
	rest := r.capture[slices.IndexFunc(r.capture, func(o capMessage) bool { return o.where == m.where })+1:]
	for _, o := range rest {
		if x.Flags&wire.ProdWriterBlocked == 0 {
			break
		}
		next, err := wire.ParseCDC(o.msg)
		if err != nil || o.to != m.to || next.Token != x.Token {
			continue
		}
		at, _ := c.c.theirs().ahead(x.Prod, 0)
		d, _ := c.c.theirs().ahead(next.Prod, at)
		n += int(d)
		x = next
	}
	return n
}
