// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"smcr/userstack/wire"
)

// phase is how far a group has come. Phases only go up.
//
//	From      | Event                        | To        | Actions                            | RFC section
//	----------+------------------------------+-----------+------------------------------------+------------
//	new       | FirstLink                    | linked    | queue pair INIT                    | 3.5.1.2
//	linked    | ConnectFirst, client         | confirm   | RTR, timer ConfirmFirst            | 3.5.1.3
//	linked    | ConnectFirst, server         | confirm   | RTR, RTS, CONFIRM LINK, timer      | 3.5.1.5
//	confirm   | CONFIRM LINK request, client | second    | RTS, CONFIRM LINK reply, timer     | 3.5.1.5
//	confirm   | CONFIRM LINK reply, server   | second    | ADD LINK (see llc_addlink.go)      | 3.5.1.6
//	confirm   | timer, wrong values, failure | dead      | ActFirstLink err                   | C.7.1
//	second    | second link confirmed        | open      | ActFirstLink nil                   | 3.5.1.6.2
//	second    | ADD LINK rejected            | open      | ActFirstLink nil                   | 3.5.1.6.2
//	second    | no device for ADD LINK       | open      | ActFirstLink nil                   | C.8
//	second    | second link failed           | second    | DELETE LINK exchange, then open    | C.7.1
//	second    | timer, client, no ADD LINK   | open      | ActFirstLink nil (as Linux does)   | C.7.1
//	second    | timer, server, no reply      | dead      | ActFirstLink err                   | C.7.1
//	any       | last link fails              | dead      | conns ErrReset                     | 4.8.3
//	any       | DELETE LINK all received     | dead      | conns ErrReset; server: tells      | 3.5.4
//	open      | Terminate, violation, idle   | dying     | DELETE LINK all, conns ErrAborted  | 3.5.4
//	dying     | delivered, or timer          | dead      |                                    | 3.5.4
type phase uint8

const (
	phaseNew phase = iota
	phaseLinked
	phaseConfirm
	phaseSecond
	phaseOpen
	phaseDying
	phaseDead
)

// Type is how redundant a group is. The numbers are those of the kernel's
// SMC_NLA_LGR_R_TYPE.
type Type uint8

// The types (RFC 7609, section 2.2.1).
const (
	TypeNone Type = 0
	// TypeSingle: one link.
	TypeSingle Type = 1
	// TypeSymmetric: two links that share no port.
	TypeSymmetric Type = 2
	// TypeAsymmetricPeer: two links that share the peer's port.
	TypeAsymmetricPeer Type = 3
	// TypeAsymmetricLocal: two links that share our port.
	TypeAsymmetricLocal Type = 4
)

// String returns the name that smcr prints.
func (t Type) String() string {
	switch t {
	case TypeSingle:
		return "SINGLE"
	case TypeSymmetric:
		return "SYMMETRIC"
	case TypeAsymmetricPeer:
		return "ASYMMETRIC_PEER"
	case TypeAsymmetricLocal:
		return "ASYMMETRIC_LOCAL"
	}
	return "NONE"
}

// Timers of a group, beside those of its links and connections.
const (
	timerFirst    = iota // the peer's next message of the first contact
	timerExchange        // its next message of an ADD or DELETE LINK exchange
	timerRKey            // its answer to CONFIRM or DELETE RKEY
	timerRKeyWait        // start of an RKey exchange
	timerPeerRK          // the peer's CONFIRM RKEY CONTINUATION
	timerRetry           // another try of CONFIRM RKEY
	timerAdd             // another try to add a link
	timerDie             // end of termination
	timerIdle
	timerConn // earliest timer of a connection, or earlier
	numTimers
)

// rkeyRetry is how long a refused CONFIRM RKEY waits when no exchange is seen
// whose end would be the time.
const rkeyRetry = 50 * time.Millisecond

