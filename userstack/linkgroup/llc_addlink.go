// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
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
//	-             | link wanted soon after an     | -           | timer AddLinkPause, if the peer may  | -
//	              | exchange of links             |             | be Linux                             |
//	addReply      | reply, rejected               | -           | free, timer AddLinkRetry; soon, if a | 3.5.1.6.2
//	              |                               |             | device of either side has come up    |
//	addReply      | rejection of a deleted link   | -           | free, timer AddLinkPause             | -
//	addReply      | reply, good                   | addCont     | RTR, CONTINUATION                    | 3.5.1.6.2
//	addReply      | reply, parallel or wrong MTU  | delete link | free, DELETE LINK                    | C.7.1
//	addReply,Cont | timer, first contact          | dead        | ActFirstLink err                     | C.7.1
//	addReply,Cont | timer, later                  | -           | free; the carrier fails              | C.7.1
//	              | the same, over the last link  | delete link | free, TEST LINK, DELETE LINK, if the | -
//	              |                               |             | peer may be Linux                    |
//	addCont       | reply, RTokens left           | addCont     | CONTINUATION                         | A.3.3
//	addCont       | reply, no RTokens left        | confirm     | RTS, CONFIRM LINK on the new link    | 3.5.1.6.2
//	addCont       | reply, counts do not match    | -           | free; the carrier fails              | C.7.1
//	confirm       | CONFIRM LINK reply            | -           | link is active                       | 3.5.1.6.2
//	confirm       | timer, failure, wrong values  | delete link | free, DELETE LINK, timer             | C.7.1
//	confirm       | the last active link fails    | confirm     | its connections wait                 | -
//
//	Client: step  | Event                         | Next step   | Actions                              | RFC section
//	--------------+-------------------------------+-------------+--------------------------------------+------------
//	-             | ADD LINK, no path             | -           | reply, rejected 1                    | 3.5.1.6.1
//	-             | ADD LINK, undefined MTU       | -           | reply, rejected 2                    | C.7.1
//	-             | ADD LINK                      | addCont     | queue pair INIT, RTR, reply          | 3.5.1.6.1
//	addCont       | CONTINUATION                  | addCont     | reply with local RTokens             | A.3.3
//	addCont       | CONTINUATION, the last one    | confirm     | reply with local RTokens             | A.3.3
//	addCont       | timer, first contact          | dead        | ActFirstLink err                     | C.7.1
//	addCont       | timer, wrong counts, later    | -           | free; the carrier fails              | C.7.1
//	              | timer, the last link          | -           | free, TEST LINK, DELETE LINK to the  | -
//	              |                               |             | server, if this may be Linux         |
//	confirm       | CONFIRM LINK                  | -           | RTS, reply, link is active           | 3.5.1.6.2
//	confirm       | timer, failure, wrong values  | -           | free, DELETE LINK to the server,     | C.7.1
//	              |                               |             | opens when that is answered          |
//	              |                               |             | timer AddLinkRetry                   | C.7.1
//	confirm       | the last active link fails    | confirm     | its connections wait                 | -
//	-             | new device, that timer        | -           | ADD LINK to the server (no answer)   | 3.5.5.1.2
//
// In version 2, ADD LINK and its reply carry the RTokens themselves. So no
// CONTINUATION is sent, and the step addCont ends at once. The client reports a
// new device with REQUEST ADD LINK. A server answers this message only if it has
// no path to the device.

// possible reports whether there is a device for another link.
func (a *linkAddition) possible() bool {
	_, ok := a.g.links.pickDevice(a.traffic)
	return ok
}

// start is the server's first step.
func (a *linkAddition) start() {
	dev, ok := a.g.links.pickDevice(a.traffic)
	if !ok {
		if a.g.Type() == smc.GroupSingle && a.g.links.max > 1 {
			a.retryLater()
		}
		return
	}
	via := a.carrier(dev)
	l, err := a.g.change.create(dev)
	if err != nil {
		a.g.log.Warn("cannot add a second link", "err", err)
		a.retryLater()
		return
	}
	l.setID(a.g.links.nextID())
	pairs, err := a.pairsFor(l)
	if err != nil {
		a.g.log.Warn("cannot add a second link", "err", err)
		a.g.change.remove(l)
		a.retryLater()
		return
	}
	a.g.llc.ex = exchange{kind: exAdd, step: waitAddReply, via: via, link: l, pairs: pairs, peerLeft: -1}
	a.g.timers.set(timerExchange, a.g.now.Add(a.answerTime()))
	a.send(false)
}

