// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"slices"
	"strings"
)

// The bounds of a picture. More would not be readable.
const (
	DefaultGroups = 24 // link groups of a stack, unless the user asks for another number
	maxPorts      = 32 // ports of a stack
	maxLinks      = 8  // links of a link group; more than 8 do not exist
)

// Limit returns the stack with at most so many link groups. It keeps those with a link that
// is not active, then the first ones, in the order of the model: an order by load would
// change with each refresh. Omitted says what it left out.
func Limit(s Stack, groups int) Stack {
	groups = max(groups, 0)
	var o Omitted
	if len(s.Devices) > maxPorts {
		o.Ports = len(s.Devices) - maxPorts
		s.Devices = s.Devices[:maxPorts]
	}
	total, troubled := 0, 0
	for i := range s.Peers {
		total += len(s.Peers[i].Groups)
		for j := range s.Peers[i].Groups {
			if s.Peers[i].Groups[j].troubled() {
				troubled++
			}
		}
	}
	if total > groups {
		s.Peers = o.keep(s.Peers, groups, troubled)
	}
	if o != (Omitted{}) {
		s.Omitted = &o
	}
	return s
}

// keep returns the peers with the link groups to show, and counts the others.
func (o *Omitted) keep(peers []Peer, groups, troubled int) (kept []Peer) {
	troubled = min(troubled, groups)
	others := groups - troubled
	for _, p := range peers {
		all := p.Groups
		p.Groups = slices.DeleteFunc(slices.Clone(all), func(g Group) bool {
			left := &others
			if g.troubled() {
				left = &troubled
			}
			if *left > 0 {
				*left--
				return false
			}
			o.Groups++
			o.Conns += uint64(g.Conns)
			return true
		})
		if len(p.Groups) > 0 {
			kept = append(kept, p)
		} else {
			o.Peers++
		}
	}
	return kept
}

// String says what was left out, in one line.
func (o *Omitted) String() string {
	var parts []string
	if o.Groups > 0 {
		text := fmt.Sprintf("%s with %s", count(o.Groups, "more link group"), count(o.Conns, "connection"))
		if o.Peers > 0 {
			text += ", to " + count(o.Peers, "more peer")
		}
		parts = append(parts, text)
	}
	if o.Ports > 0 {
		parts = append(parts, count(o.Ports, "more port"))
	}
	return "Not shown: " + strings.Join(parts, "; ")
}

// linksOf returns the links of a group that are drawn.
func linksOf(g *Group) []Link { return g.Links[:min(len(g.Links), maxLinks)] }
