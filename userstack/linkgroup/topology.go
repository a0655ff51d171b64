// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"

	"smcr/smc"
)

// What links a group is to have (RFC 7609, sections 2.2.1, 2.2.2 and
// 3.5.5.1.1). Its symmetric links are the largest set of links of which no two
// share a port of either host; they are what MaxLinks counts. The others are
// asymmetric: one is allowed, and it has a use only as the second link of all,
// or until the symmetric one that takes its place is there.

// activeLinks returns the links that count: those being added or deleted do
// not.
func (g *Group) activeLinks() []*Link {
	var list []*Link
	for _, l := range g.links {
		if l.state == smc.LinkActive && !l.delWanted {
			list = append(list, l)
		}
	}
	return list
}

// symmetric returns how many links of list are symmetric: the most of which no
// two share a port.
func (g *Group) symmetric(list []*Link) int {
	if len(list) == 0 {
		return 0
	}
	l, rest := list[0], list[1:]
	with := 1 + g.symmetric(slices.DeleteFunc(slices.Clone(rest), func(m *Link) bool { return g.sharesPort(l, m) }))
	if with == len(list) {
		return with
	}
	return max(with, g.symmetric(rest))
}

// sharesPort says that two links end at the same port of one host.
func (g *Group) sharesPort(a, b *Link) bool {
	return a.dev.ID == b.dev.ID || g.samePeerPort(a.peer, b.peer)
}

// useful says whether a link between dev and the peer's port may be added: it
// is not parallel to another, and is the second link of all or adds to the
// symmetric ones, within their limit.
func (g *Group) useful(dev Device, peer Endpoint) bool {
	active := g.activeLinks()
	for _, l := range active {
		if l.dev.ID == dev.ID && g.samePeerPort(l.peer, peer) {
			return false
		}
	}
	if len(active) <= 1 {
		return g.maxLinks > 1
	}
	with := append(slices.Clip(active), &Link{dev: dev, peer: peer})
	n := g.symmetric(with)
	return n > g.symmetric(active) && n <= g.maxLinks && len(with)-n <= 1
}

// canGrow says that the group is below the number of symmetric links that was
// agreed on.
func (g *Group) canGrow() bool { return g.symmetric(g.activeLinks()) < g.maxLinks }

// idleDevice returns a device that is up and that no active link uses.
func (g *Group) idleDevice() (Device, bool) {
	for _, d := range g.devices {
		if d.Up && !g.usesDevice(d) {
			return d, true
		}
	}
	return Device{}, false
}

// usesDevice says that an active link ends at d.
func (g *Group) usesDevice(d Device) bool {
	return slices.ContainsFunc(g.links, func(l *Link) bool { return l.state == smc.LinkActive && l.dev.ID == d.ID })
}

// pickDevice chooses the server's end of another link, for a peer that may
// have a port without a link: a device without a link if there is one.
func (g *Group) pickDevice() (Device, bool) {
	if slices.ContainsFunc(g.links, func(l *Link) bool { return l.state == smc.LinkActivating }) || g.bestLink(nil) == nil {
		return Device{}, false
	}
	return g.deviceFor(Endpoint{})
}

// deviceFor chooses our end of a link to a port of the peer; the zero Endpoint
// is a port that no link has. Which of two links becomes surplus is decided by
// that choice: it is to be the one with less to move.
func (g *Group) deviceFor(peer Endpoint) (dev Device, ok bool) {
	for _, inUse := range []bool{false, true} {
		var cost int
		for _, d := range g.devices {
			if !d.Up || g.usesDevice(d) != inUse || !g.useful(d, peer) {
				continue
			}
			l := &Link{dev: d, peer: peer}
			if n := g.traffic(g.surplusOf(append(g.activeLinks(), l), l)); !ok || n < cost {
				dev, cost, ok = d, n, true
			}
		}
		if ok {
			break
		}
	}
	return dev, ok
}

// traffic says how much a link is used: by each connection that we send on over
// it, and twice by one that the peer does. A Linux peer that leaves a link which
// works may send wrong bytes afterwards (docs/interop.md).
func (g *Group) traffic(l *Link) (n int) {
	for _, c := range g.conns {
		if l != nil && c.link == l {
			n++
		}
		if l != nil && c.peerLink() == l {
			n += 2
		}
	}
	return n
}

// surplus returns a link other than keep that the group does not need because
// it has two symmetric ones or more without it, or nil.
func (g *Group) surplus(keep *Link) *Link { return g.surplusOf(g.activeLinks(), keep) }

func (g *Group) surplusOf(links []*Link, keep *Link) *Link {
	n := g.symmetric(links)
	if n < 2 || n == len(links) {
		return nil
	}
	for _, x := range links {
		if x != keep && g.symmetric(slices.DeleteFunc(slices.Clone(links), func(l *Link) bool { return l == x })) == n {
			return x
		}
	}
	return nil
}

// Devices returns the candidates for links, those that are down too.
func (g *Group) Devices() []Device { return slices.Clone(g.devices) }
