// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"smcr/quota"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/internal/mempool"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// ErrClosed is returned for link groups that would begin after [Driver.Terminate]. It is also
// net.ErrClosed to errors.Is.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string        { return "userstack: stack is closed" }
func (closedError) Is(target error) bool { return target == net.ErrClosed }

// Driver has the link groups of one stack.
type Driver struct {
	s shared

	mu     sync.Mutex // guards what follows
	closed bool
	groups map[*Group]struct{}
	ending map[*Group]struct{} // dead, with something left to give back
	makers quota.Tally[maker]  // of both
}

var _ owner = (*Driver)(nil)

// New returns a driver without link groups.
func New(c Config) *Driver {
	d := &Driver{groups: map[*Group]struct{}{}, ending: map[*Group]struct{}{}}
	d.s.Config = c
	d.s.accounts.max, d.s.accounts.exempt = c.Limits, uint32(os.Geteuid())
	d.s.pool = mempool.New(d.s.trim.poke)
	for _, l := range c.Engines {
		l.SetGuard(c.Guard)
	}
	d.s.trim.guard, d.s.trim.pool, d.s.trim.groups = c.Guard, d.s.pool, d.trim
	return d
}

// NewGroup makes the link group of a first contact. The error is ErrClosed, or a
// *LimitError if there are too many groups.
func (d *Driver) NewGroup(c GroupConfig) (*Group, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	by := makerOf(&c)
	if err := d.mayMake(by); err != nil {
		return nil, err
	}
	g := newGroup(&d.s, d, d.s.nextGroupID(d.exists), c)
	g.maker = by
	d.groups[g] = struct{}{}
	d.makers.Add(by)
	return g, nil
}

// exists reports whether there is a link group with that ID. The lock is held.
func (d *Driver) exists(id [4]byte) bool {
	for _, all := range []map[*Group]struct{}{d.groups, d.ending} {
		for g := range all {
			if g.core.ID() == id {
				return true
			}
		}
	}
	return false
}

// Groups returns the link groups, in the order of their IDs: the oldest first, until IDs begin
// again. A fixed order makes runs repeatable, unlike the order of a map.
func (d *Driver) Groups() []*Group {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sorted(d.groups)
}

func (d *Driver) sorted(groups map[*Group]struct{}) []*Group {
	return slices.SortedFunc(maps.Keys(groups), func(a, b *Group) int { return cmp.Compare(a.ID(), b.ID()) })
}

func (d *Driver) ended(g *Group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.groups, g)
	d.ending[g] = struct{}{}
}

func (d *Driver) over(g *Group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ending, g)
	d.makers.Remove(g.maker)
}

// trim frees memory that link groups have not used for a while.
func (d *Driver) trim(now time.Time) (again bool) {
	for _, g := range d.Groups() {
		again = trimGroup(g, now) || again
	}
	return again
}

// Demand describes the link group that a connection needs. All connections of a group have
// one VLAN and the same roles (RFC 7609, section 2.2).
type Demand struct {
	Role   smc.Role
	Terms  *rendezvous.Terms // nil in version 1
	PeerID smc.PeerID
	// A link of the group ends at this port of the peer. On a client, it also ends at this
	// queue pair. A server has a PROPOSAL, which contains no queue pair.
	GID  smc.GID
	MAC  smc.MAC
	QPN  smc.QPN
	VLAN uint16
	// Host is the peer's address on the TCP connection. A server takes connections of
	// the host with which the group was made.
	Host netip.Addr
}

// matches reports whether a group is of the kind that is needed.
//
// A server also demands the enterprise ID of the group, which its ACCEPT repeats. A client
// does not: on a Linux server connections share a link group whatever ID was agreed on for
// each, and the server ends the group if the client knows none.
func (w *Demand) matches(g *Group) bool {
	return g.role == w.Role && g.peer == w.PeerID && g.core.VLAN() == w.VLAN && g.terms.Version() == w.Terms.Version() &&
		(w.Role != smc.Server || w.Terms == nil || g.terms.EID == w.Terms.EID)
}

// linked returns an error if no link of the group is one that is demanded. The group's
// lock is held.
func (w *Demand) linked(g *Group) error {
	if w.Role == smc.Server && g.core.HasPort(w.Host, w.GID, w.MAC) || w.Role == smc.Client && g.core.HasLink(w.GID, w.MAC, w.QPN) {
		return nil
	}
	return linkgroup.ErrNoLink
}