// Group is one link group (RFC 7609, section 2.2). See the package
// documentation for how to call it.
type Group struct {
	cfg Config
	env Env
	log *slog.Logger
	now time.Time // of the current event

	phase    phase
	opened   bool // phase open was reached
	dead     bool
	deadErr  error
	eye      bool // our RMBEs have eye catchers
	peerEye  bool
	settling bool
	maxLinks int

	actions []Action
	timers  [numTimers]time.Time
	links   []*Link
	devices []Device
	lastID  uint8
	usedIDs [256]bool // link numbers that were used once

	conns   map[uint32]*Conn
	rmbs    []*rmb
	rtokens []*rtoken
	lost    int // elements that are not used again

	ex        exchange
	rk        rkeyExchange
	peerRK    peerRKey
	addWanted bool // server: try to add a link
	tried     bool // server: a second link was tried
	addTries  int  // failed ones in a row
}

// New returns a group without links. Zero fields of cfg get their defaults.
func New(cfg Config, env Env, now time.Time) *Group {
	cfg.MaxLinks = min(max(cfg.MaxLinks, 2), maxLinks)
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = 255
	}
	if cfg.SendQueue == 0 {
		cfg.SendQueue = defaultSendQueue
	}
	cfg.SendQueue = max(cfg.SendQueue, minSendQueue)
	if cfg.RMBEsPerRMB <= 0 {
		cfg.RMBEsPerRMB = 16
	}
	cfg.RMBEsPerRMB = min(cfg.RMBEsPerRMB, 255)
	if cfg.Timers == (Timers{}) {
		cfg.Timers = DefaultTimers(cfg.Role)
	}
	g := &Group{
		cfg: cfg, env: env, log: cfg.Log, now: now,
		eye: cfg.EyeCatcher && cfg.Role == Server, maxLinks: cfg.MaxLinks,
		devices: append([]Device(nil), cfg.Devices...),
		conns:   map[uint32]*Conn{},
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	return g
}

// ID returns the local name of the group.
func (g *Group) ID() [4]byte { return g.cfg.ID }

// Role returns our role.
func (g *Group) Role() Role { return g.cfg.Role }

// LocalPeerID returns our peer id.
func (g *Group) LocalPeerID() wire.PeerID { return g.cfg.LocalPeerID }

// PeerID returns the id of the peer.
func (g *Group) PeerID() wire.PeerID { return g.cfg.PeerID }

// VLAN returns the VLAN id, 0 for none.
func (g *Group) VLAN() uint16 { return g.cfg.VLAN }

// MaxLinks returns the largest number of symmetric links, as negotiated.
func (g *Group) MaxLinks() int { return g.maxLinks }

// MaxConns returns the largest number of connections.
func (g *Group) MaxConns() int { return g.cfg.MaxConns }

// Conns returns the number of connections.
func (g *Group) Conns() int { return len(g.conns) }

// Links returns the links, those that are being added or deleted too.
func (g *Group) Links() []*Link { return append([]*Link(nil), g.links...) }

// Type returns how redundant the group is.
func (g *Group) Type() Type {
	var a []*Link
	for _, l := range g.links {
		if l.state == LinkActive {
			a = append(a, l)
		}
	}
	if len(a) == 0 {
		return TypeNone
	}
	t := TypeSingle
	for i, l := range a {
		for _, m := range a[:i] {
			switch {
			case l.dev.ID == m.dev.ID:
				if t != TypeSymmetric {
					t = TypeAsymmetricLocal
				}
			case samePeerPort(l.peer, m.peer):
				if t != TypeSymmetric {
					t = TypeAsymmetricPeer
				}
			default:
				t = TypeSymmetric
			}
		}
	}
	return t
}

// CanAccept says whether the group takes another connection: it is not
// ending, has an active link and is not full.
func (g *Group) CanAccept() bool {
	return g.phase == phaseOpen && len(g.conns) < g.cfg.MaxConns && !g.worn() && g.bestLink(nil) != nil
}

// worn says that too many RMBEs are lost to peers which did not answer an
// abort: the group is to be replaced by another.
func (g *Group) worn() bool { return g.lost > 32 }

