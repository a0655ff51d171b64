// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"smcr/nl"
	"smcr/smc"
)

// unknown is a rate that is not known, or that a stack does not count.
var unknown = math.NaN()

// A flow is the bytes in each second that programs receive and send.
type flow struct{ rx, tx float64 }

func (f *flow) add(o flow) { f.rx, f.tx = f.rx+o.rx, f.tx+o.tx }

func (f flow) sum() float64 { return f.rx + f.tx }

var unknownFlow = flow{unknown, unknown}

// flowColumns are the columns of a flow, after which tables are sorted at first.
func flowColumns[R any](of func(*R) flow) []column[R] {
	return []column[R]{
		number("B/s", 1, func(r *R) float64 { return of(r).sum() }),
		number("RX/s", 3, func(r *R) float64 { return of(r).rx }),
		number("TX/s", 3, func(r *R) float64 { return of(r).tx }),
	}
}

// A stackRow is a stack with its rates.
type stackRow struct {
	name                string
	pid                 uint32
	version             string
	groups, links       int
	conns               int
	flow                flow
	calls               float64
	newConns, fallbacks float64
	errors, retransmits float64
}

var stackSheet = &sheet[stackRow]{
	columns: append([]column[stackRow]{
		{name: "Stack", text: func(r *stackRow) string { return r.name }},
		{name: "PID", rank: 8, value: func(r *stackRow) float64 { return float64(r.pid) }, text: func(r *stackRow) string {
			if r.pid == 0 {
				return "-"
			}
			return fmt.Sprint(r.pid)
		}},
		{name: "Version", rank: 10, min: 7, text: func(r *stackRow) string { return r.version }},
		number("Groups", 4, func(r *stackRow) float64 { return float64(r.groups) }),
		number("Links", 4, func(r *stackRow) float64 { return float64(r.links) }),
		number("Conns", 4, func(r *stackRow) float64 { return float64(r.conns) }),
		number("New/s", 5, func(r *stackRow) float64 { return r.newConns }),
		number("Fallb/s", 5, func(r *stackRow) float64 { return r.fallbacks }),
		number("Err/s", 6, func(r *stackRow) float64 { return r.errors }),
		number("Retr/s", 5, func(r *stackRow) float64 { return r.retransmits }),
		number("Calls/s", 7, func(r *stackRow) float64 { return r.calls }),
	}, flowColumns(func(r *stackRow) flow { return r.flow })...),
	id:  func(r *stackRow) string { return r.name },
	tie: func(a, b *stackRow) int { return cmp.Compare(a.name, b.name) },
}

// A deviceRow is a RoCE device.
type deviceRow struct {
	stack, name, netdev string
	active              bool
	links               uint32
	retransmits         float64 // since it was opened
	retransmitRate      float64
	refused             float64
}

var deviceSheet = &sheet[deviceRow]{
	columns: []column[deviceRow]{
		{name: "IB-Dev", min: 8, text: func(r *deviceRow) string { return r.name }},
		{name: "Net-Dev", rank: 1, min: 8, text: func(r *deviceRow) string { return r.netdev }},
		{name: "State", rank: 1, text: func(r *deviceRow) string {
			if r.active {
				return "ACTIVE"
			}
			return "INACTIVE"
		}},
		number("Links", 2, func(r *deviceRow) float64 { return float64(r.links) }),
		number("Retr/s", 1, func(r *deviceRow) float64 { return r.retransmitRate }),
		number("Retrans", 2, func(r *deviceRow) float64 { return r.retransmits }),
		number("Refused", 4, func(r *deviceRow) float64 { return r.refused }),
		{name: "Stack", rank: 5, min: 6, text: func(r *deviceRow) string { return r.stack }},
	},
	id: func(r *deviceRow) string { return r.stack + " " + r.name },
	tie: func(a, b *deviceRow) int {
		return cmp.Or(strings.Compare(a.stack, b.stack), strings.Compare(a.name, b.name))
	},
}

// A groupRow is a link group.
type groupRow struct {
	stack string
	flow  flow
	g     nl.LinkGroup
}