// Join makes a connection on the first link group that serves, for a subsequent contact. It
// returns nil and no error if there is none.
//
// A server goes on to the next group after a failure. A client has been told by ACCEPT
// which group it is. A failure there is not one of the group: if the client declined as if
// there were no group, the server would end it.
func (d *Driver) Join(w Demand, conf ConnConfig) (c *Conn, err error) {
	for _, g := range d.Groups() {
		if !w.matches(g) {
			continue
		}
		unsuited := g.event(func(now time.Time) error {
			if err := w.linked(g); err != nil {
				return err
			}
			if w.Role == smc.Server && !g.core.CanAccept() {
				return linkgroup.ErrFull
			}
			c, err = g.newConn(now, conf)
			if w.Role == smc.Server {
				return err
			}
			return nil
		})
		if unsuited == nil {
			return c, err
		}
	}
	return nil, nil
}

// PortChanged tells the link groups on the LAN of a port whether it is up.
func (d *Driver) PortChanged(p *devices.Port, up bool) {
	for _, g := range d.Groups() {
		// The GID of a port that comes up may come later: an IPv6 address is
		// checked for duplicates first.
		dev, err := d.s.describe(p, g.terms)
		usable := up && err == nil
		if usable && !d.onLAN(g, p) {
			continue
		}
		g.do(func(now time.Time) {
			switch {
			case g.end.dead:
			case usable:
				g.core.DeviceUp(now, dev)
			default:
				g.core.DeviceDown(now, p.ID())
			}
		})
	}
}

// onLAN reports whether p may carry links of g. The port may be newer than g.
func (d *Driver) onLAN(g *Group, p *devices.Port) bool {
	rt, err := d.s.Network.Route(g.lan.Local, g.lan.Remote)
	if err != nil || rt.VLAN != g.lan.Route.VLAN {
		rt = g.lan.Route // its netdev is down
	}
	return d.s.Devices.Serves(rt, p)
}

// Attend has the engine of the stack look for packets, for a goroutine that is about to
// wait for one by other means than Wait.
func (d *Driver) Attend() {
	if d.s.Loop != nil {
		d.s.Loop.Attend()
	}
}

// OnQuiet has f called after many connections have begun or ended, when for a while no more
// do.
func (d *Driver) OnQuiet(f func()) { d.s.trim.onQuiet(f) }

// Conns returns how many connections programs have that have not ended.
func (d *Driver) Conns() int { return int(d.s.open.Load()) }

// answerWait is how long Terminate waits for the answers of peers.
const answerWait = 1500 * time.Millisecond

// Terminate ends all link groups with DELETE LINK, waits a limited time for the answers of
// the peers, and resets all connections that programs have. After it, no group can begin.
func (d *Driver) Terminate() {
	d.mu.Lock()
	d.closed = true
	groups := d.sorted(d.groups)
	d.mu.Unlock()
	for _, g := range groups {
		g.do(func(now time.Time) {
			if !g.end.dead {
				g.core.Terminate(now, wire.DeleteLinkProgram)
			}
		})
	}
	deadline := time.Now().Add(answerWait)
	for len(d.Groups()) > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	for _, g := range d.Groups() {
		g.do(func(now time.Time) {
			for !g.end.dead && len(g.links) > 0 {
				g.core.LinkFailed(now, g.links[0].core, ErrClosed)
			}
		})
	}
	for _, c := range d.members() {
		c.abort()
	}
}

// members returns the connections of all groups, the oldest first.
func (d *Driver) members() (all []member) {
	d.mu.Lock()
	groups := append(d.sorted(d.groups), d.sorted(d.ending)...)
	d.mu.Unlock()
	for _, g := range groups {
		g.mu.Lock()
		all = slices.AppendSeq(all, maps.Keys(g.conns))
		g.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b member) int { return cmp.Compare(a.number(), b.number()) })
	return all
}

// groupWait is how long Close waits for link groups that have ended. This is work of this
// process only, and it is short unless the machine is overloaded.
const groupWait = 3 * time.Second

// Close waits until all link groups that have ended have released everything, and frees the
// memory that is not in use. Call Terminate before it. No rendezvous may be under way. If a
// reader or writer of the program is in a buffer, the buffer is freed when that call returns.
// The error names a group that has not released everything in time.
func (d *Driver) Close() error {
	d.s.wg.Wait()
	err := d.awaitGroups(groupWait)
	d.s.trim.close()
	d.s.pool.Close()
	return err
}

func (d *Driver) awaitGroups(limit time.Duration) error {
	d.mu.Lock()
	ending := d.sorted(d.ending)
	d.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	for _, g := range ending {
		select {
		case <-g.end.over:
		case <-t.C:
			return &LateError{Group: g.Name()}
		}
	}
	return nil
}

// LateError means that a link group has not released its memory in time.
type LateError struct{ Group string }

func (e *LateError) Error() string { return "link group " + e.Group + " has not released its memory" }