// HasLink says whether a link ends at the given port and queue pair of the
// peer; qpn 0 matches any. This is the check of a subsequent contact (RFC
// 7609, sections 3.5.2.2 and 3.5.2.3). A link that has just failed counts
// while another carries on, because the peer may not know yet.
func (g *Group) HasLink(peer wire.GID, mac wire.MAC, qpn uint32) bool {
	return g.phase == phaseOpen && g.bestLink(nil) != nil && g.linkTo(Endpoint{GID: peer, MAC: mac, QPN: qpn}) != nil
}

func (g *Group) linkTo(peer Endpoint) *Link {
	for _, l := range g.links {
		if l.state != LinkActivating && samePeerPort(l.peer, peer) && (peer.QPN == 0 || l.peer.QPN == peer.QPN) {
			return l
		}
	}
	return nil
}

// bestLink returns the active link with the fewest connections other than
// not, or nil.
func (g *Group) bestLink(not *Link) *Link {
	var best *Link
	for _, l := range g.links {
		if l != not && l.state == LinkActive && (best == nil || l.conns < best.conns) {
			best = l
		}
	}
	return best
}

// TakeActions empties the queue of actions into buf, whose contents are
// overwritten, and returns it.
func (g *Group) TakeActions(buf []Action) []Action {
	buf = append(buf[:0], g.actions...)
	clear(g.actions)
	g.actions = g.actions[:0]
	return buf
}

func (g *Group) act(a Action) { *g.newAction() = a }

func (g *Group) newAction() *Action {
	if n := len(g.actions); n < cap(g.actions) {
		g.actions = g.actions[:n+1]
	} else {
		g.actions = append(g.actions, Action{})
	}
	return &g.actions[len(g.actions)-1]
}

// dropActions takes back what has not been posted on a link.
func (g *Group) dropActions(l *Link) {
	kept := g.actions[:0]
	for _, a := range g.actions {
		if a.Link != l {
			kept = append(kept, a)
		}
	}
	clear(g.actions[len(kept):])
	g.actions = kept
}

// Received takes a message that the peer sent on l. msg is not kept.
//
// What the adapter has acknowledged must get here even if the queue pair is
// closed meanwhile: a connection that moves to another link is reset if the
// peer has proof of delivery for a message that never came. So a driver looks
// for received messages after [Env.CloseQP] once more.
func (g *Group) Received(now time.Time, l *Link, msg []byte) {
	if g.dead {
		return
	}
	g.now = now
	l.lastRx = now
	if wire.IsCDC(msg) {
		m, err := wire.ParseCDC(msg)
		if err != nil {
			g.violation(l, err)
			return
		}
		if g.phase == phaseDying {
			return
		}
		// Messages for connections that are gone are normal.
		if c := g.conns[m.Token]; c != nil {
			c.recvCDC(now, m)
		}
		return
	}
	if g.phase == phaseDying {
		if m, err := wire.ParseDeleteLink(msg); err == nil && m.All && g.cfg.Role == Client {
			g.die(g.deadErr) // the server's answer, or both want it
		}
		return
	}
	if !l.qpOpen {
		return // its exchanges are over
	}
	g.recvLLC(l, msg)
	g.settle(now)
}

// Sent takes note that the signaled request with this token, and all that
// were posted on l before it, completed well.
func (g *Group) Sent(now time.Time, l *Link, token uint64) {
	if g.dead || !l.qpOpen || int64(token-l.lastToken) > 0 {
		return
	}
	g.now = now
	slow := false
	for l.sqLen > 0 && int64(l.sq[l.sqHead].token-token) <= 0 {
		r := l.pop()
		if r.conn != nil {
			r.conn.completed(&r)
			continue
		}
		slow = true
		switch r.then {
		case removeIt:
			g.removeLink(r.on)
		case endOfGroup:
			g.die(g.deadErr)
		}
		if g.dead || !l.qpOpen {
			return
		}
	}
	l.pump()
	if slow || l.state != LinkActive {
		g.settle(now)
	}
}

// LinkFailed takes note that a work request on l failed or that its queue
// pair is in error. The connections move to another link if there is one.
func (g *Group) LinkFailed(now time.Time, l *Link, err error) {
	if g.dead || !l.qpOpen {
		return
	}
	g.now = now
	g.log.Warn("link failed", "link", l.id, "dev", l.dev.Name, "err", err)
	g.failLink(l, wire.DeleteLinkLostPath, fmt.Errorf("linkgroup: link %d failed: %w", l.id, err))
	g.settle(now)
}

