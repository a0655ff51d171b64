// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"time"

	"smcr/smc"
)

// ErrInvariant is the sentinel of what Check, CheckPair and CheckWrite find:
// a fault of this package or of its driver, never of a peer.
var ErrInvariant = errors.New("linkgroup: invariant broken")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvariant, fmt.Sprintf(format, args...))
}

// Check verifies what holds between any two events, whatever the peer does:
// no window is overrun, no RMBE has two users, what is counted is right, and
// a dead group has nothing left. It is for simulations and tests; it costs
// time for each pair of connections.
func (g *Group) Check() error {
	if g.dead {
		_, timer := g.Deadline()
		switch {
		case timer:
			return broken("a dead group has a timer")
		case len(g.conns) > 0 || len(g.links) > 0:
			return broken("a dead group has %d connections and %d links", len(g.conns), len(g.links))
		}
		return nil
	}
	type place struct {
		r *rmb
		i int
	}
	users := make(map[place]*Conn, len(g.conns))
	onLink := make(map[*Link]int, len(g.links))
	onRMB := make(map[*rtoken]int, len(g.rtokens))
	for token, c := range g.conns {
		if c.token != token || c.state == smc.StateClosed || c.freed {
			return broken("connection %#x is known as %#x in state %s, freed %v", c.token, token, c.state, c.freed)
		}
		at := place{c.rmb, c.elem}
		if o := users[at]; o != nil {
			return broken("connections %#x and %#x share RMBE %d", o.token, c.token, c.elem+1)
		}
		users[at] = c
		if !c.rmb.elems[c.elem].used {
			return broken("connection %#x uses RMBE %d, which counts as free", c.token, c.elem+1)
		}
		onLink[c.link]++
		if c.rtoken != nil {
			onRMB[c.rtoken]++
		}
		if err := c.check(); err != nil {
			return err
		}
	}
	for _, r := range g.rmbs {
		used := 0
		for i := range r.elems {
			if r.elems[i].used {
				used++
			}
		}
		if used != r.inUse {
			return broken("RMB with %d elements in use counts %d", used, r.inUse)
		}
	}
	for _, l := range g.links {
		if n := onLink[l]; n != l.conns {
			return broken("link %d has %d connections and counts %d", l.id, n, l.conns)
		}
		if l.used > len(l.sq) || l.used < 0 || l.sqLen > l.used {
			return broken("link %d has %d requests of %d work requests in a queue of %d", l.id, l.sqLen, l.used, len(l.sq))
		}
		delete(onLink, l)
	}
	for l, n := range onLink {
		return broken("%d connections are on link %d, which is gone", n, l.id)
	}
	for _, t := range g.rtokens {
		if n := onRMB[t]; n != t.conns {
			return broken("RToken with %d connections counts %d", n, t.conns)
		}
		delete(onRMB, t)
	}
	if len(onRMB) > 0 {
		return broken("%d RTokens of connections are not known any more", len(onRMB))
	}
	return nil
}

// check verifies the cursors of one connection.
func (c *Conn) check() error {
	told := max(c.sent, c.replay)
	switch {
	case c.rcons > c.rprod || c.rprod-c.rcons > uint64(c.rx.size):
		return broken("connection %#x: peer wrote up to %d, %d are read, the RMBE takes %d", c.token, c.rprod, c.rcons, c.rx.size)
	case c.rconf > c.rcons:
		return broken("connection %#x: told %d as read, %d are", c.token, c.rconf, c.rcons)
	case c.prep < told || c.prep-c.fin > uint64(c.ssize):
		return broken("connection %#x: %d bytes from the program, %d written, %d confirmed, the buffer takes %d", c.token, c.prep, told, c.fin, c.ssize)
	case c.fin > told:
		return broken("connection %#x: %d bytes confirmed, %d written", c.token, c.fin, told)
	case c.inflight < 0 || c.inflight > maxInflight+1:
		return broken("connection %#x: %d messages outstanding", c.token, c.inflight)
	case !c.attached:
		return nil
	case c.pcons > told:
		return broken("connection %#x: peer read %d of %d bytes", c.token, c.pcons, told)
	case told-c.pcons > uint64(c.tx.size):
		return broken("connection %#x: window overrun: wrote up to %d, peer read %d, its RMBE takes %d", c.token, told, c.pcons, c.tx.size)
	case !c.intact():
		return broken("connection %#x: eye catcher of RMBE %d is overwritten", c.token, c.elem+1)
	}
	return nil
}

