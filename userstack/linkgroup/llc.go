// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"smcr/userstack/wire"
)

// LLC exchanges and their serialization (RFC 7609, section 3.5.5.3). At one
// time there is at most one exchange that changes links (exchange) and one
// that changes our RMBs (rkeyExchange); the server starts neither while the
// other is under way, the client no RKey exchange during a link exchange.
// What meets a running exchange:
//
//	Message                   | during ADD LINK    | during DELETE LINK | during our CONFIRM/DELETE RKEY
//	--------------------------+--------------------+--------------------+-------------------------------
//	TEST LINK                 | reply              | reply              | reply
//	ADD LINK from client      | ignored            | queued             | queued
//	ADD LINK from server      | ignored            | -                  | processed; our RMB again after
//	DELETE LINK from client   | queued; disorderly | queued; disorderly | queued; disorderly
//	                          | fails the link now | fails the link now | fails the link now
//	DELETE LINK from server   | processed          | -                  | processed
//	DELETE LINK all           | end of group       | end of group       | end of group
//	CONFIRM RKEY              | negative, retry    | negative, retry    | processed
//	DELETE RKEY               | processed          | processed          | processed
//	reply to nothing          | ignored            | ignored            | ignored

type exKind uint8

const (
	exNone exKind = iota
	exAdd
	exDelete
)

// exStep is what an exchange waits for.
type exStep uint8

const (
	waitAddReply    exStep = iota + 1 // server: ADD LINK reply
	waitAddCont                       // ADD LINK CONTINUATION, request or reply
	waitConfirm                       // CONFIRM LINK on the new link, request or reply
	waitDrain                         // server: completions on the link to be deleted
	waitDeleteReply                   // server: DELETE LINK reply
)

// exchange is the link exchange under way.
type exchange struct {
	kind     exKind
	step     exStep
	via      *Link // carries it
	link     *Link // is being added or deleted
	pairs    []*rmb
	told     int // of pairs
	peerLeft int // RTokens that the peer has yet to tell, -1 before it said
}

// nextID assigns a link number. Numbers come round only after all others
// (RFC 7609, section 2.2.4).
func (g *Group) nextID() uint8 {
	for {
		g.lastID++
		if g.lastID != 0 && g.linkByID(g.lastID) == nil {
			g.usedIDs[g.lastID] = true
			return g.lastID
		}
	}
}

func (g *Group) linkByID(id uint8) *Link {
	for _, l := range g.links {
		if l.id == id {
			return l
		}
	}
	return nil
}

func (l *Link) setID(id uint8) {
	l.id = id
	l.g.usedIDs[id] = true
	l.uid = binary.BigEndian.Uint32(l.g.cfg.ID[:]) + uint32(id)
}

// newLink creates a link with a queue pair in INIT.
func (g *Group) newLink(dev Device) (*Link, error) {
	slot := 0
	for slot < maxSlots && slices.ContainsFunc(g.links, func(l *Link) bool { return l.slot == slot }) {
		slot++
	}
	if slot == maxSlots {
		return nil, fmt.Errorf("%w: %d links", ErrFull, maxSlots)
	}
	l := &Link{g: g, slot: slot, dev: dev, state: LinkActivating, sq: make([]request, g.cfg.SendQueue), lastRx: g.now}
	ep, err := g.env.NewQP(l, dev)
	if err != nil {
		return nil, fmt.Errorf("linkgroup: create a queue pair on %s: %w", dev.Name, err)
	}
	l.local, l.qpOpen = ep, true
	g.links = append(g.links, l)
	return l, nil
}

// removeLink forgets a link and what depends on it.
func (g *Group) removeLink(l *Link) {
	if l == nil || !slices.Contains(g.links, l) {
		return
	}
	l.state = LinkInactive
	l.closeQP()
	g.unhook(l)
	g.deregister(l)
	for _, t := range slices.Clone(g.rtokens) {
		t.at[l.slot] = slotToken{}
		if t.conns == 0 && t.at == ([maxSlots]slotToken{}) {
			g.dropRToken(t)
		}
	}
	g.links = slices.DeleteFunc(g.links, func(m *Link) bool { return m == l })
	for _, m := range g.links {
		if m.delVia == l {
			m.delVia = nil
		}
	}
	g.moveConns(l)
	if !g.dead && g.bestLink(nil) == nil && g.phase >= phaseConfirm {
		g.die(ErrNoLink)
	}
}

// moveConns takes the connections of l to the others.
func (g *Group) moveConns(l *Link) {
	if l.conns == 0 || g.bestLink(l) == nil {
		return
	}
	for _, c := range g.connsSorted() {
		if c.link != l || c.inflight > 0 {
			continue // completions on a link that is alive come first
		}
		c.move(g.bestLink(l))
	}
}

