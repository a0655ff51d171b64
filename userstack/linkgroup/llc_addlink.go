// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// The ADD LINK exchange (RFC 7609, sections 3.5.1.6 and 3.5.5.1.1).
//
//	Server: step  | Event                         | Next step   | Actions                              | RFC section
//	--------------+-------------------------------+-------------+--------------------------------------+------------
//	-             | link wanted, device found     | addReply    | queue pair INIT, ADD LINK            | 3.5.1.6
//	-             | no device                     | -           | timer AddLinkRetry                   | C.8
//	addReply      | reply, rejected               | -           | free, timer AddLinkRetry             | 3.5.1.6.2
//	addReply      | reply, good                   | addCont     | RTR, CONTINUATION                    | 3.5.1.6.2
//	addReply      | reply, parallel or wrong MTU  | delete link | free, DELETE LINK                    | C.7.1
//	addReply,Cont | timer, first contact          | dead        | ActFirstLink err                     | C.7.1
//	addReply,Cont | timer, later                  | -           | free; link that carried it fails     | C.7.1
//	addCont       | reply, RTokens left           | addCont     | CONTINUATION                         | A.3.3
//	addCont       | reply, all told               | confirm     | RTS, CONFIRM LINK on the new link    | 3.5.1.6.2
//	addCont       | reply, counts do not match    | -           | free; link that carried it fails     | C.7.1
//	confirm       | CONFIRM LINK reply            | -           | link is active                       | 3.5.1.6.2
//	confirm       | timer, failure, wrong values  | delete link | free, DELETE LINK, timer             | C.7.1
//
//	Client: step  | Event                         | Next step   | Actions                              | RFC section
//	--------------+-------------------------------+-------------+--------------------------------------+------------
//	-             | ADD LINK, no path             | -           | reply, rejected 1                    | 3.5.1.6.1
//	-             | ADD LINK, undefined MTU       | -           | reply, rejected 2                    | C.7.1
//	-             | ADD LINK                      | addCont     | queue pair INIT, RTR, reply          | 3.5.1.6.1
//	addCont       | CONTINUATION                  | addCont     | reply with ours                      | A.3.3
//	addCont       | CONTINUATION, all told        | confirm     | reply with ours                      | A.3.3
//	addCont       | timer, first contact          | dead        | ActFirstLink err                     | C.7.1
//	addCont       | timer, wrong counts, later    | -           | free; link that carried it fails     | C.7.1
//	confirm       | CONFIRM LINK                  | -           | RTS, reply, link is active           | 3.5.1.6.2
//	confirm       | timer, failure, wrong values  | -           | free, DELETE LINK to the server,     | C.7.1
//	              |                               |             | opens when that is answered          |
//	              |                               |             | timer AddLinkRetry                   | C.7.1
//	-             | new device, that timer        | -           | ADD LINK to the server (no answer)   | 3.5.5.1.2
//
// In version 2 ADD LINK itself and its reply carry the RTokens, so that the
// step addCont is passed at once and no CONTINUATION is sent; and the client
// tells a new device by REQUEST ADD LINK, which a server that has no path for
// it answers.

// startAdd is the server's first step.
func (g *Group) startAdd() {
	dev, ok := g.pickDevice()
	if !ok {
		if g.Type() == smc.GroupSingle && g.maxLinks > 1 {
			g.retryAdd()
		}
		return
	}
	via := g.carrier(dev)
	l, err := g.newLink(dev)
	if err != nil {
		g.log.Warn("cannot add a second link", "err", err)
		g.retryAdd()
		return
	}
	l.setID(g.nextID())
	pairs, err := g.pairsFor(l)
	if err != nil {
		g.log.Warn("cannot add a second link", "err", err)
		g.removeLink(l)
		g.retryAdd()
		return
	}
	g.ex = exchange{kind: exAdd, step: waitAddReply, via: via, link: l, pairs: pairs, peerLeft: -1}
	g.set(timerExchange, g.now.Add(g.answerTime()))
	g.sendAddLink(false)
}

// carrier returns the link to send ADD LINK over: one that does not end at dev if
// there is such a one. Linux takes a link that ends at the port of the carrier
// for asymmetric, and rejects that where it has an asymmetric one.
func (g *Group) carrier(dev Device) *Link {
	if l := g.leastUsed(func(l *Link) bool { return l.dev.ID != dev.ID }); l != nil {
		return l
	}
	return g.bestLink(nil)
}

