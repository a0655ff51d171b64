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
//	CONFIRM RKEY, CONTINUATION | during link exchange | negative reply, retry; see beforeAddLink  | 3.5.5.3.1-2
//	CONFIRM RKEY, CONTINUATION | links left to tell   | reply                                     | A.3.6
//	CONFIRM RKEY, CONTINUATION | all links told       | reply, RMB is known                       | 3.5.5.2.1
//	CONFIRM RKEY, CONTINUATION | active link not told | reply, that link fails                    | C.7.1
//	-                          | no CONTINUATION, time | links not told fail                      | C.7.1
//	CONFIRM RKEY               | table is full        | negative reply                            | A.3.5
//	DELETE RKEY                | RMB is known         | reply; its connections are reset          | 3.5.5.2.2
//	DELETE RKEY                | RMB is not known     | negative reply                            | C.7.1

// start starts the exchange that is due, if any.
func (k *rkeyEngine) start() {
	if k.own.kind != rkNone || !k.g.timers[timerRetry].IsZero() || k.deletingLink() {
		return
	}
	for _, r := range k.g.rmbs.list {
		if len(r.waiting) > 0 && k.confirm(r) {
			return
		}
	}
	k.delete()
}

// deletingLink reports whether, on the client, a DELETE LINK exchange is under way.
func (k *rkeyEngine) deletingLink() bool {
	return slices.ContainsFunc(k.g.links.list, func(l *Link) bool { return l.del.phase == deleteReply || l.del.phase == deleteReplied })
}

func (k *rkeyEngine) confirm(r *rmb) bool {
	via := r.waiting[0].link
	if via.state != smc.LinkActive {
		via = k.g.links.best(nil)
	}
	rk := rkeyExchange{kind: rkConfirm, via: via, rmb: r}
	for _, l := range k.g.links.list {
		if l.state != smc.LinkActive {
			continue
		}
		if err := k.g.rmbs.register(r, l); err != nil {
			k.ready(r, err)
			return false
		}
		rk.told[l.slot] = l
		if l != via {
			rk.rest = append(rk.rest, wire.LinkRToken{LinkNum: l.id, RToken: r.at[l.slot].RToken})
		}
	}
	m := wire.ConfirmRKey{Others: uint8(len(rk.rest)), This: r.at[via.slot].RToken}
	rk.sent = copy(m.Other[:], rk.rest)
	k.own = rk
	via.sendLLC(m, nothing, nil)
	k.g.timers.set(timerRKey, k.g.now.Add(k.g.cfg.Timers.RKey))
	return true
}

// ready tells the connections that waited for an RMB.
func (k *rkeyEngine) ready(r *rmb, err error) {
	waiting := r.waiting
	r.waiting = nil
	for _, c := range waiting {
		c.setReady(err)
	}
	if !slices.ContainsFunc(k.g.rmbs.list, func(r *rmb) bool { return len(r.waiting) > 0 }) {
		k.g.timers.stop(timerRKeyWait)
	}
}

// giveUp ends the wait of connections for an exchange that did not start in time.
func (k *rkeyEngine) giveUp() {
	for _, r := range k.g.rmbs.list {
		if len(r.waiting) > 0 {
			k.ready(r, fmt.Errorf("%w: CONFIRM RKEY", ErrTimeout))
		}
	}
}

func (k *rkeyEngine) timeout() {
	if via := k.own.via; k.own.kind != rkNone {
		k.g.change.fail(via, wire.DeleteLinkLostPath, fmt.Errorf("%w: CONFIRM or DELETE RKEY on link %d", ErrTimeout, via.id))
	}
}

func (k *rkeyEngine) recvConfirmReply(l *Link, m wire.ConfirmRKey) {
	if k.own.kind != rkConfirm || k.own.via != l || m.This.RKey != k.own.rmb.at[l.slot].RKey {
		return
	}
	k.confirmReplied(m.Negative, m.Retry)
}

