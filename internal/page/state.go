// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"smcr/internal/printable"
	"smcr/internal/reasons"
	"smcr/internal/topology"
	"smcr/nl"
	"smcr/smc"
)

// Bounds of the tables. The state has the number of all rows, too.
const (
	maxConns   = 500
	maxLinks   = 300
	maxReasons = 100
	maxText    = 200 // bytes of a cell
)

// A state is what the page shows, as /state.json has it. It is for the page alone: others
// use smcr topology -o json and the other commands.
type state struct {
	Time    string `json:"time"` // RFC 3339
	Version string `json:"version"`
	Every   int64  `json:"every"` // ms after which to ask again
	// Stacks are a heading and figures for each stack.
	Stacks []figures `json:"stacks"`
	// Picture is the SVG image of package topology.
	Picture     string `json:"picture"`
	Links       table  `json:"links"`
	Connections table  `json:"connections"`
	Fallbacks   table  `json:"fallbacks"`
	// Reasons are those of the last two tables, with what to do.
	Reasons []reason `json:"reasons"`
}

// A reason is why connections are TCP, as smcr explain has it.
type reason struct {
	code  smc.Diagnosis
	Name  string   `json:"name"`
	Code  string   `json:"code"`
	Text  string   `json:"text"` // as in cells
	Title string   `json:"title"`
	Cause string   `json:"cause"`
	Cure  []string `json:"cure"`
}

// A table is rows of cells, with how many rows there are in all, and how many of these match
// the filter.
type table struct {
	Rows     [][]string `json:"rows"`
	Matching int        `json:"matching"`
	Total    int        `json:"total"`
}

// figures are the numbers of one stack. Connections are those that are open now, except for Became.
type figures struct {
	Host     string `json:"host"`
	Stack    string `json:"stack"`
	PID      uint32 `json:"pid"`     // changes when the stack is restarted or taken over; 0 for the kernel
	Counted  uint64 `json:"counted"` // grows, also after a takeover, and begins again with a restart
	SMCR     int    `json:"smcr"`
	SMCD     int    `json:"smcd"`
	TCP      int    `json:"tcp"`
	Became   uint64 `json:"became_tcp"` // connections that became TCP since the stack was started
	Groups   int    `json:"groups"`
	Peers    int    `json:"peers"`
	Sent     string `json:"sent"` // "" if not known
	Received string `json:"received"`
	Errors   uint64 `json:"errors"` // handshakes that failed
}

// newState makes the state of a listing. The filter selects connections by any of their
// texts, whatever the case.
func newState(l *listed, cfg *Config, layout topology.Layout, filter string) *state {
	s := &state{
		Time: l.time.Format(time.RFC3339Nano), Version: cfg.Version, Stacks: []figures{}, Reasons: []reason{},
		Picture: string(topology.SVG(l.stacks, layout, topology.DefaultGroups)),
		Links:   table{Rows: [][]string{}}, Connections: table{Rows: [][]string{}}, Fallbacks: table{Rows: [][]string{}},
	}
	filter = strings.ToLower(strings.TrimSpace(filter))
	for i := range l.stacks {
		s.Stacks = append(s.Stacks, newFigures(&l.stacks[i], &l.tables[i]))
		s.addLinks(&l.stacks[i])
		s.addConnections(&l.tables[i], l.rates[i], cfg.User, filter)
		s.addFallbacks(&l.tables[i])
	}
	slices.SortFunc(s.Reasons, func(x, y reason) int { return cmp.Compare(x.code, y.code) })
	return s
}

func newFigures(s *topology.Stack, l *topology.Listing) figures {
	f := figures{
		Host: text(s.Host), Stack: text(s.Name), PID: l.Info.PID, SMCR: s.Conns.SMCR, SMCD: s.Conns.SMCD, TCP: s.Conns.TCP,
		Peers: len(s.Peers), Errors: l.Stats.ClientHandshakeErrors + l.Stats.ServerHandshakeErrors,
		Became: l.Fallbacks.ClientTotal + l.Fallbacks.ServerTotal,
	}
	f.Counted = f.Errors + l.Stats.SMCR.Connections() + l.Stats.SMCR.TXBytes + l.Stats.SMCR.RXBytes + f.Became
	for _, p := range s.Peers {
		f.Groups += len(p.Groups)
	}
	if s.Rates != nil {
		f.Sent, f.Received = topology.Rate(s.Rates.Sent), topology.Rate(s.Rates.Received)
	}
	return f
}

// add adds a row, if the table has room for it, and reports whether it has.
func (t *table) add(limit int, row ...string) bool {
	if len(t.Rows) >= limit {
		return false
	}
	for i := range row {
		row[i] = text(row[i])
	}
	t.Rows = append(t.Rows, row)
	return true
}

