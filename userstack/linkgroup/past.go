// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"
	"time"

	"smcr/smc"
)

// ConfirmWait is how long a server waits for CONFIRM on a link group that
// exists, and how long the group remembers a link that CONFIRM may name. Before
// CONFIRM, Linux waits up to 20 s for its turn to tell an RMB and 2 s for the
// answer.
const ConfirmWait = 30 * time.Second

// maxPast is how many links a group remembers.
const maxPast = 8

// pastLink is a link that was removed.
//
// CONFIRM goes over TCP. It may come when the link that it names has been
// deleted, and then the client, who counts on SMC-R since it has sent it, has
// moved the connection to another link. Its RMB is known on all links (RFC 7609,
// section 3.5.2.2); but CONFIRM names it by its RKey on the one that is gone.
type pastLink struct {
	peer  Endpoint
	until time.Time
	rmbs  map[smc.RKey]*rtoken // by RKey
}

// remember takes note of a link that is about to be removed.
func (g *Group) remember(l *Link) {
	g.past = slices.DeleteFunc(g.past, func(p *pastLink) bool { return due(p.until, g.now) })
	if g.dead || l.peer.QPN == 0 {
		return
	}
	p := &pastLink{peer: l.peer, until: g.now.Add(ConfirmWait), rmbs: map[smc.RKey]*rtoken{}}
	for _, t := range g.rtokens {
		if at := &t.at[l.slot]; at.ok {
			p.rmbs[at.RKey] = t
		}
	}
	if len(g.past) == maxPast {
		g.past = slices.Delete(g.past, 0, 1)
	}
	g.past = append(g.past, p)
}

// pastLinkTo returns the last link to a queue pair of the peer that was removed
// not long ago, or nil.
func (g *Group) pastLinkTo(peer Endpoint) *pastLink {
	for _, p := range slices.Backward(g.past) {
		if p.peer.QPN == peer.QPN && g.samePeerPort(p.peer, peer) && !due(p.until, g.now) {
			return p
		}
	}
	return nil
}

// forgetPast forgets an RMB on the links that were removed.
func (g *Group) forgetPast(t *rtoken) {
	for _, p := range g.past {
		for rkey, o := range p.rmbs {
			if o == t {
				delete(p.rmbs, rkey)
			}
		}
	}
}
