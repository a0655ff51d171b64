// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/engine"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// group drives one link group: it owns the lock of the protocol core, its
// queue pairs, memory and timer.
//
// Whoever has an event locks mu, hands it to the core and calls unlock. What
// the core wants done then is carried out by unlock, outside the lock, by
// one goroutine at a time and in order. Completions may be announced while
// the lock is held, even by its holder (closing a queue pair flushes it), so
// the announcement only marks pollWanted and lets the holder look.
type group struct {
	s    *Stack
	log  *slog.Logger
	peer smc.PeerID // as in the proposal or ACCEPT
	role smc.Role
	lan  lan
	// terms are nil in version 1. terms.Peer is guarded by mu.
	terms *rendezvous.Terms

	// mu guards the core and what follows.
	mu         sync.Mutex
	core       *linkgroup.Group
	pollWanted atomic.Bool // without mu
	exec       executor
	mem        groupMemory
	end        groupEnd
	loop       *engine.Loop // that serves its queue pairs and connections, or nil
	links      []*link
	leftover   []leftover
	first      chan error // outcome of the first contact, buffered
	conns      map[*Conn]struct{}
	peerAddr   netip.Addr              // of the first connection
	peers      map[netip.Addr]struct{} // of later ones, on the server
}

func newGroup(s *Stack, role smc.Role, t *rendezvous.Terms, peer smc.PeerID, at lan, devs []*devices.Port) *group {
	g := &group{
		s: s, role: role, terms: t, peer: peer, lan: at,
		first: make(chan error, 1),
		conns: map[*Conn]struct{}{},
		peers: map[netip.Addr]struct{}{},
		end:   groupEnd{over: make(chan struct{})},
	}
	g.mem = groupMemory{
		pool: s.mem, stats: &s.stats, sendBuf: s.cfg.SendBuf, exec: &g.exec,
		pds: map[*devices.Device]rdmaverbs.PD{}, regions: map[*region]struct{}{},
	}
	g.place()
	id := s.reg.nextGroupID()
	g.log = s.log.With("lgr", fmt.Sprintf("%x", id), "role", role.String())
	timers := linkgroup.DefaultTimers(role)
	// Programs are to see within a second that the stack of their peer died.
	timers.TCPGrace = 500 * time.Millisecond
	if idle := s.cfg.GroupIdle; idle > 0 {
		timers.Idle = idle
		if role == smc.Client {
			timers.Idle += min(idle/10, 10*time.Second)
		}
	}
	if s.cfg.tuneTimers != nil {
		s.cfg.tuneTimers(role, &timers)
	}
	cfg := linkgroup.Config{
		Role: role, ID: id, LocalPeerID: s.peerIDNow(), PeerID: peer, PeerHost: at.remote, VLAN: at.rt.VLAN,
		MaxLinks: s.cfg.MaxLinks, MaxConns: s.cfg.MaxConns,
		SendQueue: sendDepth, SendChunk: s.cfg.sendChunk, EyeCatcher: s.cfg.EyeCatcher, Timers: timers, Log: g.log,
	}
	if role == smc.Client {
		cfg.MaxConns = 0 // the most there can be: the server decides
	}
	if t != nil {
		cfg.Routed = t.Routed
		cfg.Version, cfg.PeerOS, cfg.PeerRelease, cfg.MaxLinks = wire.Version2, t.Peer.OS, t.Peer.Release, int(t.MaxLinks)
		if role == smc.Client || cfg.MaxConns == 0 {
			cfg.MaxConns = int(t.MaxConns)
		}
		cfg.MaxConns = min(cfg.MaxConns, int(t.MaxConns))
	}
	for _, d := range devs {
		if cd, err := d.Describe(t.Subnet()); err == nil {
			cfg.Devices = append(cfg.Devices, cd)
		}
	}
	g.exec.timer = time.AfterFunc(time.Hour, g.onTimer)
	g.exec.timer.Stop()
	g.core = linkgroup.New(cfg, (*groupEnv)(g), time.Now())
	return g
}

// place gives the group to one of the engines, in turns.
func (g *group) place() {
	loops := g.s.cfg.Engines
	if len(loops) == 0 {
		return
	}
	g.mem.shard = int(g.s.reg.groupsPlaced.Add(1)-1) % len(loops)
	g.loop = loops[g.mem.shard]
}