// carrier returns the link to send ADD LINK over: if possible, a link that does not
// end at dev. Linux treats a new link that ends at the port of the carrier as
// asymmetric, and rejects it if it already has an asymmetric link.
func (a *linkAddition) carrier(dev Device) *Link {
	if l := a.g.links.leastUsed(func(l *Link) bool { return l.dev.ID != dev.ID }); l != nil {
		return l
	}
	return a.g.links.best(nil)
}

// send sends the local end of the link to add; in version 2 with the local RTokens
// on this link.
func (a *linkAddition) send(reply bool) {
	ex := &a.g.llc.ex
	l := ex.link
	m := wire.AddLink{
		Reply: reply, MAC: l.local.MAC, GID: l.local.GID, QPN: l.local.QPN,
		LinkNum: l.id, MTU: l.local.MTU, PSN: l.local.PSN,
	}
	if a.g.profile.extended {
		m.Ext = &wire.AddLinkExt{Direct: !a.g.cfg.Routed, TargetGID: ex.via.peer.GID}
		for ; ex.told < len(ex.pairs); ex.told++ {
			m.Ext.Pairs = append(m.Ext.Pairs, a.pair(ex.pairs[ex.told]))
		}
	}
	then := nothing
	if a.g.phase == phaseSecond {
		then = commit
	}
	ex.via.sendLLC(m, then, nil)
	a.g.first.watchSend()
}

// answerTime is how long the peer may take for the next step of ADD LINK.
func (a *linkAddition) answerTime() time.Duration {
	if a.g.phase == phaseSecond {
		return a.g.cfg.Timers.ConfirmFirst
	}
	return a.g.llc.answerTime(a.g.llc.ex.via)
}

// pair names an RMB on the link that carries the exchange and on the new one.
func (a *linkAddition) pair(r *rmb) wire.RKeyPair {
	return wire.RKeyPair{RefRKey: r.at[a.g.llc.ex.via.slot].RKey, New: r.at[a.g.llc.ex.link.slot].RToken}
}

// pairsFor registers the RMBs that the peer knows on a new link.
func (a *linkAddition) pairsFor(l *Link) ([]*rmb, error) {
	var pairs []*rmb
	for _, r := range a.g.rmbs.list {
		if r.state != rmbKnown {
			continue
		}
		if err := a.g.rmbs.register(r, l); err != nil {
			return nil, err
		}
		pairs = append(pairs, r)
	}
	return pairs, nil
}

// recvOffer handles ADD LINK from a client, which reports a new device.
func (a *linkAddition) recvOffer(m wire.AddLink) {
	a.takeOffer(m.GID)
}

// takeOffer starts an attempt to add a link to a device of the client. It reports
// whether the group can use one.
func (a *linkAddition) takeOffer(gid smc.GID) bool {
	if a.g.llc.ex.kind == exAdd || !a.g.links.canGrow() {
		return false
	}
	a.g.log.Debug("client has another device", "gid", gid)
	a.g.links.offered(gid)
	a.tries = 0
	a.wanted, a.hopeful = true, true
	return true
}

// recvReqAddLink handles REQUEST ADD LINK, which reports a new device in version 2. It
// is answered only if the group cannot use the device.
func (a *linkAddition) recvReqAddLink(l *Link, m wire.ReqAddLink) {
	var gid smc.GID
	if len(m.GIDs) > 0 {
		gid = m.GIDs[0]
	}
	if !a.takeOffer(gid) {
		l.sendLLC(wire.ReqAddLink{Reply: true}, nothing, nil)
	}
}

// newDevice starts an attempt to add a link to a local device that came up.
func (a *linkAddition) newDevice() {
	a.tries = 0
	a.wanted, a.hopeful = true, true
}

// offer tells the server that a device has no link, if the group can grow (RFC 7609,
// section 3.5.5.1.2). No answer is needed. Linux does not put the new link on the port
// of the link over which this message arrives. So that link cannot become surplus. For
// this reason the message goes over the link with the most traffic.
func (a *linkAddition) offer() {
	d, ok := a.g.links.idleDevice()
	if !ok || !a.g.links.canGrow() {
		return
	}
	var via *Link
	for _, l := range a.g.links.active() {
		if via == nil || a.traffic(l) > a.traffic(via) {
			via = l
		}
	}
	if via == nil {
		return
	}
	if a.g.profile.extended {
		via.sendLLC(wire.ReqAddLink{GIDs: []smc.GID{d.GID}}, nothing, nil)
		return
	}
	// No queue pair exists yet.
	via.sendLLC(wire.AddLink{MAC: d.MAC, GID: d.GID}, nothing, nil)
}

