// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// NewConn begins a connection: an RMBE of size 16 KiB << rmbeCode, an alert
// token, a send buffer of sendBuf bytes. ActConnReady reports that the peer knows
// the RMB; it may be queued already when NewConn returns. The first
// connection of a group comes between [Group.FirstLink] and
// [Group.ConnectFirst], all others after the first contact.
//
// The error is ErrInvalidParams, ErrGroupDead, ErrSequence, ErrFull, ErrNoLink or one
// of [Env].
func (g *Group) NewConn(now time.Time, rmbeCode smc.SizeCode, sendBuf int) (*Conn, error) {
	return g.NewConnOf(now, 0, rmbeCode, sendBuf)
}

// NewConnOf is NewConn for a connection of an owner, a user of the host. Owners do not
// share RMBs: a peer that learns an RMB of one owner learns nothing about the memory of
// another owner. They do not share the limit of withdrawn RMBEs either, because one
// owner could use up the limit of all.
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
	case len(g.conns) >= g.cfg.MaxConns || g.rmbs.exhausted() || g.rmbs.withdrawn[owner] > maxWithdrawn:
		return nil, ErrFull
	}
	l := g.links.best(nil)
	if g.phase != phaseOpen {
		l = g.links.list[0]
	}
	if l == nil {
		return nil, ErrNoLink
	}
	r, i, err := g.rmbs.take(now, owner, rmbeCode)
	if err != nil {
		return nil, err
	}
	c := &Conn{g: g, first: g.phase != phaseOpen, link: l, rmb: r, elem: i}
	token := g.env.Random()
	for token == 0 || g.conns[token] != nil {
		token = g.env.Random()
	}
	c.Conn = conn.New(&g.connCfg, (*member)(c), token, r.element(i), g.first.eyeCatcher(), sendBuf, g.cfg.SendChunk)
	g.conns[token] = c
	g.timers.stop(timerIdle)
	l.conns++
	if g.phase != phaseOpen {
		r.state = rmbKnown // by CLC (RFC 7609, section 3.5.1)
	}
	if g.phase == phaseOpen {
		g.tests.prove(c)
	}
	if r.state == rmbKnown {
		c.setReady(nil)
	} else {
		r.waiting = append(r.waiting, c)
		g.timers.set(timerRKeyWait, now.Add(g.cfg.Timers.LLCStart))
		g.advance(now)
	}
	return c, nil
}

// Local returns the values of this side for ACCEPT or CONFIRM. On a subsequent contact,
// a client calls it after [Conn.Attach], because CONFIRM names the link
// that the server chose: a Linux server looks for the RKey of CONFIRM on that
// link. This side may still write over any link (RFC 7609, section 2.3).
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

// Attach takes the values of the peer's ACCEPT or CONFIRM and opens the
// connection. Messages that arrived before are applied. If another connection
// uses the same RMBE or alert token of the peer, it is reset, because the
// peer has given it up (RFC 7609, section 4.4.2). A connection of which both sides
// have said the end does not use the RMBE any more. The reset needs one of two things:
// both connections were named by the same host, or the host that names it now is the
// host of the first contact, which has proved that it is the peer. Otherwise the
// error is ErrNotItsOwn, and nothing changes.
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
	on, t, err := c.findPeerRMB(peer)
	if err != nil {
		return err
	}
	if !t.on(c.link) {
		l := g.links.withRMB(t)
		if l == nil {
			return fmt.Errorf("%w: %s on any active link", ErrUnknownRKey, peer.RKey)
		}
		c.setLink(l)
	}
	if err := c.evictOthers(t, peer); err != nil {
		return err
	}
	c.peerRMB, c.peer = t, peer
	t.conns = append(t.conns, c)
	g.peerTokens[peer.Token] = c
	if g.cfg.Role == smc.Client && g.phase == phaseOpen {
		c.named = on
	}
	c.Protocol().Establish(conn.Remote{
		Token: peer.Token, Size: peer.SizeCode.Bytes(), Eye: g.peerEye, LinkGone: on == nil, Redundant: g.links.redundant(c.link),
	})
	g.advance(now)
	return nil
}