// DeviceUp adds a device, or updates one. A new path is tried if the group
// lacks redundancy.
func (g *Group) DeviceUp(now time.Time, d Device) {
	if g.dead {
		return
	}
	g.now = now
	d.Up = true
	known := false
	for i := range g.devices {
		if g.devices[i].ID == d.ID {
			if g.devices[i].Up {
				g.devices[i] = d
				return
			}
			g.devices[i], known = d, true
		}
	}
	if !known {
		g.devices = append(g.devices, d)
	}
	if g.phase == phaseOpen {
		g.newDevice(d)
	}
	g.settle(now)
}

// DeviceDown fails all links on a device and uses it no more until
// [Group.DeviceUp].
func (g *Group) DeviceDown(now time.Time, devID int) {
	if g.dead {
		return
	}
	g.now = now
	for i := range g.devices {
		if g.devices[i].ID == devID {
			g.devices[i].Up = false
		}
	}
	for _, l := range g.Links() {
		if l.dev.ID == devID && l.qpOpen && !g.dead {
			g.failLink(l, wire.DeleteLinkLostPath, fmt.Errorf("linkgroup: device %s is down", l.dev.Name))
		}
	}
	g.settle(now)
}

// Terminate ends the group: the peer is told to delete all links, and all
// connections are reset at once. ActGroupDead follows when the message is
// delivered or after Timers.Terminate.
func (g *Group) Terminate(now time.Time, reason wire.DeleteLinkReason) {
	if g.phase >= phaseDying {
		return
	}
	g.now = now
	g.terminate(reason, fmt.Errorf("%w: %s", ErrTerminated, reason))
	g.settle(now)
}

// terminate sends DELETE LINK for all links and ends the group when that is
// delivered. The client only asks, but has no use for the server's answer
// when it has nothing left to protect (RFC 7609, section 3.5.4).
func (g *Group) terminate(reason wire.DeleteLinkReason, err error) {
	if g.phase >= phaseDying {
		return
	}
	first := g.phase == phaseConfirm || g.phase == phaseSecond
	l := g.bestLink(nil)
	g.phase = phaseDying
	g.deadErr = err
	g.timers = [numTimers]time.Time{}
	g.ex, g.rk, g.peerRK = exchange{}, rkeyExchange{}, peerRKey{}
	if first {
		g.act(Action{Kind: ActFirstLink, Err: err})
	}
	g.endConns(errors.Join(ErrAborted, err))
	if l == nil {
		g.die(err)
		return
	}
	g.log.Info("link group ends", "reason", reason.String())
	orderly := reason != wire.DeleteLinkLostPath && reason != wire.DeleteLinkProtocolViolation
	then := endOfGroup
	if g.cfg.Role == Client {
		then = nothing // the server's DELETE LINK is the end
	}
	l.sendLLC(wire.DeleteLink{All: true, Orderly: orderly, Reason: reason}, then, nil)
	g.set(timerDie, g.now.Add(g.cfg.Timers.Terminate))
}

// violation ends the group because the peer does not keep to the protocol.
func (g *Group) violation(l *Link, err error) {
	g.log.Error("protocol violation, link group ends", "link", l.id, "err", err)
	g.terminate(wire.DeleteLinkProtocolViolation, fmt.Errorf("%w: %w", ErrProtocol, err))
}

// endConns resets all connections without a message.
func (g *Group) endConns(err error) {
	for _, c := range g.connsSorted() {
		c.setReady(err)
		if c.err == nil {
			c.err = err
		}
		c.closed(c.err, false)
	}
}

// connsSorted returns the connections in a fixed order.
func (g *Group) connsSorted() []*Conn {
	list := make([]*Conn, 0, len(g.conns))
	for _, c := range g.conns {
		list = append(list, c)
	}
	sortConns(list)
	return list
}