func (k *rkeyEngine) recvContReply(l *Link, m wire.ConfirmRKeyCont) {
	if k.own.kind != rkConfirm || k.own.via != l {
		return
	}
	k.confirmReplied(m.Negative, m.Negative)
}

func (k *rkeyEngine) confirmReplied(negative, retry bool) {
	rk := &k.own
	r := rk.rmb
	if negative {
		k.end()
		if !retry {
			k.ready(r, fmt.Errorf("%w: CONFIRM RKEY", ErrRejected))
		} else if k.g.llc.ex.kind == exNone {
			k.g.timers.set(timerRetry, k.g.now.Add(rkeyRetry))
		}
		return
	}
	rk.rest = rk.rest[rk.sent:]
	if len(rk.rest) > 0 {
		m := wire.ConfirmRKeyCont{Left: uint8(len(rk.rest))}
		rk.sent = copy(m.Other[:], rk.rest)
		rk.via.sendLLC(m, nothing, nil)
		k.g.timers.set(timerRKey, k.g.now.Add(k.g.cfg.Timers.RKey))
		return
	}
	told := rk.told
	k.end()
	for _, m := range k.g.links.list {
		if m.state != smc.LinkInactive && told[m.slot] != m {
			return // again, with the new link
		}
	}
	if r.state == rmbNew {
		r.state = rmbKnown
	}
	k.ready(r, nil)
}

func (k *rkeyEngine) end() {
	k.own = rkeyExchange{}
	k.g.timers.stop(timerRKey)
}

// beforeAddLink reports whether a message that arrives on l is one that the peer sent
// before it processed the ADD LINK of this side. Its answer will name all its RMBs. A
// Linux client whose CONFIRM RKEY is refused leaves the connection to TCP, and answers
// ADD LINK only after CONFIRM RKEY is answered.
func (k *rkeyEngine) beforeAddLink(l *Link) bool {
	return k.g.profile.rkeyFirst && k.g.llc.ex.kind == exAdd && k.g.llc.ex.step == waitAddReply && k.g.llc.ex.via == l
}

// recvConfirm learns an RMB of the peer.
func (k *rkeyEngine) recvConfirm(l *Link, m wire.ConfirmRKey) {
	m.Reply = true
	busy := k.g.llc.ex.kind != exNone && !k.beforeAddLink(l) || k.g.phase != phaseOpen
	var t *rtoken
	if !busy {
		t = k.g.peerRMBs.add(l, m.This, false)
	}
	if t == nil {
		m.Negative, m.Retry = true, busy
		l.sendLLC(m, nothing, nil)
		return
	}
	k.peer = peerRKey{via: l, token: t, left: int(m.Others) - m.Count()}
	k.peer.told[l.slot] = l
	k.learn(m.Other[:m.Count()])
	l.sendLLC(m, nothing, nil)
	k.peerNext()
}

func (k *rkeyEngine) recvCont(l *Link, m wire.ConfirmRKeyCont) {
	m.Reply = true
	p := &k.peer
	if p.via != l || int(m.Left) != p.left || k.g.llc.ex.kind != exNone {
		m.Negative = true
		l.sendLLC(m, nothing, nil)
		return
	}
	k.learn(m.Other[:m.Count()])
	p.left -= m.Count()
	l.sendLLC(m, nothing, nil)
	k.peerNext()
}

func (k *rkeyEngine) learn(list []wire.LinkRToken) {
	p := &k.peer
	for _, e := range list {
		// A number that is not in use is that of a link just deleted.
		if o := k.g.links.byID(e.LinkNum); e.LinkNum != 0 && o != nil {
			p.token.at[o.slot] = slotToken{ok: true, RToken: e.RToken}
			p.told[o.slot] = o
		}
	}
}

func (k *rkeyEngine) peerNext() {
	if k.peer.left > 0 {
		k.g.timers.set(timerPeerRK, k.g.now.Add(k.g.cfg.Timers.LLC))
		return
	}
	k.peerEnd()
}