// recv is the client's first step.
func (a *linkAddition) recv(l *Link, m wire.AddLink) {
	if a.g.llc.ex.kind != exNone || l.state != smc.LinkActive || a.g.phase < phaseSecond {
		return
	}
	a.g.timers.stop(timerFirst)
	a.g.timers.stop(timerAdd) // the server tries by itself: see offerLater
	peer := Endpoint{GID: m.GID, MAC: m.MAC, QPN: m.QPN, PSN: m.PSN, MTU: m.MTU}
	if err := a.accept(l, m, peer); err != nil {
		a.g.log.Info("single link: a second one refused", "err", err)
		m.Reply, m.Rejected, m.Reason = true, true, wire.AddLinkNoAlternatePath
		if !peer.MTU.Valid() {
			m.Reason = wire.AddLinkInvalidMTU
		}
		l.sendLLC(m, nothing, nil)
		a.g.first.committed = true
		if a.g.phase == phaseSecond {
			a.g.first.open()
		}
	}
}

func (a *linkAddition) accept(via *Link, m wire.AddLink, peer Endpoint) error {
	if !m.MTU.Valid() {
		return fmt.Errorf("%w: MTU code %d", ErrInvalidParams, m.MTU)
	}
	if a.g.links.max < 2 {
		return fmt.Errorf("%w: ADD LINK although one link was agreed on", ErrProtocol)
	}
	if m.LinkNum == 0 || a.g.links.byID(m.LinkNum) != nil || peer.QPN == 0 {
		return fmt.Errorf("%w: link number %d, queue pair %s", ErrInvalidParams, m.LinkNum, m.QPN)
	}
	dev, ok := a.g.links.deviceFor(peer, a.traffic)
	if !ok {
		return ErrNoAlternate
	}
	l, err := a.g.change.create(dev)
	if err != nil {
		return err
	}
	l.setID(m.LinkNum)
	pairs, err := a.pairsFor(l)
	if err == nil {
		err = a.g.first.connect(l, peer)
	}
	if err != nil {
		a.g.change.remove(l)
		return err
	}
	a.g.llc.ex = exchange{kind: exAdd, step: waitAddCont, via: via, link: l, pairs: pairs, peerLeft: -1}
	a.g.timers.set(timerExchange, a.g.now.Add(a.answerTime()))
	a.send(true)
	if a.g.profile.extended {
		a.recvExt(m.Ext)
	}
	return nil
}

// recvExt learns the peer's RTokens on the new link in version 2, where one message
// has all of them.
func (a *linkAddition) recvExt(x *wire.AddLinkExt) {
	if x != nil && !a.learnPairs(x.Pairs) {
		return
	}
	a.pairsDone()
}

// refusal returns the reason why a client rejects a second link. Linux gives no
// reason if it has no other device.
func refusal(r wire.AddLinkReason) string {
	switch r {
	case 0, wire.AddLinkNoAlternatePath:
		return "single link: the peer has no other device in this subnet or with this pnetid"
	}
	return "single link: the peer refused a second one: " + r.String()
}

// recvReply is the server's second step.
func (a *linkAddition) recvReply(via *Link, m wire.AddLink) {
	ex := &a.g.llc.ex
	if ex.step != waitAddReply || ex.via != via {
		return
	}
	l := ex.link
	if l.id != m.LinkNum {
		a.rejectedOther(m)
		return
	}
	a.g.first.committed = true
	if m.Rejected {
		a.g.log.Info(refusal(m.Reason))
		a.g.llc.end()
		a.g.change.remove(l)
		if a.g.links.refuse(l.dev) {
			a.wanted = true // from another device
			return
		}
		if a.g.Type() != smc.GroupSymmetric {
			if !a.hopeful {
				a.tries = 16 // a new device will be announced
			}
			a.retryLater()
		}
		return
	}
	peer := Endpoint{GID: m.GID, MAC: m.MAC, QPN: m.QPN, PSN: m.PSN, MTU: m.MTU}
	if !m.MTU.Valid() || m.QPN == 0 || !a.g.links.useful(l.dev, peer) || !a.g.links.reaches(l.dev, peer.GID) {
		a.failed(fmt.Errorf("%w: ADD LINK reply makes a parallel or a second asymmetric link, one to another subnet, or names MTU code %d, queue pair %s", ErrProtocol, m.MTU, m.QPN))
		return
	}
	if err := a.g.first.connect(l, peer); err != nil {
		a.failed(err)
		return
	}
	ex.step = waitAddCont
	if a.g.profile.extended {
		a.recvExt(m.Ext)
		return
	}
	a.sendCont(false)
}

// rejectedOther acts on a rejection that names another link. Linux rejects a request this
// way if it comes while Linux still ends the exchange about that link. The request is
// repeated after a pause.
func (a *linkAddition) rejectedOther(m wire.AddLink) {
	if !m.Rejected || !a.g.profile.slowLLC || !a.g.links.used[m.LinkNum] || a.g.links.byID(m.LinkNum) != nil {
		return
	}
	a.g.log.Info("the peer still ends the exchange about another link", "link", m.LinkNum)
	l := a.g.llc.ex.link
	a.g.llc.end()
	a.g.change.remove(l)
	a.wanted = true
}