// die releases everything and says so.
func (g *Group) die(err error) {
	if g.dead {
		return
	}
	first := g.phase == phaseConfirm || g.phase == phaseSecond
	g.phase, g.dead = phaseDead, true
	g.timers = [numTimers]time.Time{}
	if err == nil {
		err = ErrTerminated
	}
	if first {
		g.act(Action{Kind: ActFirstLink, Err: err})
	}
	for _, l := range g.links {
		l.state = LinkInactive
		l.closeQP()
	}
	cause := err
	if !errors.Is(err, ErrReset) {
		cause = errors.Join(ErrReset, err)
	}
	g.endConns(cause)
	for _, l := range g.links {
		g.deregister(l)
	}
	g.links = nil
	for _, r := range append([]*rmb(nil), g.rmbs...) {
		if r.inUse == 0 {
			g.freeRMB(r)
		}
	}
	g.rtokens = nil
	g.act(Action{Kind: ActGroupDead, Err: err})
}

func due(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

func (g *Group) set(timer int, at time.Time) { g.timers[timer] = at }
func (g *Group) clear(timer int)             { g.timers[timer] = time.Time{} }

// connTimer makes Tick look at the connections at the given time.
func (g *Group) connTimer(at time.Time) {
	if t := &g.timers[timerConn]; t.IsZero() || at.Before(*t) {
		*t = at
	}
}

// Deadline returns when [Group.Tick] is to be called, if at all. It may
// change with every event.
func (g *Group) Deadline() (time.Time, bool) {
	if g.dead {
		return time.Time{}, false
	}
	var first time.Time
	take := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	for _, t := range g.timers {
		take(t)
	}
	for _, r := range g.rmbs {
		take(r.idleAt)
	}
	for _, l := range g.links {
		take(l.testAt)
		take(l.delAt)
	}
	return first, !first.IsZero()
}

// Tick acts on the timers that are due. Calling it early or twice does no
// harm.
func (g *Group) Tick(now time.Time) {
	if g.dead {
		return
	}
	g.now = now
	for i := range g.timers {
		if !g.dead && due(g.timers[i], now) {
			g.clear(i)
			g.fire(i)
		}
	}
	for _, l := range g.Links() {
		if !g.dead && due(l.testAt, now) {
			g.testLink(l)
		}
		if !g.dead && due(l.delAt, now) {
			l.delAt = time.Time{}
			g.deleteTimeout(l)
		}
	}
	for _, r := range append([]*rmb(nil), g.rmbs...) {
		if due(r.idleAt, now) {
			r.idleAt = time.Time{}
			g.retire(r)
		}
	}
	g.settle(now)
}

func (g *Group) fire(timer int) {
	switch timer {
	case timerFirst:
		g.firstTimeout()
	case timerExchange:
		g.exchangeTimeout()
	case timerRKey:
		g.rkeyTimeout()
	case timerRKeyWait:
		g.rkeyGiveUp()
	case timerRetry:
		// settle tries again
	case timerPeerRK:
		g.peerRK = peerRKey{}
	case timerAdd:
		g.addWanted = true
	case timerDie:
		g.die(g.deadErr)
	case timerIdle:
		if len(g.conns) == 0 {
			g.terminate(wire.DeleteLinkProgram, ErrIdle)
		}
	case timerConn:
		for _, c := range g.connsSorted() {
			c.expire(g.now)
			for _, t := range [...]time.Time{c.closeAt, c.graceAt, c.checkAt} {
				if !t.IsZero() && c.state != StateClosed {
					g.connTimer(t)
				}
			}
		}
	}
}

// settle starts what can be started after an event.
func (g *Group) settle(now time.Time) {
	if g.settling || g.phase >= phaseDying {
		return
	}
	g.settling = true
	g.now = now
	for _, l := range g.links {
		if l.flooded {
			l.flooded = false
			g.violation(l, errors.New("linkgroup: peer asks and takes no answers"))
			break
		}
	}
	g.deleteDrained()
	g.schedule()
	if g.phase == phaseOpen && len(g.conns) == 0 {
		if g.timers[timerIdle].IsZero() && g.cfg.Timers.Idle > 0 {
			g.set(timerIdle, now.Add(g.cfg.Timers.Idle))
		}
	}
	g.settling = false
}