func (r *groupRow) peer() string {
	if r.g.Peer == "" && r.g.V2 != nil {
		return r.g.V2.PeerHost
	}
	return r.g.Peer
}

var groupSheet = &sheet[groupRow]{
	columns: append(append([]column[groupRow]{
		{name: "LG-ID", text: func(r *groupRow) string { return r.g.ID.String() }},
		{name: "Role", rank: 2, text: func(r *groupRow) string { return r.g.Role.Short() }},
		{name: "Type", rank: 2, text: func(r *groupRow) string { return r.g.Type.String() }},
		{name: "Peer", rank: 1, min: 12, text: (*groupRow).peer},
		number("Conns", 2, func(r *groupRow) float64 { return float64(r.g.Conns) }),
	}, flowColumns(func(r *groupRow) flow { return r.flow })...),
		number("Sndbuf", 6, func(r *groupRow) float64 { return float64(r.g.Sndbuf) }),
		number("RMB", 6, func(r *groupRow) float64 { return float64(r.g.RMB) }),
		number("V", 7, func(r *groupRow) float64 { return float64(r.g.Version()) }),
		column[groupRow]{name: "PNET-ID", rank: 8, min: 8, text: func(r *groupRow) string { return r.g.PNETID }},
		column[groupRow]{name: "Peer-Host", rank: 9, min: 9, text: func(r *groupRow) string {
			if r.g.V2 == nil {
				return ""
			}
			return r.g.V2.PeerHost
		}},
		column[groupRow]{name: "Stack", rank: 5, min: 6, text: func(r *groupRow) string { return r.stack }},
	),
	id: func(r *groupRow) string { return r.stack + " " + r.g.ID.String() },
	tie: func(a, b *groupRow) int {
		return cmp.Or(cmp.Compare(a.g.ID, b.g.ID), strings.Compare(a.stack, b.stack))
	},
}

// A linkRow is a link. The retransmissions are those of its device.
type linkRow struct {
	stack, netdev string
	flow          flow
	retransmits   float64
	l             nl.Link
}

var linkSheet = &sheet[linkRow]{
	columns: append(append([]column[linkRow]{
		{name: "LG-ID", text: func(r *linkRow) string { return r.l.LinkGroup.String() }},
		number("Link", 1, func(r *linkRow) float64 { return float64(r.l.ID) }),
		{name: "State", rank: 1, text: func(r *linkRow) string { return r.l.State.String() }},
		{name: "IB-Dev", rank: 2, min: 8, text: func(r *linkRow) string { return r.l.IBDev }},
		{name: "Net-Dev", rank: 4, min: 8, text: func(r *linkRow) string { return r.netdev }},
		number("Conns", 2, func(r *linkRow) float64 { return float64(r.l.Conns) }),
	}, flowColumns(func(r *linkRow) flow { return r.flow })...),
		number("Retr/s", 2, func(r *linkRow) float64 { return r.retransmits }),
		column[linkRow]{name: "Role", rank: 6, text: func(r *linkRow) string { return r.l.Role.Short() }},
		column[linkRow]{name: "Stack", rank: 5, min: 6, text: func(r *linkRow) string { return r.stack }},
		column[linkRow]{name: "Peer-GID", rank: 8, text: func(r *linkRow) string { return r.l.PeerGID.String() }},
	),
	id: func(r *linkRow) string { return fmt.Sprint(r.stack, " ", r.l.LinkGroup, " ", r.l.ID) },
	tie: func(a, b *linkRow) int {
		return cmp.Or(cmp.Compare(a.l.LinkGroup, b.l.LinkGroup), cmp.Compare(a.l.ID, b.l.ID), strings.Compare(a.stack, b.stack))
	},
}

// A connRow is a connection.
type connRow struct {
	stack         string
	state         smc.ConnState
	mode          nl.Mode
	local, remote netip.AddrPort
	group         nl.LinkGroupID
	link          uint8
	pid           uint32
	command       string
	uid           uint32
	inode         uint64
	fallback      nl.ConnFallback
	flow          flow
	total         flow // bytes since it was established
}