// sendCont sends up to two local RTokens on the new link.
func (a *linkAddition) sendCont(reply bool) {
	ex := &a.g.llc.ex
	m := wire.AddLinkCont{Reply: reply, LinkNum: ex.link.id, Left: uint8(len(ex.pairs) - ex.told)}
	for i := range m.Count() {
		m.Pairs[i] = a.pair(ex.pairs[ex.told+i])
	}
	ex.told += m.Count()
	ex.via.sendLLC(m, nothing, nil)
	a.g.timers.set(timerExchange, a.g.now.Add(a.answerTime()))
}

// recvCont learns the peer's RTokens on the new link. The server sends requests
// as long as one of the sides has RTokens that it has not sent.
func (a *linkAddition) recvCont(via *Link, m wire.AddLinkCont) {
	ex := &a.g.llc.ex
	if ex.step != waitAddCont || ex.via != via || ex.link.id != m.LinkNum {
		return
	}
	if ex.peerLeft >= 0 && int(m.Left) != ex.peerLeft {
		a.g.llc.carrierFailed(fmt.Errorf("%w: ADD LINK CONTINUATION with %d RTokens left, not %d", ErrProtocol, m.Left, ex.peerLeft))
		return
	}
	if !a.learnPairs(m.Pairs[:m.Count()]) {
		return
	}
	ex.peerLeft = int(m.Left) - m.Count()
	if a.g.cfg.Role == smc.Client {
		a.sendCont(true)
	}
	if ex.peerLeft > 0 || ex.told < len(ex.pairs) {
		if a.g.cfg.Role == smc.Server {
			a.sendCont(false)
		}
		return
	}
	a.pairsDone()
}

// learnPairs stores RTokens of the peer on the new link. It returns false if
// the exchange has failed.
func (a *linkAddition) learnPairs(pairs []wire.RKeyPair) bool {
	ex := &a.g.llc.ex
	for _, p := range pairs {
		t := a.g.peerRMBs.add(ex.via, smc.RToken{RKey: p.RefRKey}, true)
		if t == nil {
			a.g.llc.carrierFailed(fmt.Errorf("%w: more than %d RMBs", ErrProtocol, maxRMBs))
			return false
		}
		t.at[ex.link.slot] = slotToken{ok: true, RToken: p.New}
	}
	return true
}

// pairsDone goes on when each side knows the other's RMBs on the new link.
func (a *linkAddition) pairsDone() {
	ex := &a.g.llc.ex
	// A connection could not move to a link that does not know its RMB.
	for _, t := range slices.Clone(a.g.peerRMBs.list) {
		if t.at[ex.link.slot].ok {
			continue
		}
		if len(t.conns) > 0 {
			a.failed(fmt.Errorf("%w: no RToken for an RMB in use", ErrProtocol))
			return
		}
		a.g.peerRMBs.drop(t)
	}
	ex.step = waitConfirm
	wait := a.g.cfg.Timers.ConfirmLink
	if a.g.phase == phaseSecond && a.g.cfg.Role == smc.Server {
		wait = min(wait, a.g.cfg.Timers.SecondLink)
	}
	a.g.timers.set(timerExchange, a.g.now.Add(wait))
	if a.g.cfg.Role == smc.Server {
		if err := a.g.env.ReadyQP(ex.link); err != nil {
			a.failed(err)
			return
		}
		a.g.first.sendConfirmLink(ex.link, false)
	}
}

// done ends an exchange whose link is confirmed.
func (a *linkAddition) done() {
	a.g.llc.end()
	a.g.timers.stop(timerAdd)
	a.tries, a.hopeful = 0, false
	a.g.change.resume()
	if a.g.cfg.Role == smc.Client {
		if a.g.phase == phaseSecond {
			a.g.first.open()
		}
		a.g.change.rebalance()
		return
	}
	if x := a.g.links.surplus(); x != nil {
		x.del.want(true, wire.DeleteLinkAsymmetric)
	}
	a.g.change.rebalance()
	// There may be another device, or a device may have come up during the exchange.
	a.wanted = a.wanted || a.g.Type() == smc.GroupSymmetric
}

// answerTime is how long the peer may take to answer over via. After that, via counts
// as failed. The last link gets more time, because the answer may only be late.
func (e *llcEngine) answerTime(via *Link) time.Duration {
	if e.g.links.best(via) == nil {
		return max(e.g.cfg.Timers.LLC, e.g.cfg.Timers.RKey)
	}
	return e.g.cfg.Timers.LLC
}