// do hands one event to the core and carries out what follows from it.
func (g *group) do(f func(now time.Time)) {
	g.mu.Lock()
	g.call(func() { f(time.Now()) })
	g.unlock()
}

func (g *group) onTimer() {
	g.mu.Lock()
	g.exec.armed = time.Time{}
	if !g.end.dead {
		g.call(func() { g.core.Tick(time.Now()) })
	}
	g.unlock()
}

// onComplete is the notify function of all completion queues of the group.
func (g *group) onComplete() {
	g.pollWanted.Store(true)
	if g.mu.TryLock() {
		g.unlock()
	}
}

// unlock carries out the actions that are queued and releases mu. If another
// goroutine carries out actions already, it takes these too.
func (g *group) unlock() {
	for {
		g.runActions()
		g.mu.Unlock()
		// Completions announced while the lock was held are ours to take.
		if !g.pollWanted.Load() || !g.mu.TryLock() {
			return
		}
	}
}

// unlockLate releases mu in a round of l, and leaves the actions to its later
// part: those of all connections are carried out together then.
func (g *group) unlockLate(l *engine.Loop) {
	if g.exec.late == nil {
		g.exec.late = l.LateTask(func() {
			g.mu.Lock()
			g.unlock()
		})
	}
	g.exec.late.Schedule()
	g.mu.Unlock()
	if g.pollWanted.Load() && g.mu.TryLock() {
		g.unlock()
	}
}

// runActions carries out actions until there are none. mu is held before and after, and
// released in between.
func (g *group) runActions() {
	if g.pollWanted.Swap(false) {
		g.poll()
	}
	if g.exec.running {
		g.arm()
		return
	}
	g.exec.running = true
	for {
		g.takeActions()
		later := g.exec.takeLater()
		if len(g.exec.acts) == 0 && len(later) == 0 {
			break
		}
		g.mu.Unlock()
		g.execute(g.exec.acts)
		for _, f := range later {
			g.carryOut(f)
		}
		g.carryOut(g.closeDomains)
		g.mu.Lock()
		if g.pollWanted.Swap(false) {
			g.poll()
		}
	}
	g.exec.running = false
	g.arm()
	g.checkOver()
}

// takeActions takes what the core wants done. mu is held.
func (g *group) takeActions() {
	defer g.caught()
	g.exec.acts = g.exec.acts[:0]
	if !g.end.broken {
		g.exec.acts = g.core.TakeActions(g.exec.acts)
	}
}

// carryOut calls a release; mu is not held.
func (g *group) carryOut(f func()) {
	defer g.fell()
	f()
}

// arm sets the timer to the nearest deadline of the core.
func (g *group) arm() {
	defer g.caught()
	if g.end.dead {
		g.exec.timer.Stop()
		return
	}
	if g.core.Trimmable() {
		g.s.trim.poke()
	}
	if d, ok := g.core.Deadline(); ok {
		g.exec.arm(d)
	}
}

// checkOver tells Close when a dead group has given back everything but what
// a reader or writer of the program holds, in ReadFrom or WriteTo. mu is held,
// and nobody carries out actions.
func (g *group) checkOver() {
	if !g.end.dead || len(g.conns) > 0 || g.mem.copying > 0 || g.end.broken && (!g.end.fallen || len(g.mem.regions) > 0) {
		return
	}
	if !g.end.isOver() {
		g.s.reg.groupOver(g)
		close(g.end.over)
	}
}

// onDead forgets the group and frees what the core does not know of.
func (g *group) onDead(err error) {
	g.s.reg.forgetGroup(g)
	g.log.Info("link group ended", "reason", err)
	select {
	case g.first <- errors.Join(linkgroup.ErrGroupDead, err):
	default:
	}
	g.mu.Lock()
	g.end.dead = true
	g.exec.timer.Stop()
	links := g.links
	g.links = nil
	g.mem.endSlab()
	g.mu.Unlock()
	for _, l := range links {
		l.destroy()
	}
}

// closeDomains closes the protection domains of a dead group, as far as they are not in
// use.
func (g *group) closeDomains() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.end.dead {
		g.mem.closeDomains()
	}
}

// name returns the group's id as listings print it.
func (g *group) name() string {
	id := g.core.ID()
	return hex.EncodeToString(id[:])
}
