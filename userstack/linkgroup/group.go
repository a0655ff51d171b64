// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"cmp"
	"log/slog"
	"net/netip"
	"slices"
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

// rkeyRetry is how long a refused CONFIRM RKEY waits for the next try if there is no
// exchange whose end starts it.
const rkeyRetry = 50 * time.Millisecond

// Group is one link group (RFC 7609, section 2.2). See the package documentation for
// how to call it. Each part of it has the state of one subject.
type Group struct {
	cfg     Config
	profile profile
	connCfg conn.Config // what the connections have in common
	env     Env
	log     *slog.Logger
	now     time.Time // of the current event

	phase     phase
	advancing bool // advance is under way
	eye       bool // the local RMBEs have eye catchers
	peerEye   bool // those of the peer have

	actions actionQueue
	timers  timers
	conns   map[uint32]*Conn // by alert token
	// peerTokens are the connections by the alert token of the peer: the latest one, which has evicted those before it.
	peerTokens map[uint32]*Conn
	links      linkTable
	rmbs       rmbTable
	peerRMBs   peerTable

	llc      llcEngine
	first    firstContact
	adding   linkAddition
	deletion linkDeletion
	rkeys    rkeyEngine
	tests    linkTests
	change   linkChanges
	end      ending
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
		eye:   cfg.EyeCatcher && cfg.Role == smc.Server,
		conns: map[uint32]*Conn{}, peerTokens: map[uint32]*Conn{},
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.connCfg = conn.Config{Timers: cfg.Timers.Timers, Autocork: cfg.Autocork, Log: g.log}
	g.links = linkTable{devices: slices.Clone(cfg.Devices), max: cfg.MaxLinks}
	g.rmbs = rmbTable{env: env, links: &g.links, perRMB: cfg.RMBEsPerRMB, idleTime: cfg.Timers.RMBIdle}
	g.llc.g, g.first.g, g.adding.g, g.deletion.g, g.rkeys.g, g.tests.g, g.change.g, g.end.g = g, g, g, g, g, g, g, g
	g.setProfile()
	return g
}

// ID returns the local name of the group.
func (g *Group) ID() [4]byte { return g.cfg.ID }

// Role returns the local role.
func (g *Group) Role() smc.Role { return g.cfg.Role }

// LocalPeerID returns the peer ID of this host.
func (g *Group) LocalPeerID() smc.PeerID { return g.cfg.LocalPeerID }

// PeerID returns the id of the peer.
func (g *Group) PeerID() smc.PeerID { return g.cfg.PeerID }

// Version returns the version of SMC.
func (g *Group) Version() uint8 { return g.cfg.Version }

// SetPeer sets what the group knows about the peer, if CONFIRM has more than PROPOSAL.
// A server of version 2 calls it before [Group.ConnectFirst].
func (g *Group) SetPeer(id smc.PeerID, os smc.OS, release uint8, ours bool) {
	g.cfg.PeerID, g.cfg.PeerOS, g.cfg.PeerRelease, g.cfg.PeerOurs = id, os, release, ours
	g.setProfile()
}

// setProfile gives each part what it has to know about the peer.
func (g *Group) setProfile() {
	g.profile = newProfile(&g.cfg)
	g.connCfg.Peer = g.profile.conns
	g.links.byGID, g.links.otherSubnets = g.profile.portByGID, g.profile.otherSubnets
	g.llc.layout = g.profile.layout
}

// VLAN returns the VLAN id, 0 for none.
func (g *Group) VLAN() uint16 { return g.cfg.VLAN }

// MaxLinks returns the largest number of symmetric links, as negotiated.
func (g *Group) MaxLinks() int { return g.links.max }

// MaxConns returns the largest number of connections.
func (g *Group) MaxConns() int { return g.cfg.MaxConns }

// Conns returns the number of connections.
func (g *Group) Conns() int { return len(g.conns) }

// Links returns the links, including those that are being added or deleted.
func (g *Group) Links() []*Link { return append([]*Link(nil), g.links.list...) }

// Type returns how redundant the group is.
func (g *Group) Type() smc.GroupType { return g.links.groupType() }

// CanAccept reports whether the group takes another connection: it is not
// ending, has an active link and is not full.
func (g *Group) CanAccept() bool {
	return g.phase == phaseOpen && len(g.conns) < g.cfg.MaxConns && !g.rmbs.exhausted() && !g.tests.doubted && g.links.best(nil) != nil
}

// HasPort reports whether a link ends at the given port of the peer, and the group was
// made with the given host: the address of the TCP connection of the first contact. A
// PROPOSAL names no more than a port (RFC 7609, section 3.5.2.1). Every host to which the
// peer has made a connection knows this port and the peer ID, and can propose in the
// peer's name, so the address is necessary too. A host with several addresses gets a
// group for each.
//
// A link that has just failed counts if another link works, because the peer may not know
// of the failure yet.
func (g *Group) HasPort(host netip.Addr, peer smc.GID, mac smc.MAC) bool {
	e := Endpoint{GID: peer, MAC: mac}
	return g.phase == phaseOpen && g.cfg.PeerHost == host && g.links.best(nil) != nil && g.links.where(func(l *Link) bool { return g.links.samePort(l.peer, e) }) != nil
}

// HasLink reports whether a link ends at the given port and queue pair of the peer.
// No argument is a wildcard. This is the check of an ACCEPT on a subsequent
// contact (RFC 7609, section 3.5.2.2). A server may send it from any of its addresses:
// [Conn.Attach] demands an RMB that the server has made known over the link. Links that have
// just failed count as in HasPort. A link that was removed while the peer's message was under way counts too.
func (g *Group) HasLink(peer smc.GID, mac smc.MAC, qpn smc.QPN) bool {
	e := Endpoint{GID: peer, MAC: mac, QPN: qpn}
	return g.phase == phaseOpen && g.links.best(nil) != nil && (g.links.to(e) != nil || g.peerRMBs.to(g.now, e, g.links.samePort) != nil)
}

// TakeActions empties the queue of actions into buf, whose contents are
// overwritten, and returns it.
//
// The writes of several connections come before the CDC messages that announce
// them. This is allowed, because a write may be announced later. It is useful, because
// packets of one kind often have the same length, and devices and IP stacks can carry
// many such packets at once.
func (g *Group) TakeActions(buf []Action) []Action { return g.actions.take(buf) }

// TakeFailovers returns how many connections of g have moved away from links that did not work
// any more, since the last call. Planned moves and the deletion of a link that works do not
// count.
func TakeFailovers(g *Group) uint64 {
	n := g.change.failovers
	g.change.failovers = 0
	return n
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

// sortConns orders connections by alert token, so that what is done to all
// of them does not depend on the order of a map.
func sortConns(list []*Conn) {
	slices.SortFunc(list, func(a, b *Conn) int { return cmp.Compare(a.Token(), b.Token()) })
}

// Devices returns the candidates for links, including devices that are down.
func (g *Group) Devices() []Device { return slices.Clone(g.links.devices) }
