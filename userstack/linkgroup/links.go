// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"smcr/smc"
)

// linkTable has the links of a group, including those that are being added or deleted,
// and the devices that they may use.
type linkTable struct {
	list    []*Link
	devices []Device
	max     int  // symmetric links, as agreed on
	byGID   bool // ports are compared by GID alone
	// otherSubnets allows devices of other subnets.
	otherSubnets bool
	// refused are the devices of other subnets, by ID, in whose subnet the peer has none.
	refused map[int]bool
	lastID  uint8
	used    [256]bool // link numbers that were used once
}

// nextID assigns a link number. A number is used again only after all other numbers
// (RFC 7609, section 2.2.4).
func (t *linkTable) nextID() uint8 {
	for {
		t.lastID++
		if t.lastID != 0 && t.byID(t.lastID) == nil {
			t.used[t.lastID] = true
			return t.lastID
		}
	}
}

func (t *linkTable) byID(id uint8) *Link {
	for _, l := range t.list {
		if l.id == id {
			return l
		}
	}
	return nil
}

func (t *linkTable) where(ok func(*Link) bool) *Link {
	for _, l := range t.list {
		if l.state != smc.LinkActivating && ok(l) {
			return l
		}
	}
	return nil
}

func (t *linkTable) to(peer Endpoint) *Link {
	return t.where(func(l *Link) bool { return l.peer.QPN == peer.QPN && t.samePort(l.peer, peer) })
}

// best returns the active link with the fewest connections other than
// not, or nil.
func (t *linkTable) best(not *Link) *Link {
	return t.leastUsed(func(l *Link) bool { return l != not })
}

// leastUsed returns the active link with the fewest connections of those that
// ok takes, or nil.
func (t *linkTable) leastUsed(ok func(*Link) bool) *Link {
	var best *Link
	for _, l := range t.list {
		if l.state == smc.LinkActive && ok(l) && (best == nil || l.conns < best.conns) {
			best = l
		}
	}
	return best
}

// withRMB returns the active link with the fewest connections over which an RMB
// of the peer can be written to, or nil.
func (t *linkTable) withRMB(r *rtoken) *Link { return t.leastUsed(r.on) }

// samePort reports whether two links end at the same port of the peer. In
// version 2 it compares only the GID, which is an IP address: a PROPOSAL of Linux that
// offers only version 2 has no MAC address.
func (t *linkTable) samePort(a, b Endpoint) bool {
	return a.GID == b.GID && (t.byGID || a.MAC == b.MAC)
}

// redundant reports whether a link other than on is active.
func (t *linkTable) redundant(on *Link) bool {
	return t.where(func(l *Link) bool { return l != on && l.state == smc.LinkActive }) != nil
}

// groupType returns how redundant the links are.
func (t *linkTable) groupType() smc.GroupType {
	var a []*Link
	for _, l := range t.list {
		if l.state == smc.LinkActive {
			a = append(a, l)
		}
	}
	if len(a) == 0 {
		return smc.GroupNone
	}
	typ := smc.GroupSingle
	for i, l := range a {
		for _, m := range a[:i] {
			switch {
			case l.dev.ID == m.dev.ID:
				if typ != smc.GroupSymmetric {
					typ = smc.GroupAsymmetricLocal
				}
			case t.samePort(l.peer, m.peer):
				if typ != smc.GroupSymmetric {
					typ = smc.GroupAsymmetricPeer
				}
			default:
				typ = smc.GroupSymmetric
			}
		}
	}
	return typ
}
