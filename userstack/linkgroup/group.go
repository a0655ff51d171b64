// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"log/slog"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
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
//	second    | timer, client, no ADD LINK   | dead      | ActFirstLink err; a Linux peer:    | C.7.1
//	          |                              |           | open, as Linux does                |
//	second    | timer, server, no reply      | dead      | ActFirstLink err                   | C.7.1
//	any       | last link fails              | dead      | conns ErrReset                     | 4.8.3
//	any       | DELETE LINK all received     | dead      | conns ErrReset; server: tells      | 3.5.4
//	open      | Terminate, violation, idle   | dying     | DELETE LINK all, conns ErrAborted  | 3.5.4
//	dying     | carrier fails, other link    | dying     | DELETE LINK all over that          | C.7.1
//	dying     | timer, client, other link    | dying     | DELETE LINK all over that          | C.7.1
//	dying     | delivered, timer, no link    | dead      |                                    | 3.5.4
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
	connCfg  conn.Config    // what the connections have in common
	layout   wire.LLCLayout // of our messages; version 2: as the peer's are

	actions []Action
	cdcs    []Action // used by TakeActions
	timers  [numTimers]time.Time
	links   []*Link
	devices []Device
	lastID  uint8
	usedIDs [256]bool // link numbers that were used once

	conns     map[uint32]*Conn
	rmbs      []*rmb
	rtokens   []*rtoken
	past      []*pastLink    // the oldest first
	lost      map[uint32]int // elements that are not used again, by owner
	lostAll   int            // all of them
	resting   int            // elements likewise, that are free
	mournedAt time.Time      // when peerLives last found no life

	ex        exchange
	rk        rkeyExchange
	peerRK    peerRKey
	bye       bye
	addWanted bool // server: try to add a link; client: tell of a device
	wished    bool // server: the client has told of a device since the last link
	tried     bool // server: a second link was tried
	doubted   bool // somebody says that the peer has lost the group (see Doubt)
	committed bool // the connection of the first contact cannot fall back
	addTries  int  // failed ones in a row
}

