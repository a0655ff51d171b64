// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"time"

	"smcr/smc"
)

// ErrInvariant means that the state of a group contradicts itself: a fault of this
// package or of its driver, never of the peer. [Group.Check] and [Group.CheckWrite]
// return it, or [conn.ErrInvariant] for a connection.
var ErrInvariant = errors.New("linkgroup: invariant broken")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvariant, fmt.Sprintf(format, args...))
}

// Check verifies what holds between any two events, whatever the peer does:
// no window is overrun, no RMBE has two users, what is counted is right, and
// a dead group has nothing left. It is for simulations and tests; it costs
// time for each pair of connections.
func (g *Group) Check() error {
	if g.phase == phaseDead {
		_, timer := g.Deadline()
		switch {
		case timer:
			return broken("a dead group has a timer")
		case len(g.conns) > 0 || len(g.links.list) > 0:
			return broken("a dead group has %d connections and %d links", len(g.conns), len(g.links.list))
		}
		return nil
	}
	type place struct {
		r *rmb
		i int
	}
	users := make(map[place]*Conn, len(g.conns))
	onLink := make(map[*Link]int, len(g.links.list))
	onRMB := make(map[*rtoken]int, len(g.peerRMBs.list))
	for token, c := range g.conns {
		if c.Token() != token {
			return broken("connection %#x is known as %#x", c.Token(), token)
		}
		at := place{c.rmb, c.elem}
		if o := users[at]; o != nil {
			return broken("connections %#x and %#x share RMBE %d", o.Token(), c.Token(), c.elem+1)
		}
		users[at] = c
		if !c.rmb.elems[c.elem].used {
			return broken("connection %#x uses RMBE %d, which counts as free", c.Token(), c.elem+1)
		}
		onLink[c.link]++
		if c.peerRMB != nil {
			onRMB[c.peerRMB]++
		}
		if err := c.Protocol().Check(); err != nil {
			return err
		}
	}
	for token, c := range g.peerTokens {
		if g.conns[c.Token()] != c || c.peerRMB == nil || c.peer.Token != token {
			return broken("connection %#x, with alert token %#x of the peer, is known as %#x", c.Token(), c.peer.Token, token)
		}
	}
	for _, r := range g.rmbs.list {
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
	for _, l := range g.links.list {
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
	for _, t := range g.peerRMBs.list {
		if n := onRMB[t]; n != len(t.conns) {
			return broken("RToken with %d connections counts %d", n, len(t.conns))
		}
		delete(onRMB, t)
	}
	if len(onRMB) > 0 {
		return broken("%d RTokens of connections are not known any more", len(onRMB))
	}
	return nil
}

// CheckWrite verifies a write of an honest peer that was placed at addr under
// rkey; before and after are the bytes there. The write belongs to one
// connection, to neither its eye catcher nor to bytes that wait to be read,
// unless it repeats them, or to an RMBE that is not used because the peer may still
// write to it; and nothing of an earlier connection was there. Memory of other
// groups is not looked at: ok is false.
func (g *Group) CheckWrite(now time.Time, rkey smc.RKey, addr uint64, before, after []byte) (ok bool, err error) {
	for _, r := range g.rmbs.list {
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
				return true, c.Protocol().CheckWrite(in, before, after)
			}
		}
		if e := &r.elems[i]; n > 0 && !e.used && !e.withdrawn && !e.notBefore.After(now) {
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
