// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"slices"

	"smcr/smc"
	"smcr/userstack/wire"
)

// CONFIRM RKEY and DELETE RKEY (RFC 7609, section 3.5.5.2).
//
//	Our exchange | Event                          | Next    | Actions                               | RFC section
//	-------------+--------------------------------+---------+---------------------------------------+------------
//	-            | RMB wanted, no link exchange   | confirm | register, CONFIRM RKEY                | 3.5.5.2.1
//	-            | RMB unused, no link exchange   | delete  | DELETE RKEY                           | 3.5.5.2.2
//	confirm      | reply, links left to tell      | confirm | CONFIRM RKEY CONTINUATION             | A.3.6
//	confirm      | reply                          | -       | ActConnReady                          | 3.5.5.2.1
//	confirm      | reply, a link was added since  | confirm | again                                 | 3.5.5.3.1
//	confirm      | negative reply, retry          | -       | again after the exchange or a pause   | A.3.5
//	confirm      | negative reply                 | -       | ActConnReady err                      | A.3.5
//	confirm      | timer                          | -       | carrier fails, again over another     | C.7.1
//	delete       | reply                          | -       | free                                  | 3.5.5.2.2
//	delete       | timer                          | -       | carrier fails, again over another     | C.7.1
//
//	Peer's message             | When                 | Actions                                   | RFC section
//	---------------------------+----------------------+-------------------------------------------+------------
//	CONFIRM RKEY, CONTINUATION | during link exchange | negative reply, retry; see unheard        | 3.5.5.3.1-2
//	CONFIRM RKEY, CONTINUATION | links left to tell   | reply                                     | A.3.6
//	CONFIRM RKEY, CONTINUATION | all links told       | reply, RMB is known                       | 3.5.5.2.1
//	CONFIRM RKEY, CONTINUATION | active link not told | reply, that link fails                    | C.7.1
//	-                          | no CONTINUATION, time | links not told fail                      | C.7.1
//	CONFIRM RKEY               | table is full        | negative reply                            | A.3.5
//	DELETE RKEY                | RMB is known         | reply; its connections are reset          | 3.5.5.2.2
//	DELETE RKEY                | RMB is not known     | negative reply                            | C.7.1

type rkKind uint8

const (
	rkNone rkKind = iota
	rkConfirm
	rkDelete
)

// deleteRKeyMaxV2 is how many RKeys go into one DELETE RKEY of version 2: what
// leaves it at the length of the other messages.
const deleteRKeyMaxV2 = 9

// rkeyExchange is our exchange under way.
type rkeyExchange struct {
	kind rkKind
	via  *Link
	rmb  *rmb   // to confirm
	rmbs []*rmb // to delete
	told [maxSlots]*Link
	rest []wire.LinkRToken // links for continuations
	sent int               // entries of the last message
}

// peerRKey is a CONFIRM RKEY of the peer that has continuations.
type peerRKey struct {
	active bool
	via    *Link
	token  *rtoken
	told   [maxSlots]*Link
	left   int
}

// startRKey starts the exchange that is due, if any.
func (g *Group) startRKey() {
	if g.rk.kind != rkNone || !g.timers[timerRetry].IsZero() || g.deleting() {
		return
	}
	for _, r := range g.rmbs {
		if r.state == rmbNew && len(r.waiting) > 0 && g.confirmRKey(r) {
			return
		}
	}
	g.deleteRKeys()
}

// deleting says, on the client, that a DELETE LINK exchange is under way.
func (g *Group) deleting() bool {
	return slices.ContainsFunc(g.links, func(l *Link) bool { return l.delReply || l.delReplied })
}

func (g *Group) confirmRKey(r *rmb) bool {
	via := r.waiting[0].link
	if via.state != smc.LinkActive {
		via = g.bestLink(nil)
	}
	rk := rkeyExchange{kind: rkConfirm, via: via, rmb: r}
	for _, l := range g.links {
		if l.state != smc.LinkActive {
			continue
		}
		if err := g.register(r, l); err != nil {
			g.rkeyReady(r, err)
			return false
		}
		rk.told[l.slot] = l
		if l != via {
			rk.rest = append(rk.rest, wire.LinkRToken{LinkNum: l.id, RToken: r.at[l.slot].RToken})
		}
	}
	m := wire.ConfirmRKey{Others: uint8(len(rk.rest)), This: r.at[via.slot].RToken}
	rk.sent = copy(m.Other[:], rk.rest)
	g.rk = rk
	via.sendLLC(m, nothing, nil)
	g.set(timerRKey, g.now.Add(g.cfg.Timers.RKey))
	return true
}