// CheckPair verifies that the two ends of one connection agree, which they do
// unless one of them lies: nobody has received what was not written, and
// nobody was told that the other read what it did not.
func CheckPair(a, b *Conn) error {
	for _, x := range [2][2]*Conn{{a, b}, {b, a}} {
		from, to := x[0], x[1]
		if from.freed || to.freed || !from.attached || !to.attached {
			continue
		}
		switch told := max(from.sent, from.replay); {
		case to.rprod > told:
			return broken("connection %#x has received %d bytes, %#x wrote %d", to.token, to.rprod, from.token, told)
		case from.pcons > to.rcons:
			return broken("connection %#x holds %d bytes for read, %#x read %d", from.token, from.pcons, to.token, to.rcons)
		}
	}
	return nil
}

// CheckWrite verifies a write of an honest peer that was placed at addr under
// rkey; before and after are the bytes there. The write belongs to one
// connection, to neither its eye catcher nor to bytes that wait to be read,
// unless it repeats them, or to an RMBE that rests because the peer may still
// write to it; and nothing of an earlier connection was there. Memory of other
// groups is none of ours: ok is false.
func (g *Group) CheckWrite(now time.Time, rkey smc.RKey, addr uint64, before, after []byte) (ok bool, err error) {
	for _, r := range g.rmbs {
		at := r.token(rkey)
		if at == nil {
			continue
		}
		off, n := addr-at.Addr, uint64(len(after))
		if addr < at.Addr || off+n > uint64(len(r.mem)) {
			return true, broken("a write of %d bytes at %d goes beyond an RMB of %d", n, off, len(r.mem))
		}
		i, in := int(off)/r.size, int(off)%r.size
		if in+len(after) > r.size {
			return true, broken("a write of %d bytes at %d goes beyond RMBE %d", n, off, i+1)
		}
		for _, c := range g.conns {
			if c.rmb == r && c.elem == i {
				return true, c.checkWrite(in, before, after)
			}
		}
		if e := &r.elems[i]; n > 0 && !e.used && !e.lost && !e.notBefore.After(now) {
			return true, broken("a write of %d bytes to RMBE %d, which is not in use", n, i+1)
		}
		return true, nil
	}
	return false, nil
}

// token returns the RToken with rkey, or nil.
func (r *rmb) token(rkey smc.RKey) *slotToken {
	for i := range r.at {
		if r.at[i].ok && r.at[i].RKey == rkey {
			return &r.at[i]
		}
	}
	return nil
}

func (c *Conn) checkWrite(in int, before, after []byte) error {
	if in < c.rx.start {
		return broken("connection %#x: a write over the eye catcher", c.token)
	}
	if c.err != nil || c.appClosed {
		return nil // nobody reads any more
	}
	size := uint64(c.rx.size)
	first := in - c.rx.start
	for i := range after {
		// How far the byte is ahead of the first unread one.
		d := (uint64(first+i) + size - c.rcons%size) % size
		if c.rcons+d < size && before[i] != 0 && before[i] != after[i] {
			return broken("connection %#x: byte %d of RMBE %d is %#02x before anything is written to it", c.token, in+i, c.elem+1, before[i])
		}
		if d < c.rprod-c.rcons && after[i] != before[i] {
			return broken("connection %#x: a write of %d bytes over byte %d, which is not read", c.token, len(after), c.rcons+d)
		}
	}
	return nil
}
