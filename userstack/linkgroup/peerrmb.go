// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"
	"time"

	"smcr/smc"
)

// maxRMBs bounds the RMBs of each side: ADD LINK CONTINUATION counts them in one byte.
const maxRMBs = 255

// slotToken is the RToken of an RMB on the link of one slot. A reference
// RKey of ADD LINK CONTINUATION may come without the address.
type slotToken struct {
	ok, noAddr bool
	smc.RToken
}

// rtoken is an RMB of the peer, as known on each link.
type rtoken struct {
	at    [maxSlots]slotToken
	conns []*Conn // those that are attached with an element of it
}

// on reports whether the RMB can be written to over l.
func (t *rtoken) on(l *Link) bool { return t.at[l.slot].ok && !t.at[l.slot].noAddr }

// peerTable has the RMBs of the peer.
type peerTable struct {
	list    []*rtoken
	removed []*removedLink // the oldest first
}

// ConfirmWait is how long a server waits for CONFIRM on a link group that
// exists, and how long the group remembers a link that CONFIRM may name. Before
// CONFIRM, Linux waits up to 20 s for its turn to tell an RMB and 2 s for the
// answer.
const ConfirmWait = 30 * time.Second

// maxRemoved is how many removed links a group remembers.
const maxRemoved = 8

// removedLink is a link that was removed.
//
// CONFIRM is sent over TCP. It may arrive after the link that it names has been
// deleted. The client uses SMC-R as soon as it has sent CONFIRM, so it has
// moved the connection to another link. Its RMB is known on all links (RFC 7609,
// section 3.5.2.2), but CONFIRM names the RMB by its RKey on the deleted link.
type removedLink struct {
	peer  Endpoint
	until time.Time
	rmbs  map[smc.RKey]*rtoken // by RKey
}

// rememberLink stores what CONFIRM may name of a link that is about to be removed.
func (p *peerTable) rememberLink(now time.Time, l *Link) {
	p.removed = slices.DeleteFunc(p.removed, func(o *removedLink) bool { return due(o.until, now) })
	if l.peer.QPN == 0 {
		return
	}
	o := &removedLink{peer: l.peer, until: now.Add(ConfirmWait), rmbs: map[smc.RKey]*rtoken{}}
	for _, t := range p.list {
		if at := &t.at[l.slot]; at.ok {
			o.rmbs[at.RKey] = t
		}
	}
	if len(p.removed) == maxRemoved {
		p.removed = slices.Delete(p.removed, 0, 1)
	}
	p.removed = append(p.removed, o)
}

// to returns the last link to a queue pair of the peer that was removed
// not long ago, or nil.
func (p *peerTable) to(now time.Time, peer Endpoint, same func(a, b Endpoint) bool) *removedLink {
	for _, o := range slices.Backward(p.removed) {
		if o.peer.QPN == peer.QPN && same(o.peer, peer) && !due(o.until, now) {
			return o
		}
	}
	return nil
}

// forget forgets an RMB on the links that were removed.
func (p *peerTable) forget(t *rtoken) {
	for _, l := range p.removed {
		for rkey, o := range l.rmbs {
			if o == t {
				delete(l.rmbs, rkey)
			}
		}
	}
}

// find returns the RMB that has the given RKey on l, or nil.
func (p *peerTable) find(l *Link, rkey smc.RKey) *rtoken {
	for _, t := range p.list {
		if t.at[l.slot].ok && t.at[l.slot].RKey == rkey {
			return t
		}
	}
	return nil
}

// add returns the entry of an RMB, made if the peer has room for it.
func (p *peerTable) add(l *Link, k smc.RToken, noAddr bool) *rtoken {
	t := p.find(l, k.RKey)
	if t == nil {
		if len(p.list) >= maxRMBs {
			return nil
		}
		t = &rtoken{}
		p.list = append(p.list, t)
		t.at[l.slot] = slotToken{ok: true, noAddr: noAddr, RToken: k}
		return t
	}
	if !noAddr {
		t.at[l.slot] = slotToken{ok: true, RToken: k}
	}
	return t
}

// drop forgets an RMB that the peer has deleted.
func (p *peerTable) drop(t *rtoken) {
	for i, o := range p.list {
		if o == t {
			p.list = append(p.list[:i], p.list[i+1:]...)
			p.forget(t)
			return
		}
	}
}
