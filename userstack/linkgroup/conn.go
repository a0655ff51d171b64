// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// Conn is a connection as a member of its link group: the RMB element that it has,
// the peer's RMB that it writes to, and the link that it writes over. The connection
// itself is [conn.Conn].
type Conn struct {
	conn.Conn

	// Data is free for the driver.
	Data any

	g     *Group
	stage stage
	first bool // it is the connection of the first contact

	rmb     *rmb
	elem    int        // index of its element
	peer    ConnParams // what CLC said of the peer's side
	peerRMB *rtoken    // nil before Attach and after the end

	link    *Link // that this side writes over
	planned *Link // that the connection is to move to (rebalance), or nil
	onto    *Link // that the last message of the peer came over
	named   *Link // client: the link that ACCEPT named, which CONFIRM repeats

	// The queue for room in the send queue of a link.
	waitOn             *Link
	waitPrev, waitNext *Conn
}

// stage is how far the rendezvous of a connection has come.
//
//	From    | Event                          | To       | Action
//	--------+--------------------------------+----------+---------------
//	waiting | the peer knows the RMB         | ready    | ActConnReady
//	waiting | it cannot know the RMB         | ready    | ActConnReady err
//	ready   | established and ended later    | ended    | ActConnClosed
//	any     | Cancel                         | canceled |
type stage uint8

const (
	stageWaiting stage = iota
	stageReady
	stageEnded
	stageCanceled
)

// NewConn begins a connection: an RMBE of size 16 KiB << rmbeCode, an alert
// token, a send buffer of sendBuf bytes. ActConnReady says when the peer knows
// the RMB; it may be queued already when NewConn returns. The first
// connection of a group comes between [Group.FirstLink] and
// [Group.ConnectFirst], all others after the first contact.
//
// The error is ErrInvalidParams, ErrGroupDead, ErrSequence, ErrFull, ErrNoLink or one
// of [Env].
func (g *Group) NewConn(now time.Time, rmbeCode smc.SizeCode, sendBuf int) (*Conn, error) {
	return g.NewConnOf(now, 0, rmbeCode, sendBuf)
}

// NewConnOf is NewConn for a connection of an owner, a user of the host. Owners share
// no RMB: what a peer is told of an RMB for one says nothing of another's memory. Nor
// do they share the limit of RMBEs that are not used again, which one could use up for
// all.
func (g *Group) NewConnOf(now time.Time, owner uint32, rmbeCode smc.SizeCode, sendBuf int) (*Conn, error) {
	if rmbeCode > maxSizeCode || sendBuf <= 0 {
		return nil, fmt.Errorf("%w: RMBE size code %d, send buffer of %d bytes", ErrInvalidParams, rmbeCode, sendBuf)
	}
	g.now = now
	switch {
	case g.phase >= phaseDying:
		return nil, ErrGroupDead
	case g.phase < phaseLinked || g.phase != phaseOpen && len(g.conns) > 0:
		return nil, ErrSequence
	case len(g.conns) >= g.cfg.MaxConns || g.worn() || g.lost[owner] > maxLost:
		return nil, ErrFull
	}
	l := g.bestLink(nil)
	if g.phase != phaseOpen {
		l = g.links[0]
	}
	if l == nil {
		return nil, ErrNoLink
	}
	r, i, err := g.takeElement(now, owner, rmbeCode)
	if err != nil {
		return nil, err
	}
	c := &Conn{g: g, first: g.phase != phaseOpen, link: l, rmb: r, elem: i}
	token := g.env.Random()
	for token == 0 || g.conns[token] != nil {
		token = g.env.Random()
	}
	c.Conn = conn.New(&g.connCfg, (*member)(c), token, r.mem0(i), g.eye, sendBuf, g.cfg.SendChunk)
	g.conns[token] = c
	g.clear(timerIdle)
	l.conns++
	if g.phase != phaseOpen {
		r.state = rmbKnown // by CLC (RFC 7609, section 3.5.1)
	}
	if r.state == rmbKnown {
		c.setReady(nil)
	} else {
		r.waiting = append(r.waiting, c)
		g.set(timerRKeyWait, now.Add(g.cfg.Timers.LLCStart))
		g.settle(now)
	}
	return c, nil
}