// explain adds the reason with a code, if there is one that is not there yet.
func (s *state) explain(code uint32) {
	r, ok := reasons.Of(smc.Diagnosis(code))
	if ok && !slices.ContainsFunc(s.Reasons, func(x reason) bool { return x.code == r.Code }) {
		s.Reasons = append(s.Reasons, reason{r.Code, r.Name, r.Number(), meaning(code), r.Heading(), r.Cause, r.Cure})
	}
}

// addLinks adds the links: stack, peer, link group, role, link, port, state, connections,
// packets sent again, bytes per second sent and received.
func (s *state) addLinks(st *topology.Stack) {
	for _, p := range st.Peers {
		peer := p.Address
		if p.Host != "" && p.Host != p.Address {
			peer = p.Host + " (" + p.Address + ")"
		}
		for _, g := range p.Groups {
			for _, l := range g.Links {
				s.Links.Total++
				s.Links.Matching++
				again, sent, received := "–", "", ""
				if l.Resent != nil {
					again = fmt.Sprint(*l.Resent)
				}
				if l.Rates != nil {
					sent, received = topology.Rate(l.Rates.Sent), topology.Rate(l.Rates.Received)
				}
				s.Links.add(maxLinks, st.Name, peer, g.ID, g.Role, fmt.Sprint(l.ID), l.NetDev, l.PeerGID, l.State, fmt.Sprint(l.Conns), again, sent, received)
			}
		}
	}
}

// addConnections adds the connections: stack, local and peer address, mode, state, link
// group, user, bytes sent and received, both per second, reason. Processes, alert tokens and cookies are left
// out: only the user of a connection and root may see them.
func (s *state) addConnections(l *topology.Listing, rates connRates, user func(uint32) string, filter string) {
	t := &s.Connections
	for i := range l.Conns {
		c := &l.Conns[i]
		if c.State == smc.StateListen || c.State == smc.StateInit {
			continue
		}
		t.Total++
		full := len(t.Rows) >= maxConns
		if full && filter == "" {
			t.Matching++
			continue
		}
		row := connectionRow(l.Stack, c, rates(c), user)
		if filter != "" && !slices.ContainsFunc(row, func(cell string) bool { return strings.Contains(strings.ToLower(cell), filter) }) {
			continue
		}
		t.Matching++
		if t.add(maxConns, row...) && c.Mode == nl.ModeTCP {
			s.explain(c.Fallback.Reason)
			s.explain(c.Fallback.Peer)
		}
	}
}

// connectionRow returns the row of a connection. rates is nil if they are not known.
func connectionRow(stack string, c *nl.Connection, rates *topology.Rates, user func(uint32) string) []string {
	group, sent, received, now := "", "", "", ""
	if c.LinkGroup != 0 {
		group = c.LinkGroup.String()
	}
	if c.Mode == nl.ModeSMCR && c.LinkGroup != 0 { // only stacks in user space count bytes
		sent, received = size(c.TXBytes), size(c.RXBytes)
	}
	if rates != nil {
		now = "↑ " + topology.Rate(rates.Sent) + " ↓ " + topology.Rate(rates.Received)
	}
	return []string{
		stack, address(c.Local), address(c.Remote), c.Mode.String(), c.State.String(), group, userCell(c.UID, user),
		sent, received, now, whyTCP(c),
	}
}

// whyTCP returns why a connection became plain TCP, and what the peer said. The page finds the
// reasons in it: see state.Reasons.
func whyTCP(c *nl.Connection) string {
	if c.Mode != nl.ModeTCP {
		return ""
	}
	s := meaning(c.Fallback.Reason)
	if c.Fallback.Peer != 0 {
		s = strings.TrimPrefix(s+"; peer: "+meaning(c.Fallback.Peer), "; ")
	}
	return s
}

// meaning returns what a code means, or the code.
func meaning(code uint32) string {
	if code == 0 {
		return ""
	}
	return cmp.Or(smc.Diagnosis(code).Text(), fmt.Sprintf("0x%08x", code))
}

// addFallbacks adds the reasons for which connections became TCP, with the most frequent
// first: stack, side, reason, code, count.
func (s *state) addFallbacks(l *topology.Listing) {
	list := slices.Clone(l.Fallbacks.Reasons)
	slices.SortStableFunc(list, func(x, y nl.Fallback) int { return cmp.Compare(y.Count, x.Count) })
	for _, f := range list {
		s.Fallbacks.Total++
		s.Fallbacks.Matching++
		if s.Fallbacks.add(maxReasons, l.Stack, f.Side.String(), meaning(f.Reason), fmt.Sprintf("0x%08x", f.Reason), fmt.Sprint(f.Count)) {
			s.explain(f.Reason)
		}
	}
}

func address(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
}

// size returns a number of bytes with a unit.
func size(n uint64) string { return strings.TrimSuffix(topology.Rate(n), "/s") }

// text makes a text of others safe to show: printable, and not too long. The page itself
// shows it as text, never as HTML.
func text(s string) string {
	s = printable.Line(s)
	if len(s) <= maxText {
		return s
	}
	s = s[:maxText]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}