// rkeyReady tells the connections that waited for an RMB.
func (g *Group) rkeyReady(r *rmb, err error) {
	waiting := r.waiting
	r.waiting = nil
	for _, c := range waiting {
		c.setReady(err)
	}
	if !slices.ContainsFunc(g.rmbs, func(r *rmb) bool { return len(r.waiting) > 0 }) {
		g.clear(timerRKeyWait)
	}
}

// rkeyGiveUp: connections have waited too long for an exchange to start.
func (g *Group) rkeyGiveUp() {
	for _, r := range g.rmbs {
		if len(r.waiting) > 0 {
			g.rkeyReady(r, fmt.Errorf("%w: CONFIRM RKEY", ErrTimeout))
		}
	}
}

func (g *Group) rkeyTimeout() {
	if via := g.rk.via; g.rk.kind != rkNone {
		g.failLink(via, wire.DeleteLinkLostPath, fmt.Errorf("%w: CONFIRM or DELETE RKEY on link %d", ErrTimeout, via.id))
	}
}

func (g *Group) recvConfirmRKeyReply(l *Link, m wire.ConfirmRKey) {
	if g.rk.kind != rkConfirm || g.rk.via != l || m.This.RKey != g.rk.rmb.at[l.slot].RKey {
		return
	}
	g.confirmReplied(m.Negative, m.Retry)
}

func (g *Group) recvConfirmRKeyContReply(l *Link, m wire.ConfirmRKeyCont) {
	if g.rk.kind != rkConfirm || g.rk.via != l {
		return
	}
	g.confirmReplied(m.Negative, m.Negative)
}

func (g *Group) confirmReplied(negative, retry bool) {
	rk := &g.rk
	r := rk.rmb
	if negative {
		g.endRKey()
		if !retry {
			g.rkeyReady(r, fmt.Errorf("%w: CONFIRM RKEY", ErrRejected))
		} else if g.ex.kind == exNone {
			g.set(timerRetry, g.now.Add(rkeyRetry))
		}
		return
	}
	rk.rest = rk.rest[rk.sent:]
	if len(rk.rest) > 0 {
		m := wire.ConfirmRKeyCont{Left: uint8(len(rk.rest))}
		rk.sent = copy(m.Other[:], rk.rest)
		rk.via.sendLLC(m, nothing, nil)
		g.set(timerRKey, g.now.Add(g.cfg.Timers.RKey))
		return
	}
	told := rk.told
	g.endRKey()
	for _, m := range g.links {
		if m.state != smc.LinkInactive && told[m.slot] != m {
			return // again, with the new link
		}
	}
	if r.state == rmbNew {
		r.state = rmbKnown
	}
	g.rkeyReady(r, nil)
}

func (g *Group) endRKey() {
	g.rk = rkeyExchange{}
	g.clear(timerRKey)
}

// unheard says that the peer has not dealt with our ADD LINK when it sends what
// arrives on l, and will tell all its RMBs in the answer. A Linux client whose
// CONFIRM RKEY is refused leaves the connection to TCP, and answers ADD LINK only
// after CONFIRM RKEY is answered.
func (g *Group) unheard(l *Link) bool {
	return g.cfg.PeerOS == smc.OSLinux && g.ex.kind == exAdd && g.ex.step == waitAddReply && g.ex.via == l
}

// recvConfirmRKey learns an RMB of the peer.
func (g *Group) recvConfirmRKey(l *Link, m wire.ConfirmRKey) {
	m.Reply = true
	busy := g.ex.kind != exNone && !g.unheard(l) || g.phase != phaseOpen
	var t *rtoken
	if !busy {
		t = g.addRToken(l, m.This, false)
	}
	if t == nil {
		m.Negative, m.Retry = true, busy
		l.sendLLC(m, nothing, nil)
		return
	}
	g.peerRK = peerRKey{active: true, via: l, token: t, left: int(m.Others) - m.Count()}
	g.peerRK.told[l.slot] = l
	g.learnRTokens(m.Other[:m.Count()])
	l.sendLLC(m, nothing, nil)
	g.peerRKeyDone()
}

func (g *Group) recvConfirmRKeyCont(l *Link, m wire.ConfirmRKeyCont) {
	m.Reply = true
	p := &g.peerRK
	if !p.active || p.via != l || int(m.Left) != p.left || g.ex.kind != exNone {
		m.Negative = true
		l.sendLLC(m, nothing, nil)
		return
	}
	g.learnRTokens(m.Other[:m.Count()])
	p.left -= m.Count()
	l.sendLLC(m, nothing, nil)
	g.peerRKeyDone()
}