func (c *Conn) setReady(err error) {
	if c.stage == stageWaiting {
		c.stage = stageReady
		c.g.act(Action{Kind: ActConnReady, Conn: c, Err: err})
	}
}

// Local returns what ACCEPT or CONFIRM say about our side. A client takes it
// after [Conn.Attach] on a subsequent contact, because CONFIRM names the link
// that the server chose: a Linux server looks for the RKey of CONFIRM on its own
// link. Which link we write over is our own choice all the same (RFC 7609,
// section 2.3).
func (c *Conn) Local() ConnParams {
	l := c.link
	if c.named != nil && c.named.state == smc.LinkActive {
		l = c.named
	}
	t := c.rmb.at[l.slot]
	return ConnParams{
		Link: l.local, RKey: t.RKey, VAddr: t.Addr,
		Index: uint8(c.elem + 1), Token: c.Token(), SizeCode: c.rmb.code,
	}
}

// Attach takes what the peer's ACCEPT or CONFIRM says and opens the
// connection; messages that came before are applied. Another connection
// which uses the same RMBE or alert token of the peer is reset, because the
// peer has given it up (RFC 7609, section 4.4.2). The host that has told of it
// must be the one that tells now, or that of the first contact, which has proved
// that it is the peer: otherwise it is ErrNotItsOwn, and nothing changes.
//
// Other errors are ErrGroupDead, ErrSequence, ErrInvalidParams, ErrNoLink,
// ErrUnknownRKey and ErrFull.
func (c *Conn) Attach(now time.Time, peer ConnParams) error {
	g := c.g
	g.now = now
	switch {
	case g.phase >= phaseDying:
		return ErrGroupDead
	case c.Protocol().Established() || c.stage == stageCanceled:
		return ErrSequence
	case peer.Index == 0 || peer.Token == 0 || peer.SizeCode > maxSizeCode:
		return fmt.Errorf("%w: RMBE index %d, alert token %#x, size code %d", ErrInvalidParams, peer.Index, peer.Token, peer.SizeCode)
	}
	on, t, err := g.findPeerRMB(peer, c.first)
	if err != nil {
		return err
	}
	if !t.on(c.link) {
		l := g.linkWith(t)
		if l == nil {
			return fmt.Errorf("%w: %s on any active link", ErrUnknownRKey, peer.RKey)
		}
		c.setLink(l)
	}
	if err := g.evictOthers(c, t, peer); err != nil {
		return err
	}
	c.peerRMB, c.peer = t, peer
	t.conns++
	if g.cfg.Role == smc.Client && g.phase == phaseOpen {
		c.named = on
	}
	c.Protocol().Establish(conn.Remote{
		Token: peer.Token, Size: peer.SizeCode.Bytes(), Eye: g.peerEye, LinkGone: on == nil,
	})
	g.settle(now)
	return nil
}

// evictOthers ends the connections that have the element or the alert token that
// the peer has named for c.
func (g *Group) evictOthers(c *Conn, t *rtoken, peer ConnParams) error {
	others := slices.DeleteFunc(g.connsSorted(), func(o *Conn) bool { return !o.sharesElement(c, t, peer) })
	for _, o := range others {
		if peer.From != o.peer.From && peer.From != g.cfg.PeerHost {
			return fmt.Errorf("%w: element %d, alert token %#x: %s says so, and %s said so before", ErrNotItsOwn, peer.Index, peer.Token, peer.From, o.peer.From)
		}
	}
	for _, o := range others {
		// Expected if this side has sent C: the peer's last message, over RoCE,
		// may arrive after what its next connection says over TCP.
		log := g.log.Warn
		if o.Protocol().CloseSent() {
			log = g.log.Debug
		}
		log("peer reused an RMB element", "token", o.Token())
		o.Protocol().Evict()
	}
	return nil
}