// sendAddLink sends our end of the link to add; in version 2 with our RTokens
// on it.
func (g *Group) sendAddLink(reply bool) {
	ex := &g.ex
	l := ex.link
	m := wire.AddLink{
		Reply: reply, MAC: l.local.MAC, GID: l.local.GID, QPN: l.local.QPN,
		LinkNum: l.id, MTU: l.local.MTU, PSN: l.local.PSN,
	}
	if g.v2() {
		m.Ext = &wire.AddLinkExt{Direct: !g.cfg.Routed, TargetGID: ex.via.peer.GID}
		for ; ex.told < len(ex.pairs); ex.told++ {
			m.Ext.Pairs = append(m.Ext.Pairs, g.pair(ex.pairs[ex.told]))
		}
	}
	then := nothing
	if g.phase == phaseSecond {
		then = commit
	}
	ex.via.sendLLC(m, then, nil)
}

// answerTime is how long the peer may take for the next step of ADD LINK.
func (g *Group) answerTime() time.Duration {
	if g.phase == phaseSecond {
		return g.cfg.Timers.ConfirmFirst
	}
	return g.llcTime(g.ex.via)
}

// llcTime is how long the peer may take to answer over via, which then counts as
// failed. The last link is not given up for an answer that may only be late.
func (g *Group) llcTime(via *Link) time.Duration {
	if g.bestLink(via) == nil {
		return max(g.cfg.Timers.LLC, g.cfg.Timers.RKey)
	}
	return g.cfg.Timers.LLC
}

// pair names an RMB on the link that carries the exchange and on the new one.
func (g *Group) pair(r *rmb) wire.RKeyPair {
	return wire.RKeyPair{RefRKey: r.at[g.ex.via.slot].RKey, New: r.at[g.ex.link.slot].RToken}
}

// pairsFor registers the RMBs that the peer knows on a new link.
func (g *Group) pairsFor(l *Link) ([]*rmb, error) {
	var pairs []*rmb
	for _, r := range g.rmbs {
		if r.state != rmbKnown {
			continue
		}
		if err := g.register(r, l); err != nil {
			return nil, err
		}
		pairs = append(pairs, r)
	}
	return pairs, nil
}

// firstAddRetry is the first pause before another try to add a link. It
// doubles up to Timers.AddLinkRetry.
const firstAddRetry = 5 * time.Second

// retryAdd sets the timer for another try (RFC 7609, appendix C.8).
func (g *Group) retryAdd() {
	if last := g.cfg.Timers.AddLinkRetry; last > 0 {
		g.set(timerAdd, g.now.Add(min(last, firstAddRetry<<g.addTries)))
		g.addTries = min(g.addTries+1, 16)
	}
}

// recvAddLinkWish is the client's hint that it has a new device.
func (g *Group) recvAddLinkWish(m wire.AddLink) {
	g.hearWish(m.GID)
}

// hearWish reports whether the server has a use for the client's device.
func (g *Group) hearWish(gid smc.GID) bool {
	if g.ex.kind == exAdd || !g.canGrow() {
		return false
	}
	g.log.Debug("client has another device", "gid", gid)
	g.addTries = 0
	g.addWanted, g.wished = true, true
	return true
}

// recvReqAddLink is that hint in version 2. A reply says no.
func (g *Group) recvReqAddLink(l *Link, m wire.ReqAddLink) {
	var gid smc.GID
	if len(m.GIDs) > 0 {
		gid = m.GIDs[0]
	}
	if !g.hearWish(gid) {
		l.sendLLC(wire.ReqAddLink{Reply: true}, nothing, nil)
	}
}

// newDevice tries what a device that came up is good for.
func (g *Group) newDevice() {
	g.addTries = 0
	g.addWanted = true
}

// wish tells the server of a device without a link, if the group can grow
// (RFC 7609, section 3.5.5.1.2). It need not answer. Linux ends the new link at
// another of its ports than the link that this comes over does, so that if one
// gives way it is not that link: the one with the most to move.
func (g *Group) wish() {
	d, ok := g.idleDevice()
	if !ok || !g.canGrow() {
		return
	}
	var via *Link
	for _, l := range g.activeLinks() {
		if via == nil || g.traffic(l) > g.traffic(via) {
			via = l
		}
	}
	if via == nil {
		return
	}
	if g.v2() {
		via.sendLLC(wire.ReqAddLink{GIDs: []smc.GID{d.GID}}, nothing, nil)
		return
	}
	// No queue pair exists yet.
	via.sendLLC(wire.AddLink{MAC: d.MAC, GID: d.GID}, nothing, nil)
}

// recvAddLink is the client's first step.
func (g *Group) recvAddLink(l *Link, m wire.AddLink) {
	if g.ex.kind != exNone || l.state != smc.LinkActive || g.phase < phaseSecond {
		return
	}
	g.clear(timerFirst)
	peer := Endpoint{GID: m.GID, MAC: m.MAC, QPN: m.QPN, PSN: m.PSN, MTU: m.MTU}
	if err := g.acceptLink(l, m, peer); err != nil {
		g.log.Info("second link refused", "err", err)
		m.Reply, m.Rejected, m.Reason = true, true, wire.AddLinkNoAlternatePath
		if !peer.MTU.Valid() {
			m.Reason = wire.AddLinkInvalidMTU
		}
		l.sendLLC(m, nothing, nil)
		g.committed = true
		if g.phase == phaseSecond {
			g.open()
		}
	}
}

