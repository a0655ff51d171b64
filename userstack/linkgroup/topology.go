// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"

	"smcr/smc"
)

// What links a group is to have (RFC 7609, sections 2.2.1, 2.2.2 and
// 3.5.5.1.1). Its symmetric links are the largest set of links of which no two
// share a port of either host; MaxLinks counts them. The others are
// asymmetric. A group may have one asymmetric link. It is useful only as the
// second link of the group, or until a symmetric link replaces it.

// active returns the active links, without those that are being added or deleted.
func (t *linkTable) active() []*Link {
	var list []*Link
	for _, l := range t.list {
		if l.state == smc.LinkActive && l.del.phase != deleteWanted {
			list = append(list, l)
		}
	}
	return list
}

// symmetric returns how many links of list are symmetric: the size of the largest
// set in which no two links share a port.
func (t *linkTable) symmetric(list []*Link) int {
	if len(list) == 0 {
		return 0
	}
	l, rest := list[0], list[1:]
	with := 1 + t.symmetric(slices.DeleteFunc(slices.Clone(rest), func(m *Link) bool { return t.sharePort(l, m) }))
	if with == len(list) {
		return with
	}
	return max(with, t.symmetric(rest))
}

// sharePort reports whether two links end at the same port of one host.
func (t *linkTable) sharePort(a, b *Link) bool {
	return a.dev.ID == b.dev.ID || t.samePort(a.peer, b.peer)
}

// useful reports whether a link between dev and the peer's port may be added: it
// is not parallel to another link, and it is the second link of the group or one more
// symmetric link within the limit.
func (t *linkTable) useful(dev Device, peer Endpoint) bool {
	active := t.active()
	for _, l := range active {
		if l.dev.ID == dev.ID && t.samePort(l.peer, peer) {
			return false
		}
	}
	if len(active) <= 1 {
		return t.max > 1
	}
	with := append(slices.Clip(active), &Link{dev: dev, peer: peer})
	n := t.symmetric(with)
	return n > t.symmetric(active) && n <= t.max && len(with)-n <= 1
}

// usable reports whether a device may get a link to a port of the peer, or to one that is not known yet
// (the zero Endpoint).
func (t *linkTable) usable(d Device, peer Endpoint) bool {
	if !d.Up || d.Subnet.IsValid() && (!t.otherSubnets || t.refused[d.ID]) {
		return false
	}
	return peer.GID == smc.GID{} || t.reaches(d, peer.GID)
}

// reaches reports whether a port of the peer is on the network of a device. A port in another subnet
// than the TCP connections is on that of the devices which are there.
func (t *linkTable) reaches(d Device, gid smc.GID) bool {
	ip, ok := gid.IPv4()
	if d.Subnet.IsValid() {
		return ok && d.Subnet.Contains(ip) && d.GID != gid
	}
	return !ok || !t.otherSubnets || !slices.ContainsFunc(t.devices, func(o Device) bool { return o.Subnet.Contains(ip) })
}

// refuse notes that the peer has no device in the subnet of d. It returns false if d is in the subnet of
// the TCP connections, where the peer has one.
func (t *linkTable) refuse(d Device) bool {
	if !d.Subnet.IsValid() {
		return false
	}
	if t.refused == nil {
		t.refused = map[int]bool{}
	}
	t.refused[d.ID] = true
	return true
}

// offered notes that the peer has a device with this GID.
func (t *linkTable) offered(gid smc.GID) {
	for _, d := range t.devices {
		if d.Subnet.IsValid() && t.reaches(d, gid) {
			delete(t.refused, d.ID)
		}
	}
}

// canGrow reports whether the group has fewer symmetric links than both sides agreed on.
func (t *linkTable) canGrow() bool { return t.symmetric(t.active()) < t.max }

// idleDevice returns a device that is up and that no active link uses.
func (t *linkTable) idleDevice() (Device, bool) {
	for _, d := range t.devices {
		if t.usable(d, Endpoint{}) && !t.usesDevice(d) {
			return d, true
		}
	}
	return Device{}, false
}

// usesDevice reports whether an active link ends at d.
func (t *linkTable) usesDevice(d Device) bool {
	return slices.ContainsFunc(t.list, func(l *Link) bool { return l.state == smc.LinkActive && l.dev.ID == d.ID })
}

// pickDevice chooses the server's end of another link. The peer may have a port
// without a link. A device without a link is preferred.
func (t *linkTable) pickDevice(traffic func(*Link) int) (Device, bool) {
	if slices.ContainsFunc(t.list, func(l *Link) bool { return l.state == smc.LinkActivating }) || t.best(nil) == nil {
		return Device{}, false
	}
	return t.deviceFor(Endpoint{}, traffic)
}

// deviceFor chooses the local end of a link to a port of the peer; the zero Endpoint
// stands for a port that no link has. A device without a link is preferred. The choice decides which of two links becomes
// surplus. It should be the link with fewer connections to move.
func (t *linkTable) deviceFor(peer Endpoint, traffic func(*Link) int) (dev Device, ok bool) {
	for _, inUse := range []bool{false, true} {
		var cost int
		for _, d := range t.devices {
			if !t.usable(d, peer) || t.usesDevice(d) != inUse || !t.useful(d, peer) {
				continue
			}
			l := &Link{dev: d, peer: peer}
			if n := traffic(t.surplusOf(append(t.active(), l))); !ok || n < cost {
				dev, cost, ok = d, n, true
			}
		}
		if ok {
			break
		}
	}
	return dev, ok
}

// surplus returns a link that the group does not need, because it has at least two
// symmetric links without it. It returns nil if there is none. The link that was added last
// is never surplus, because it was useful.
func (t *linkTable) surplus() *Link { return t.surplusOf(t.active()) }

func (t *linkTable) surplusOf(links []*Link) *Link {
	n := t.symmetric(links)
	if n < 2 || n == len(links) {
		return nil
	}
	for _, x := range links {
		if t.symmetric(slices.DeleteFunc(slices.Clone(links), func(l *Link) bool { return l == x })) == n {
			return x
		}
	}
	return nil
}