// redundant reports whether a link other than on is active.
func (g *Group) redundant(on *Link) bool {
	for _, l := range g.links {
		if l != on && l.state == smc.LinkActive {
			return g.opened
		}
	}
	return false
}

// sharesElement reports whether c, another connection, is attached with the element
// or the alert token that the peer names for o.
func (c *Conn) sharesElement(o *Conn, t *rtoken, peer ConnParams) bool {
	return c != o && c.peerRMB != nil && (c.peer.Token == peer.Token || c.peerRMB == t && overlap(c.peer, peer))
}

// overlap reports whether two elements of one RMB share bytes.
func overlap(a, b ConnParams) bool {
	as, bs := uint64(a.SizeCode.Bytes()), uint64(b.SizeCode.Bytes())
	ao, bo := as*uint64(a.Index-1), bs*uint64(b.Index-1)
	return ao < bo+bs && bo < ao+as
}

// Cancel ends a connection whose handshake failed. Nothing is sent and no
// action follows. The RMBE is not used for a while, in case the peer thinks that the
// connection is open.
func (c *Conn) Cancel(now time.Time) {
	if c.stage >= stageEnded {
		return
	}
	g := c.g
	g.now = now
	c.stage = stageCanceled
	c.Protocol().Discard(now.Add(g.cfg.Timers.AbortWait))
	g.settle(now)
}

// Refuse tells the peer, whose CONFIRM said peer, that a connection which could
// not be attached is over; [Conn.Cancel] follows. It is for peers that count on
// SMC-R from their CONFIRM on and do not look at TCP any more: Linux. If a connection
// has this alert token of the peer already, CONFIRM need not be the peer's, and
// nothing is sent.
func (c *Conn) Refuse(now time.Time, peer ConnParams) {
	g := c.g
	l := c.link
	if l.state != smc.LinkActive || !l.qpOpen {
		l = g.bestLink(nil)
	}
	if g.phase != phaseOpen || l == nil || c.Protocol().Established() || c.stage == stageCanceled || peer.Token == 0 {
		return
	}
	for _, o := range g.conns {
		if o.peerRMB != nil && o.peer.Token == peer.Token {
			return
		}
	}
	g.now = now
	var it llcItem
	if _, err := (wire.CDC{Seq: 1, Token: peer.Token, State: wire.ConnAbnormalClose}).AppendBinary(it.msg[:0]); err != nil {
		panic("linkgroup: cannot encode a CDC message: " + err.Error())
	}
	l.queueLLC(&it)
	g.settle(now)
}

// Release says that the driver has no slice of the connection any more. It
// is called once, after [ActConnClosed]; the memory of the send buffer and of
// the RMBE is given back then.
func (c *Conn) Release() { c.Protocol().Release() }

// setLink puts the connection on another link.
func (c *Conn) setLink(to *Link) {
	if c.waitOn != nil {
		c.waitOn.unqueue(c)
	}
	c.planned = nil
	c.link.conns--
	c.link = to
	to.conns++
}

// move takes the connection to another link (RFC 7609, section 4.6).
func (c *Conn) move(to *Link) {
	c.setLink(to)
	c.Protocol().Moved()
}

// peerLink returns the link that the peer sends over, as far as that can be told:
// that of its last message, before there was one that of the handshake.
func (c *Conn) peerLink() *Link { return cmp.Or(c.onto, c.named, c.link) }

// Link returns the link that the connection writes over.
func (c *Conn) Link() *Link { return c.link }

// Group returns the link group.
func (c *Conn) Group() *Group { return c.g }

// sortConns orders connections by alert token, so that what is done to all
// of them does not depend on the order of a map.
func sortConns(list []*Conn) {
	slices.SortFunc(list, func(a, b *Conn) int { return cmp.Compare(a.Token(), b.Token()) })
}