func (g *Group) acceptLink(via *Link, m wire.AddLink, peer Endpoint) error {
	if !m.MTU.Valid() {
		return fmt.Errorf("%w: MTU code %d", ErrInvalidParams, m.MTU)
	}
	if g.maxLinks < 2 {
		return fmt.Errorf("%w: ADD LINK although one link was agreed on", ErrProtocol)
	}
	if m.LinkNum == 0 || g.linkByID(m.LinkNum) != nil || peer.QPN == 0 {
		return fmt.Errorf("%w: link number %d, queue pair %s", ErrInvalidParams, m.LinkNum, m.QPN)
	}
	dev, ok := g.deviceFor(peer)
	if !ok {
		return fmt.Errorf("%w: no alternate path", ErrNoDevice)
	}
	l, err := g.newLink(dev)
	if err != nil {
		return err
	}
	l.setID(m.LinkNum)
	pairs, err := g.pairsFor(l)
	if err == nil {
		err = g.connect(l, peer)
	}
	if err != nil {
		g.removeLink(l)
		return err
	}
	g.ex = exchange{kind: exAdd, step: waitAddCont, via: via, link: l, pairs: pairs, peerLeft: -1}
	g.set(timerExchange, g.now.Add(g.answerTime()))
	g.sendAddLink(true)
	if g.v2() {
		g.recvAddLinkExt(m.Ext)
	}
	return nil
}

// recvAddLinkExt takes the peer's RTokens on the new link in version 2: all
// at once.
func (g *Group) recvAddLinkExt(x *wire.AddLinkExt) {
	if x != nil && !g.learnPairs(x.Pairs) {
		return
	}
	g.pairsDone()
}

// refusal says why a client takes no second link. Linux gives no reason where it
// has no other device.
func refusal(r wire.AddLinkReason) string {
	switch r {
	case 0, wire.AddLinkNoAlternatePath:
		return "single link: the peer has no other path"
	}
	return "single link: the peer refused a second one: " + r.String()
}

// recvAddLinkReply is the server's second step.
func (g *Group) recvAddLinkReply(via *Link, m wire.AddLink) {
	ex := &g.ex
	if ex.kind != exAdd || ex.step != waitAddReply || ex.via != via || ex.link.id != m.LinkNum {
		return
	}
	l := ex.link
	g.committed = true
	if m.Rejected {
		g.log.Info(refusal(m.Reason))
		g.endExchange()
		g.removeLink(l)
		if g.Type() != smc.GroupSymmetric {
			if !g.wished {
				g.addTries = 16 // a new device will be announced
			}
			// Linux announces one whose port is not active yet, and then rejects.
			g.wished = false
			g.retryAdd()
		}
		return
	}
	peer := Endpoint{GID: m.GID, MAC: m.MAC, QPN: m.QPN, PSN: m.PSN, MTU: m.MTU}
	if !m.MTU.Valid() || m.QPN == 0 || !g.useful(l.dev, peer) {
		g.addFailed(fmt.Errorf("%w: ADD LINK reply makes a parallel or a second asymmetric link, or names MTU code %d, queue pair %s", ErrProtocol, m.MTU, m.QPN))
		return
	}
	if err := g.connect(l, peer); err != nil {
		g.addFailed(err)
		return
	}
	ex.step = waitAddCont
	if g.v2() {
		g.recvAddLinkExt(m.Ext)
		return
	}
	g.sendAddLinkCont(false)
}

// sendAddLinkCont tells up to two of our RTokens on the new link.
func (g *Group) sendAddLinkCont(reply bool) {
	ex := &g.ex
	m := wire.AddLinkCont{Reply: reply, LinkNum: ex.link.id, Left: uint8(len(ex.pairs) - ex.told)}
	for i := range m.Count() {
		m.Pairs[i] = g.pair(ex.pairs[ex.told+i])
	}
	ex.told += m.Count()
	ex.via.sendLLC(m, nothing, nil)
	g.set(timerExchange, g.now.Add(g.answerTime()))
}

// recvAddLinkCont takes the peer's RTokens on the new link. The server asks
// as long as either side has some to tell.
func (g *Group) recvAddLinkCont(via *Link, m wire.AddLinkCont) {
	ex := &g.ex
	if ex.kind != exAdd || ex.step != waitAddCont || ex.via != via || ex.link.id != m.LinkNum {
		return
	}
	if ex.peerLeft >= 0 && int(m.Left) != ex.peerLeft {
		g.carrierFailed(fmt.Errorf("%w: ADD LINK CONTINUATION with %d RTokens left, not %d", ErrProtocol, m.Left, ex.peerLeft))
		return
	}
	if !g.learnPairs(m.Pairs[:m.Count()]) {
		return
	}
	ex.peerLeft = int(m.Left) - m.Count()
	if g.cfg.Role == smc.Client {
		g.sendAddLinkCont(true)
	}
	if ex.peerLeft > 0 || ex.told < len(ex.pairs) {
		if g.cfg.Role == smc.Server {
			g.sendAddLinkCont(false)
		}
		return
	}
	g.pairsDone()
}