// activate makes a confirmed link carry connections.
func (g *Group) activate(l *Link, peerUID uint32) {
	l.state, l.peerUID = LinkActive, peerUID
	g.armTest(l)
	g.log.Info("link is active", "link", l.id, "dev", l.dev.Name, "peer", l.peer.GID, "qpn", l.local.QPN, "peerqpn", l.peer.QPN, "group", g.Type())
}

// FirstLink creates the first link of the group and returns our end of it.
func (g *Group) FirstLink(now time.Time) (Endpoint, error) {
	if g.phase != phaseNew {
		return Endpoint{}, ErrSequence
	}
	g.now = now
	i := slices.IndexFunc(g.devices, func(d Device) bool { return d.Up })
	if i < 0 {
		return Endpoint{}, ErrNoDevice
	}
	l, err := g.newLink(g.devices[i])
	if err != nil {
		return Endpoint{}, err
	}
	if g.cfg.Role == Server {
		l.setID(g.nextID())
	}
	g.phase = phaseLinked
	return l.local, nil
}

// ConnectFirst connects the first link to the peer's end and starts its
// confirmation. [ActFirstLink] follows, for a group that is usable or for
// one that is not. After an error the caller ends the group with
// [Group.Terminate].
func (g *Group) ConnectFirst(now time.Time, peer Endpoint) error {
	if g.phase != phaseLinked {
		return ErrSequence
	}
	g.now = now
	if err := peer.check(); err != nil {
		return err
	}
	l := g.links[0]
	if err := g.connect(l, peer); err != nil {
		return err
	}
	if g.cfg.Role == Server {
		if err := g.env.ReadyQP(l); err != nil {
			return fmt.Errorf("linkgroup: first link: %w", err)
		}
	}
	g.phase = phaseConfirm
	g.set(timerFirst, now.Add(g.cfg.Timers.ConfirmFirst))
	if g.cfg.Role == Server {
		g.sendConfirmLink(l, false)
	}
	return nil
}

// connect takes the queue pair of l to RTR.
func (g *Group) connect(l *Link, peer Endpoint) error {
	l.peer = peer
	if err := g.env.ConnectQP(l, peer, min(l.local.MTU, peer.MTU)); err != nil {
		return fmt.Errorf("linkgroup: connect queue pair %#06x: %w", l.local.QPN, err)
	}
	return nil
}

func (g *Group) sendConfirmLink(l *Link, reply bool) {
	l.sendLLC(wire.ConfirmLink{
		Reply: reply, NoEyecatcher: !g.eye, MAC: l.local.MAC, GID: l.local.GID, QPN: wire.QPN(l.local.QPN),
		LinkNum: l.id, LinkUserID: l.uid, MaxLinks: uint8(g.maxLinks), MaxConns: uint8(min(g.cfg.MaxConns, 255)),
	}, nothing, nil)
}

// firstTimeout: the peer did not go on with the first contact.
func (g *Group) firstTimeout() {
	if g.phase == phaseSecond && g.cfg.Role == Client && !g.peerEye {
		// Linux goes on with one link, and so with it do we.
		g.log.Warn("server did not try a second link")
		g.open()
		return
	}
	g.die(fmt.Errorf("%w: CONFIRM LINK", ErrTimeout))
}

// open ends the first contact: data may flow.
func (g *Group) open() {
	g.phase, g.opened = phaseOpen, true
	g.clear(timerFirst)
	g.log.Info("link group is open", "type", g.Type().String())
	g.act(Action{Kind: ActFirstLink})
	for _, c := range g.connsSorted() {
		c.transmit()
	}
}

// recvLLC dispatches an LLC message.
func (g *Group) recvLLC(l *Link, msg []byte) {
	m, err := wire.ParseLLC(msg)
	if err != nil {
		var op *wire.OpcodeError
		if errors.As(err, &op) && op.Discard() {
			return
		}
		g.violation(l, err)
		return
	}
	g.log.Debug("received", "link", l.id, "msg", m.LLCType(), "reply", m.IsReply())
	if !g.sameVersion(msg) {
		g.violation(l, fmt.Errorf("%s in a link group of version %d", m.LLCType(), g.cfg.Version))
		return
	}
	if l.delAsked {
		// We have told the server that this link is gone (appendix C.7.1).
		if d, ok := m.(wire.DeleteLink); !ok || !d.All {
			return
		}
	}
	switch m := m.(type) {
	case wire.ConfirmLink:
		g.recvConfirmLink(l, m)
	case wire.AddLink:
		switch {
		case g.cfg.Role == Server && !m.Reply:
			g.recvAddLinkWish(m)
		case g.cfg.Role == Server:
			g.recvAddLinkReply(l, m)
		case !m.Reply:
			g.recvAddLink(l, m)
		}
	case wire.ReqAddLink:
		if g.cfg.Role == Server && !m.Reply {
			g.recvReqAddLink(l, m)
		}
	case wire.AddLinkCont:
		if m.Reply == (g.cfg.Role == Server) {
			g.recvAddLinkCont(l, m)
		}
	case wire.DeleteLink:
		g.recvDeleteLink(l, m)
	case wire.ConfirmRKey:
		if m.Reply {
			g.recvConfirmRKeyReply(l, m)
		} else {
			g.recvConfirmRKey(l, m)
		}
	case wire.ConfirmRKeyCont:
		if m.Reply {
			g.recvConfirmRKeyContReply(l, m)
		} else {
			g.recvConfirmRKeyCont(l, m)
		}
	case wire.DeleteRKey:
		if m.Reply {
			g.recvDeleteRKeyReply(l)
		} else {
			g.recvDeleteRKey(l, m)
		}
	case wire.DeleteRKeyV2:
		if m.Reply {
			g.recvDeleteRKeyReply(l)
		} else {
			g.recvDeleteRKeyV2(l, m)
		}
	case wire.TestLink:
		g.recvTestLink(l, m)
	}
}