func (g *Group) learnRTokens(list []wire.LinkRToken) {
	p := &g.peerRK
	for _, k := range list {
		// A number that is not in use is that of a link just deleted.
		if o := g.linkByID(k.LinkNum); k.LinkNum != 0 && o != nil {
			p.token.at[o.slot] = slotToken{ok: true, RToken: k.RToken}
			p.told[o.slot] = o
		}
	}
}

func (g *Group) peerRKeyDone() {
	if g.peerRK.left > 0 {
		g.set(timerPeerRK, g.now.Add(g.cfg.Timers.LLC))
		return
	}
	g.peerRKeyEnd()
}

// peerRKeyEnd fails the links for which the peer told no RToken: no connection
// could move to them (RFC 7609, appendix C.7.1).
func (g *Group) peerRKeyEnd() {
	told := g.peerRK.told
	g.peerRK = peerRKey{}
	g.clear(timerPeerRK)
	for _, l := range g.Links() {
		if l.state == smc.LinkActive && told[l.slot] != l && !g.dead {
			g.failLink(l, wire.DeleteLinkProtocolViolation, fmt.Errorf("%w: CONFIRM RKEY leaves out link %d", ErrProtocol, l.id))
		}
	}
}

// retire gives up an RMB that has not been used for a while.
func (g *Group) retire(r *rmb) {
	if r.inUse > 0 || r.hasLost() {
		return
	}
	if r.state == rmbNew {
		if g.rk.rmb != r {
			g.freeRMB(r) // the peer never heard of it
		} else {
			r.idleAt = g.now.Add(g.cfg.Timers.RMBIdle)
		}
		return
	}
	r.state = rmbDeleting
}

func (g *Group) deleteRKeys() {
	via := g.bestLink(nil)
	rk := rkeyExchange{kind: rkDelete, via: via}
	most := len(wire.DeleteRKey{}.RKeys)
	if g.v2() {
		most = deleteRKeyMaxV2
	}
	var keys []smc.RKey
	for _, r := range g.rmbs {
		if via != nil && r.state == rmbDeleting && r.inUse == 0 && len(keys) < most {
			keys = append(keys, r.at[via.slot].RKey)
			rk.rmbs = append(rk.rmbs, r)
		}
	}
	if len(keys) == 0 {
		return
	}
	g.rk = rk
	if g.v2() {
		via.sendLLC(wire.DeleteRKeyV2{RKeys: keys}, nothing, nil)
	} else {
		m := wire.DeleteRKey{Count: uint8(len(keys))}
		copy(m.RKeys[:], keys)
		via.sendLLC(m, nothing, nil)
	}
	g.set(timerRKey, g.now.Add(g.cfg.Timers.RKey))
}

// recvDeleteRKeyReply frees the RMBs. A negative reply means that the peer
// does not know them, which is as good.
func (g *Group) recvDeleteRKeyReply(l *Link) {
	if g.rk.kind != rkDelete || g.rk.via != l {
		return
	}
	gone := g.rk.rmbs
	g.endRKey()
	for _, r := range gone {
		g.freeRMB(r)
	}
}

// recvDeleteRKey forgets RMBs of the peer.
func (g *Group) recvDeleteRKey(l *Link, m wire.DeleteRKey) {
	m.Reply = true
	for i, k := range m.RKeys[:m.Count] {
		if !g.forgetRKey(l, k) {
			m.Negative = true
			m.ErrorMask |= 0x80 >> i
		}
	}
	l.sendLLC(m, nothing, nil)
}

// recvDeleteRKeyV2 is recvDeleteRKey for version 2.
func (g *Group) recvDeleteRKeyV2(l *Link, m wire.DeleteRKeyV2) {
	re := wire.DeleteRKeyV2{Reply: true, Count: m.Count}
	for _, k := range m.RKeys {
		if !g.forgetRKey(l, k) {
			re.Negative = true
			re.Invalid++
		}
	}
	l.sendLLC(re, nothing, nil)
}

// forgetRKey forgets an RMB of the peer; false if there is none of that RKey.
func (g *Group) forgetRKey(l *Link, rkey smc.RKey) bool {
	t := g.findRToken(l, rkey)
	if t == nil {
		return false
	}
	if t.conns > 0 {
		g.rkeyLost(t)
	}
	g.dropRToken(t)
	return true
}

// rkeyLost ends connections whose RMB the peer has freed: for the peer they
// are over.
func (g *Group) rkeyLost(t *rtoken) {
	for _, c := range g.connsSorted() {
		if c.peerRMB == t {
			c.Protocol().Evict()
		}
	}
}