// findPeerRMB returns the link and the RMB that ACCEPT or CONFIRM names. The link is
// nil if it was removed while CONFIRM was under way. A client that gets such an
// ACCEPT declines: a Linux server does not move a connection that is not open yet.
//
// The RMB of a first contact is announced by CLC; with one link, only by CLC. The peer
// must announce every other RMB on all links with CONFIRM RKEY before (RFC 7609,
// section 3.5.5.2.1), so that CLC names nothing new. Linux does this too. Anybody who
// can make a TCP connection can send CLC messages, but only the peer has the queue
// pair.
func (c *Conn) findPeerRMB(peer ConnParams) (on *Link, t *rtoken, err error) {
	g := c.g
	on = g.links.list[0]
	if g.phase == phaseOpen {
		on = g.links.to(peer.Link)
	}
	if on == nil {
		if p := g.peerRMBs.to(g.now, peer.Link, g.links.samePort); p != nil && g.cfg.Role == smc.Server {
			t = p.rmbs[peer.RKey]
		}
		if t == nil {
			return nil, nil, fmt.Errorf("%w to queue pair %s", ErrNoLink, peer.Link.QPN)
		}
		g.log.Info("CONFIRM names a link that has since failed", "peerqpn", peer.Link.QPN)
		return nil, t, nil
	}
	if t = g.peerRMBs.find(on, peer.RKey); t == nil {
		if !c.first || g.end.opened() && g.links.redundant(on) {
			return nil, nil, fmt.Errorf("%w: %s on link %d", ErrUnknownRKey, peer.RKey, on.id)
		}
		if t = g.peerRMBs.add(on, smc.RToken{RKey: peer.RKey, Addr: peer.VAddr}, false); t == nil {
			return nil, nil, fmt.Errorf("%w: %d RMBs of the peer", ErrFull, maxRMBs)
		}
	}
	switch at := &t.at[on.slot]; {
	case at.noAddr && c.first:
		at.noAddr, at.Addr = false, peer.VAddr
	case at.noAddr, at.Addr != peer.VAddr && !c.first:
		return nil, nil, fmt.Errorf("%w: %s at %#x on link %d", ErrUnknownRKey, peer.RKey, peer.VAddr, on.id)
	}
	return on, t, nil
}

// evictOthers ends the connections that have the element or the alert token that
// the peer has named for c.
func (c *Conn) evictOthers(t *rtoken, peer ConnParams) error {
	g := c.g
	var others []*Conn // mostly none
	for _, o := range t.conns {
		if o.sharesElement(c, peer) {
			others = append(others, o)
		}
	}
	if o := g.peerTokens[peer.Token]; o != nil && o != c && o.peerRMB != t {
		others = append(others, o)
	}
	sortConns(others)
	for _, o := range others {
		if peer.From != o.peer.From && peer.From != g.cfg.PeerHost {
			return fmt.Errorf("%w: element %d, alert token %#x: %s says so, and %s said so before", ErrNotItsOwn, peer.Index, peer.Token, peer.From, o.peer.From)
		}
	}
	for _, o := range others {
		// This is expected if this side has sent C: the peer's last message goes over
		// RoCE, and may arrive after the CLC message of its next connection.
		log := g.log.Warn
		if o.Protocol().CloseSent() {
			log = g.log.Debug
		}
		log("peer reused an RMB element", "token", o.Token())
		o.Protocol().Evict()
	}
	return nil
}

// sharesElement reports whether c, another connection on the same RMB of the peer, is attached with
// the element or the alert token that the peer names for o.
//
// A connection whose end both sides have said does not use the element any more. The
// peer gives the element to its next connection when it has received the last message
// of this side, which this side learns later. The next connection may come from
// another address of the peer.
func (c *Conn) sharesElement(o *Conn, peer ConnParams) bool {
	return c != o && (c.peer.Token == peer.Token || overlap(c.peer, peer) && !c.Protocol().EndExchanged())
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
	g.advance(now)
}

// Refuse tells the peer that a connection could not be attached and is over. peer has
// the values of its CONFIRM. [Conn.Cancel] follows. This is for Linux peers: they use
// SMC-R as soon as they have sent CONFIRM, and do not look at TCP any more. If a
// connection has this alert token of the peer already, CONFIRM may come from another
// host, and nothing is sent.
func (c *Conn) Refuse(now time.Time, peer ConnParams) {
	g := c.g
	l := c.link
	if g.phase != phaseOpen || !l.usable() || c.Protocol().Established() || c.stage == stageCanceled || peer.Token == 0 {
		return
	}
	if g.peerTokens[peer.Token] != nil {
		return
	}
	g.now = now
	var it llcItem
	if _, err := (wire.CDC{Seq: 1, Token: peer.Token, State: wire.ConnAbnormalClose}).AppendBinary(it.msg[:0]); err != nil {
		panic("linkgroup: cannot encode a CDC message: " + err.Error())
	}
	l.queueLLC(&it)
	g.advance(now)
}

// PeerToken returns the alert token that the peer has chosen, 0 before Attach.
func (c *Conn) PeerToken() uint32 { return c.peer.Token }