// sameVersion checks that a well-formed message is of the version of the
// group. It keeps to the byte order in which a peer of version 2 writes.
func (g *Group) sameVersion(msg []byte) bool {
	h, err := wire.ParseLLCHeader(msg)
	if err != nil || h.Layout.V2() != g.v2() {
		return false
	}
	if g.v2() {
		g.layout = h.Layout
	}
	return true
}

// recvConfirmLink takes the request on the client and the reply on the
// server, for the first and for added links.
func (g *Group) recvConfirmLink(l *Link, m wire.ConfirmLink) {
	if m.Reply != (g.cfg.Role == Server) {
		return
	}
	first := g.phase == phaseConfirm && l == g.links[0]
	added := g.ex.kind == exAdd && g.ex.step == waitConfirm && g.ex.link == l
	if !first && !added {
		return
	}
	g.committed = g.committed || added
	if err := g.checkConfirmLink(l, m); err != nil {
		if first {
			g.die(err)
		} else {
			g.addFailed(err)
		}
		return
	}
	if g.cfg.Role == Client {
		if err := g.env.ReadyQP(l); err != nil {
			if first {
				g.die(err)
			} else {
				g.addFailed(err)
			}
			return
		}
		l.setID(m.LinkNum)
	}
	if first {
		g.negotiate(m)
	}
	g.activate(l, m.LinkUserID)
	if g.cfg.Role == Client {
		g.sendConfirmLink(l, true)
	}
	if added {
		g.addDone()
		return
	}
	g.phase = phaseSecond
	if g.maxLinks < 2 {
		g.open()
		return
	}
	if g.cfg.Role == Server {
		g.clear(timerFirst)
		g.addWanted = true
	} else {
		// Not less, although Linux waits for 2 s: a server whose ADD LINK fails
		// may still decline.
		g.set(timerFirst, g.now.Add(g.cfg.Timers.ConfirmFirst))
	}
}

func (g *Group) checkConfirmLink(l *Link, m wire.ConfirmLink) error {
	if !g.samePeerPort(l.peer, Endpoint{GID: m.GID, MAC: m.MAC}) || uint32(m.QPN) != l.peer.QPN {
		return fmt.Errorf("%w: CONFIRM LINK names another end: %s %s %s", ErrProtocol, m.GID, m.MAC, m.QPN)
	}
	if o := g.linkByID(m.LinkNum); m.LinkNum == 0 || l.id != 0 && l.id != m.LinkNum || l.id == 0 && o != nil {
		return fmt.Errorf("%w: CONFIRM LINK with link number %d", ErrProtocol, m.LinkNum)
	}
	return nil
}

// negotiate takes from the first CONFIRM LINK what holds for the group: the
// number of links, and where RMBEs begin. RFC 7609 has eye catchers and no
// way to say so; Linux has none and says so in reserved bits, without which
// it declines. A client does as the server does, so a client that does not
// set the bits after a server that has knows nothing but the RFC.
func (g *Group) negotiate(m wire.ConfirmLink) {
	if m.MaxLinks != 0 {
		least := 2
		if g.v2() {
			least = 1
		}
		g.maxLinks = max(least, min(g.maxLinks, int(m.MaxLinks)))
	}
	g.peerEye = !m.NoEyecatcher
	if g.cfg.Role == Client || g.peerEye {
		g.eye = g.peerEye
	}
	for _, c := range g.connsSorted() {
		c.initRing()
		if c.attached {
			c.tx = newRing(wire.BufSize(c.peer.SizeCode).Bytes(), g.peerEye)
		}
	}
}

// armTest sets when the link is looked at next.
func (g *Group) armTest(l *Link) {
	if g.cfg.Timers.TestLink > 0 {
		l.testAt = g.now.Add(g.cfg.Timers.TestLink)
	}
}