// reason returns why the connection is plain TCP.
func (r *connRow) reason() string {
	if r.mode != nl.ModeTCP || r.fallback == (nl.ConnFallback{}) {
		return ""
	}
	s := fmt.Sprintf("0x%08x", r.fallback.Reason)
	if r.fallback.Peer != 0 {
		s += fmt.Sprintf("/0x%08x", r.fallback.Peer)
	}
	if text := smc.Diagnosis(r.fallback.Reason).Text(); text != "" {
		s += " " + text
	}
	return s
}

func addrText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

var connSheet = &sheet[connRow]{
	columns: append(append([]column[connRow]{
		{name: "Peer", min: 15, text: func(r *connRow) string { return addrText(r.remote) }, compare: func(a, b *connRow) int { return a.remote.Compare(b.remote) }},
		{name: "Local", rank: 2, min: 12, text: func(r *connRow) string { return addrText(r.local) }, compare: func(a, b *connRow) int { return a.local.Compare(b.local) }},
		{name: "State", rank: 2, min: 6, text: func(r *connRow) string { return r.state.String() }},
		{name: "Mode", rank: 1, text: func(r *connRow) string { return r.mode.String() }},
		{name: "LG-ID", rank: 4, text: func(r *connRow) string {
			if r.group == 0 {
				return ""
			}
			return r.group.String()
		}},
	}, flowColumns(func(r *connRow) flow { return r.flow })...),
		column[connRow]{name: "Process", rank: 3, min: 7, text: func(r *connRow) string {
			if r.pid == 0 {
				return ""
			}
			return fmt.Sprintf("%s/%d", r.command, r.pid)
		}},
		column[connRow]{name: "Reason", rank: 5, min: 10, text: (*connRow).reason},
		number("RX", 6, func(r *connRow) float64 { return r.total.rx }),
		number("TX", 6, func(r *connRow) float64 { return r.total.tx }),
		number("Link", 7, func(r *connRow) float64 { return float64(r.link) }),
		column[connRow]{name: "Stack", rank: 6, min: 6, text: func(r *connRow) string { return r.stack }},
		column[connRow]{name: "UID", rank: 8, value: func(r *connRow) float64 { return float64(r.uid) }, text: func(r *connRow) string { return fmt.Sprint(r.uid) }},
	),
	id: func(r *connRow) string {
		return fmt.Sprint(r.stack, " ", r.inode, " ", r.local, " ", r.remote)
	},
	tie: func(a, b *connRow) int {
		return cmp.Or(a.remote.Compare(b.remote), a.local.Compare(b.local), cmp.Compare(a.inode, b.inode), strings.Compare(a.stack, b.stack))
	},
}

// A fallbackRow is a reason why connections became plain TCP.
type fallbackRow struct {
	stack string
	rate  float64
	f     nl.Fallback
}

var fallbackSheet = &sheet[fallbackRow]{
	columns: []column[fallbackRow]{
		number("Count", 1, func(r *fallbackRow) float64 { return float64(r.f.Count) }),
		number("Rate/s", 1, func(r *fallbackRow) float64 { return r.rate }),
		{name: "Side", rank: 2, text: func(r *fallbackRow) string { return r.f.Side.String() }},
		{name: "Code", rank: 0, text: func(r *fallbackRow) string { return fmt.Sprintf("0x%08x", r.f.Reason) }},
		{name: "Reason", rank: 1, min: 10, text: func(r *fallbackRow) string { return smc.Diagnosis(r.f.Reason).Text() }},
		{name: "Stack", rank: 3, min: 6, text: func(r *fallbackRow) string { return r.stack }},
	},
	id: func(r *fallbackRow) string { return fmt.Sprint(r.stack, " ", r.f.Side, " ", r.f.Reason) },
	tie: func(a, b *fallbackRow) int {
		return cmp.Or(cmp.Compare(b.f.Count, a.f.Count), cmp.Compare(a.f.Reason, b.f.Reason), cmp.Compare(a.f.Side, b.f.Side), strings.Compare(a.stack, b.stack))
	},
}

// columnOf returns the number of the column with a name. Tests check that all names exist.
func columnOf[R any](s *sheet[R], name string) int {
	for i, c := range s.columns {
		if c.name == name {
			return i
		}
	}
	return 0
}