// learnPairs takes RTokens of the peer on the new link. False means that the
// exchange has failed.
func (g *Group) learnPairs(pairs []wire.RKeyPair) bool {
	ex := &g.ex
	for _, p := range pairs {
		t := g.addRToken(ex.via, smc.RToken{RKey: p.RefRKey}, true)
		if t == nil {
			g.carrierFailed(fmt.Errorf("%w: more than %d RMBs", ErrProtocol, maxRMBs))
			return false
		}
		t.at[ex.link.slot] = slotToken{ok: true, RToken: p.New}
	}
	return true
}

// pairsDone goes on when each side knows the other's RMBs on the new link.
func (g *Group) pairsDone() {
	ex := &g.ex
	// A connection could not move to a link that does not know its RMB.
	for _, t := range slices.Clone(g.rtokens) {
		if t.at[ex.link.slot].ok {
			continue
		}
		if t.conns > 0 {
			g.addFailed(fmt.Errorf("%w: no RToken for an RMB in use", ErrProtocol))
			return
		}
		g.dropRToken(t)
	}
	ex.step = waitConfirm
	g.set(timerExchange, g.now.Add(g.cfg.Timers.ConfirmLink))
	if g.cfg.Role == smc.Server {
		if err := g.env.ReadyQP(ex.link); err != nil {
			g.addFailed(err)
			return
		}
		g.sendConfirmLink(ex.link, false)
	}
}

// addDone ends an exchange whose link is confirmed.
func (g *Group) addDone() {
	l := g.ex.link
	g.endExchange()
	g.clear(timerAdd)
	g.addTries, g.wished = 0, false
	if g.cfg.Role == smc.Client {
		if g.phase == phaseSecond {
			g.open()
		}
		g.rebalance()
		return
	}
	if x := g.surplus(l); x != nil {
		x.delWanted, x.delOrderly, x.delReason = true, true, wire.DeleteLinkAsymmetric
	}
	g.rebalance()
	// Perhaps there is another device, or one has come up meanwhile.
	g.addWanted = g.addWanted || g.Type() == smc.GroupSymmetric
}

// addFailed gives up a link that the peer knows of: it is deleted on both
// sides.
func (g *Group) addFailed(err error) {
	l := g.ex.link
	g.log.Warn("cannot add the link", "link", l.id, "err", err)
	g.endExchange()
	l.state = smc.LinkInactive
	l.closeQP()
	l.delReason, l.delOrderly = wire.DeleteLinkLostPath, false
	if errors.Is(err, ErrProtocol) {
		l.delReason = wire.DeleteLinkProtocolViolation
	}
	g.retryAdd() // the client tells the server of its device again
	if g.cfg.Role == smc.Server {
		l.delWanted = true
	} else {
		g.askDelete(l)
	}
}

// dropAdded gives up a link without telling: the link that carried the
// exchange is lost, and the peer finds out the same way.
func (g *Group) dropAdded() {
	l := g.ex.link
	g.endExchange()
	l.state = smc.LinkInactive
	l.closeQP()
	if g.cfg.Role == smc.Server {
		l.delWanted, l.delReason, l.delOrderly = true, wire.DeleteLinkLostPath, false
		g.addWanted = true // over another link
	} else {
		g.removeLink(l)
	}
}

// carrierFailed treats the link that carries the exchange as lost.
func (g *Group) carrierFailed(err error) {
	via := g.ex.via
	if g.phase == phaseSecond {
		g.die(err)
		return
	}
	g.failLink(via, wire.DeleteLinkLostPath, err)
}

// exchangeTimeout: the peer did not take the next step.
func (g *Group) exchangeTimeout() {
	switch {
	case g.ex.kind == exAdd && g.ex.step == waitConfirm:
		g.addFailed(fmt.Errorf("%w: CONFIRM LINK", ErrTimeout))
	case g.ex.kind == exAdd:
		g.carrierFailed(fmt.Errorf("%w: ADD LINK", ErrTimeout))
	case g.ex.kind == exDelete && g.ex.step == waitDrain:
		g.sendDelete()
	case g.ex.kind == exDelete:
		via := g.ex.via
		g.failLink(via, wire.DeleteLinkLostPath, fmt.Errorf("%w: DELETE LINK", ErrTimeout))
	}
}