// testLink tests a link that has been silent, and fails one that does not
// answer (RFC 7609, section 4.5.3).
func (g *Group) testLink(l *Link) {
	if l.state != LinkActive {
		l.testAt = time.Time{}
		return
	}
	if l.testing {
		g.failLink(l, wire.DeleteLinkLostPath, fmt.Errorf("%w: TEST LINK on link %d", ErrTimeout, l.id))
		return
	}
	if at := l.lastRx.Add(g.cfg.Timers.TestLink); g.now.Before(at) {
		l.testAt = at
		return
	}
	g.probe(l)
}

// probe sends TEST LINK.
func (g *Group) probe(l *Link) {
	for i := 0; i < len(l.testData); i += 4 {
		binary.BigEndian.PutUint32(l.testData[i:], g.env.Random())
	}
	l.testing = true
	l.testAt = g.now.Add(g.cfg.Timers.TestLinkAnswer)
	l.sendLLC(wire.TestLink{UserData: l.testData}, nothing, nil)
}

func (g *Group) recvTestLink(l *Link, m wire.TestLink) {
	switch {
	case !m.Reply:
		m.Reply = true
		l.sendLLC(m, nothing, nil)
	case !l.testing:
	case m.UserData != l.testData:
		g.failLink(l, wire.DeleteLinkProtocolViolation, fmt.Errorf("%w: TEST LINK reply with other data", ErrProtocol))
	default:
		l.testing, l.testAt = false, time.Time{}
		g.armTest(l)
	}
}

// schedule starts what waits for exchanges to end.
func (g *Group) schedule() {
	for (g.phase == phaseSecond || g.phase == phaseOpen) && g.ex.kind == exNone {
		if g.cfg.Role == Server {
			if g.rk.kind != rkNone || g.peerRK.active {
				return // links do not change meanwhile
			}
			if i := slices.IndexFunc(g.links, func(l *Link) bool { return l.delWanted }); i >= 0 {
				g.startDelete(g.links[i])
				continue
			}
			if g.phase == phaseSecond && g.tried {
				g.open()
			}
			if g.addWanted {
				g.addWanted, g.tried = false, true
				g.startAdd()
				continue
			}
		}
		if g.phase == phaseOpen {
			if g.cfg.Role == Client && g.addWanted {
				g.addWanted = false
				g.wish()
			}
			g.startRKey()
		}
		return
	}
}

// endExchange makes room for the next one.
func (g *Group) endExchange() {
	g.ex = exchange{}
	g.clear(timerExchange)
	g.clear(timerRetry) // a refused CONFIRM RKEY may be tried now
}

// unhook ends the exchanges that a link carried whose queue pair is closed;
// they begin again over another one.
func (g *Group) unhook(l *Link) {
	if g.ex.kind == exAdd && g.ex.via == l {
		g.dropAdded()
	}
	if g.ex.kind == exDelete && g.ex.via == l {
		d := g.ex.link
		g.endExchange()
		d.delWanted = true
	}
	if g.rk.kind != rkNone && g.rk.via == l {
		g.rk = rkeyExchange{}
		g.clear(timerRKey)
	}
	if g.peerRK.via == l {
		g.peerRK = peerRKey{}
		g.clear(timerPeerRK)
	}
	for _, c := range g.connsSorted() {
		if c.next == l {
			c.unbind()
		}
	}
}

// failLink takes note that a link is lost.
func (g *Group) failLink(l *Link, reason wire.DeleteLinkReason, err error) {
	if g.dead || l.state == LinkInactive && !l.qpOpen {
		return
	}
	if g.phase == phaseDying {
		l.state = LinkInactive
		l.closeQP()
		switch {
		case g.bestLink(nil) == nil:
			g.die(g.deadErr)
		case l == g.bye.via:
			g.sendBye()
		}
		return
	}
	if l.state == LinkActivating {
		switch {
		case g.ex.kind == exAdd && g.ex.link == l:
			g.addFailed(err)
		case g.phase <= phaseConfirm:
			g.die(err)
		default:
			g.removeLink(l)
		}
		return
	}
	l.state = LinkInactive
	l.closeQP()
	via := g.bestLink(l)
	if via == nil {
		g.die(errors.Join(ErrReset, err))
		return
	}
	g.log.Warn("link is down", "link", l.id, "dev", l.dev.Name, "err", err)
	g.unhook(l)
	for _, m := range g.links {
		if m.delVia == l && m.delAsked {
			g.askDelete(m) // over another link
		}
	}
	g.moveConns(l)
	if l.delReply || l.delReplied {
		return // the server is deleting it
	}
	l.delReason, l.delOrderly = reason, false
	if g.cfg.Role == Server {
		l.delWanted = g.ex.kind != exDelete || g.ex.link != l
	} else {
		g.askDelete(l)
	}
}