// peerEnd makes the links fail for which the peer sent no RToken: no connection
// could move to them (RFC 7609, appendix C.7.1).
func (k *rkeyEngine) peerEnd() {
	told := k.peer.told
	k.peer = peerRKey{}
	k.g.timers.stop(timerPeerRK)
	for _, l := range k.g.Links() {
		if l.state == smc.LinkActive && told[l.slot] != l && k.g.phase != phaseDead {
			k.g.change.fail(l, wire.DeleteLinkProtocolViolation, fmt.Errorf("%w: CONFIRM RKEY leaves out link %d", ErrProtocol, l.id))
		}
	}
}

// retire gives up an RMB that has not been used for a while.
func (k *rkeyEngine) retire(r *rmb) {
	if r.inUse > 0 || r.hasWithdrawn() {
		return
	}
	if r.state == rmbNew {
		if k.own.rmb != r {
			k.g.rmbs.free(r) // it was never announced to the peer
		} else {
			r.idleAt = k.g.now.Add(k.g.cfg.Timers.RMBIdle)
		}
		return
	}
	r.state = rmbDeleting
}

func (k *rkeyEngine) delete() {
	via := k.g.links.best(nil)
	rk := rkeyExchange{kind: rkDelete, via: via}
	most := k.g.profile.rkeysPerDelete
	var keys []smc.RKey
	for _, r := range k.g.rmbs.list {
		if via != nil && r.state == rmbDeleting && r.inUse == 0 && len(keys) < most {
			keys = append(keys, r.at[via.slot].RKey)
			rk.rmbs = append(rk.rmbs, r)
		}
	}
	if len(keys) == 0 {
		return
	}
	k.own = rk
	if k.g.profile.extended {
		via.sendLLC(wire.DeleteRKeyV2{RKeys: keys}, nothing, nil)
	} else {
		m := wire.DeleteRKey{Count: uint8(len(keys))}
		copy(m.RKeys[:], keys)
		via.sendLLC(m, nothing, nil)
	}
	k.g.timers.set(timerRKey, k.g.now.Add(k.g.cfg.Timers.RKey))
}

// recvDeleteReply frees the RMBs. After a negative reply, which means that the peer does not
// know them, they can be freed too. That is only logged (RFC 7609, appendix A.3.7).
func (k *rkeyEngine) recvDeleteReply(l *Link, negative bool) {
	if k.own.kind != rkDelete || k.own.via != l {
		return
	}
	if negative {
		k.g.log.Warn("the peer did not know an RMB that it was told to forget", "link", l.id, "rmbs", len(k.own.rmbs))
	}
	gone := k.own.rmbs
	k.end()
	for _, r := range gone {
		k.g.rmbs.free(r)
	}
}

// recvDelete forgets RMBs of the peer.
func (k *rkeyEngine) recvDelete(l *Link, m wire.DeleteRKey) {
	m.Reply = true
	for i, key := range m.RKeys[:m.Count] {
		if !k.forget(l, key) {
			m.Negative = true
			m.ErrorMask |= 0x80 >> i
		}
	}
	l.sendLLC(m, nothing, nil)
}

// recvDeleteV2 is rkeyEngine.recvDelete for version 2.
func (k *rkeyEngine) recvDeleteV2(l *Link, m wire.DeleteRKeyV2) {
	re := wire.DeleteRKeyV2{Reply: true, Count: m.Count}
	for _, key := range m.RKeys {
		if !k.forget(l, key) {
			re.Negative = true
			re.Invalid++
		}
	}
	l.sendLLC(re, nothing, nil)
}

// forget forgets an RMB of the peer. It returns false if no RMB has that RKey.
func (k *rkeyEngine) forget(l *Link, rkey smc.RKey) bool {
	t := k.g.peerRMBs.find(l, rkey)
	if t == nil {
		return false
	}
	k.evictConns(t)
	k.g.peerRMBs.drop(t)
	return true
}

// evictConns ends connections whose RMB the peer has freed. At the peer they have
// ended already.
func (k *rkeyEngine) evictConns(t *rtoken) {
	all := slices.Clone(t.conns)
	sortConns(all)
	for _, c := range all {
		c.Protocol().Evict()
	}
}