// New returns a group without links. Zero fields of cfg get their defaults.
func New(cfg Config, env Env, now time.Time) *Group {
	cfg.Version = max(cfg.Version, wire.Version1)
	switch {
	case cfg.Version < wire.Version2:
		cfg.MaxLinks = min(max(cfg.MaxLinks, 2), MaxLinks)
	default:
		cfg.EyeCatcher = false
		if cfg.MaxLinks != 1 {
			cfg.MaxLinks = 2 // CONFIRM RKEY has no room for more
		}
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = 255
	}
	if cfg.Autocork == 0 {
		cfg.Autocork = conn.DefaultAutocork
	}
	if cfg.SendQueue == 0 {
		cfg.SendQueue = defaultSendQueue
	}
	cfg.SendQueue = max(cfg.SendQueue, minSendQueue)
	if cfg.SendChunk <= 0 {
		cfg.SendChunk = conn.DefaultChunk
	}
	if cfg.RMBEsPerRMB <= 0 {
		cfg.RMBEsPerRMB = 16
	}
	cfg.RMBEsPerRMB = min(cfg.RMBEsPerRMB, 255)
	if cfg.Timers == (Timers{}) {
		cfg.Timers = DefaultTimers(cfg.Role)
	}
	g := &Group{
		cfg: cfg, env: env, log: cfg.Log, now: now,
		eye: cfg.EyeCatcher && cfg.Role == smc.Server, maxLinks: cfg.MaxLinks,
		layout:  wire.LLCLayoutFor(cfg.Version, cfg.PeerOS),
		devices: append([]Device(nil), cfg.Devices...),
		conns:   map[uint32]*Conn{},
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.connCfg = conn.Config{Timers: cfg.Timers.Timers, Autocork: cfg.Autocork, Log: g.log}
	g.setProfile()
	return g
}

// ID returns the local name of the group.
func (g *Group) ID() [4]byte { return g.cfg.ID }

// Role returns our role.
func (g *Group) Role() smc.Role { return g.cfg.Role }

// LocalPeerID returns our peer id.
func (g *Group) LocalPeerID() smc.PeerID { return g.cfg.LocalPeerID }

// PeerID returns the id of the peer.
func (g *Group) PeerID() smc.PeerID { return g.cfg.PeerID }

// Version returns the version of SMC.
func (g *Group) Version() uint8 { return g.cfg.Version }

func (g *Group) v2() bool { return g.cfg.Version >= wire.Version2 }

// SetPeer says who the peer is where CONFIRM tells more than the proposal: a
// server of version 2 calls it before [Group.ConnectFirst].
func (g *Group) SetPeer(id smc.PeerID, os smc.OS, release uint8) {
	g.cfg.PeerID, g.cfg.PeerOS, g.cfg.PeerRelease = id, os, release
	g.layout = wire.LLCLayoutFor(g.cfg.Version, os)
	g.setProfile()
}

// setProfile takes note of what the peer's operating system changes. A Linux that is
// known to stop at urgent bytes is one with release 1 of version 2, which came with
// Linux 6.7.
func (g *Group) setProfile() {
	g.connCfg.Peer.StopsAtUrgent = g.v2() && g.cfg.PeerOS == smc.OSLinux && g.cfg.PeerRelease >= wire.ReleaseV21
}

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
func (g *Group) Type() smc.GroupType {
	var a []*Link
	for _, l := range g.links {
		if l.state == smc.LinkActive {
			a = append(a, l)
		}
	}
	if len(a) == 0 {
		return smc.GroupNone
	}
	t := smc.GroupSingle
	for i, l := range a {
		for _, m := range a[:i] {
			switch {
			case l.dev.ID == m.dev.ID:
				if t != smc.GroupSymmetric {
					t = smc.GroupAsymmetricLocal
				}
			case g.samePeerPort(l.peer, m.peer):
				if t != smc.GroupSymmetric {
					t = smc.GroupAsymmetricPeer
				}
			default:
				t = smc.GroupSymmetric
			}
		}
	}
	return t
}

// CanAccept says whether the group takes another connection: it is not
// ending, has an active link and is not full.
func (g *Group) CanAccept() bool {
	return g.phase == phaseOpen && len(g.conns) < g.cfg.MaxConns && !g.worn() && !g.doubted && g.bestLink(nil) != nil
}

// worn says that too many RMBEs are lost to peers which did not answer an
// abort: the group is to be replaced by another.
func (g *Group) worn() bool { return g.lostAll > 8*maxLost }

// HasPort says whether a link ends at the given port of the peer, which is all
// that a proposal says (RFC 7609, section 3.5.2.1). A link that has just failed
// counts while another carries on, because the peer may not know yet.
func (g *Group) HasPort(peer smc.GID, mac smc.MAC) bool {
	e := Endpoint{GID: peer, MAC: mac}
	return g.usable() && g.linkWhere(func(l *Link) bool { return g.samePeerPort(l.peer, e) }) != nil
}

// HasLink says whether a link ends at the given port and queue pair of the peer,
// none of which is a wildcard. This is the check of an ACCEPT on a subsequent
// contact (RFC 7609, section 3.5.2.2). Links that have just failed count as with
// HasPort, and so does one that was removed while the peer's message was under
// way.
func (g *Group) HasLink(peer smc.GID, mac smc.MAC, qpn smc.QPN) bool {
	e := Endpoint{GID: peer, MAC: mac, QPN: qpn}
	return g.usable() && (g.linkTo(e) != nil || g.pastLinkTo(e) != nil)
}

func (g *Group) usable() bool { return g.phase == phaseOpen && g.bestLink(nil) != nil }

func (g *Group) linkTo(peer Endpoint) *Link {
	return g.linkWhere(func(l *Link) bool { return l.peer.QPN == peer.QPN && g.samePeerPort(l.peer, peer) })
}

func (g *Group) linkWhere(ok func(*Link) bool) *Link {
	for _, l := range g.links {
		if l.state != smc.LinkActivating && ok(l) {
			return l
		}
	}
	return nil
}

// bestLink returns the active link with the fewest connections other than
// not, or nil.
func (g *Group) bestLink(not *Link) *Link {
	return g.leastUsed(func(l *Link) bool { return l != not })
}

// leastUsed returns the active link with the fewest connections of those that
// ok takes, or nil.
func (g *Group) leastUsed(ok func(*Link) bool) *Link {
	var best *Link
	for _, l := range g.links {
		if l.state == smc.LinkActive && ok(l) && (best == nil || l.conns < best.conns) {
			best = l
		}
	}
	return best
}

// TakeActions empties the queue of actions into buf, whose contents are
// overwritten, and returns it.
//
// The writes of several connections come before the CDC messages that announce
// them. A message may be announced later than it was written, and packets of one
// kind are often of one length, which devices and IP stacks carry many at once.
func (g *Group) TakeActions(buf []Action) []Action {
	buf = buf[:0]
	g.cdcs = g.cdcs[:0]
	for i := range g.actions {
		switch a := &g.actions[i]; {
		case a.plain:
			g.cdcs = append(g.cdcs, *a)
		case a.Kind == ActWrite || a.Kind == ActWakeRead || a.Kind == ActWakeWrite:
			buf = append(buf, *a)
		default: // what was to be said before matters to it
			buf = append(append(buf, g.cdcs...), *a)
			g.cdcs = g.cdcs[:0]
		}
	}
	buf = append(buf, g.cdcs...)
	clear(g.cdcs)
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
