// SPDX-License-Identifier: Apache-2.0

package top

import (
	"math"

	"smcr/internal/sample"
	"smcr/nl"
)

// finish returns the sample, and the baseline of the next one. netdev returns the name of a
// network device by its index.
func (d *digest) finish(stacks []*sample.Stack, netdev func(uint32) string) (*Sample, *baseline) {
	top := &Sample{at: d.now.at, totals: d.totals}
	var (
		groups    = groupSheet.newTopN(d.q.orders[viewGroups], d.q.words[viewGroups], maxRows)
		links     = linkSheet.newTopN(d.q.orders[viewLinks], d.q.words[viewLinks], maxRows)
		fallbacks = fallbackSheet.newTopN(d.q.orders[viewFallbacks], d.q.words[viewFallbacks], maxRows)
		rows      = stackSheet.newTopN(order{}, nil, maxRows)
		devices   = deviceSheet.newTopN(order{column: columnOf(deviceSheet, "Retr/s")}, nil, maxRows)
	)
	t := &top.totals
	t.retransmits = unknown
	if d.before == nil {
		t.flow, t.rxCalls, t.txCalls, t.newConns, t.fallbacks, t.errors = unknownFlow, unknown, unknown, unknown, unknown, unknown
	}
	for _, s := range stacks {
		d.now.stacks[s.Name] = s
		before := d.earlier(s)
		row := d.stackRow(s, before, t)
		rows.add(&row)
		again := d.deviceRows(s, before, netdev, devices)
		d.groupRows(s, groups)
		d.linkRows(s, again, netdev, links)
		for _, f := range s.Fallbacks.Reasons {
			r := fallbackRow{stack: s.Name, f: f, rate: unknown}
			if before != nil {
				r.rate = float64(sample.Since(countOf(before.Fallbacks.Reasons, f), f.Count)) / d.elapsed.Seconds()
			}
			fallbacks.add(&r)
		}
		t.groups, t.links = t.groups+len(s.Groups), t.links+len(s.Links)
	}
	top.stacks, top.devices, top.busiest = rows.done(), devices.done(), d.busiest.done()
	top.groups, top.links, top.conns, top.fallbacks = groups.done(), links.done(), d.conns.done(), fallbacks.done()
	for _, s := range d.now.stacks {
		s.Groups, s.Links = nil, nil // not needed any more
	}
	return top, d.now
}

// countOf returns the count of the same reason and side.
func countOf(reasons []nl.Fallback, f nl.Fallback) uint64 {
	for _, r := range reasons {
		if r.Side == f.Side && r.Reason == f.Reason {
			return r.Count
		}
	}
	return 0
}

// stackRow returns the row of a stack, and adds its rates to the totals.
func (d *digest) stackRow(s, before *sample.Stack, t *Totals) stackRow {
	row := stackRow{
		name: s.Name, pid: s.Info.PID, version: s.Info.StackVersion, groups: len(s.Groups), links: len(s.Links),
		flow: unknownFlow, calls: unknown, newConns: unknown, fallbacks: unknown, errors: unknown, retransmits: unknown,
	}
	for i := range s.Groups {
		row.conns += int(s.Groups[i].Conns)
	}
	r, ok := sample.Between(before, s, d.elapsed)
	if !ok {
		return row
	}
	row.flow, row.calls = flow{r.RXBytes, r.TXBytes}, r.RXCalls+r.TXCalls
	row.newConns, row.fallbacks, row.errors = r.Connections, r.Fallbacks, r.HandshakeErrors
	t.flow.add(row.flow)
	t.rxCalls, t.txCalls = t.rxCalls+r.RXCalls, t.txCalls+r.TXCalls
	t.newConns, t.fallbacks, t.errors = t.newConns+row.newConns, t.fallbacks+r.Fallbacks, t.errors+r.HandshakeErrors
	if r.Retransmits != nil {
		row.retransmits = *r.Retransmits
		if math.IsNaN(t.retransmits) {
			t.retransmits = 0
		}
		t.retransmits += *r.Retransmits
	}
	return row
}

// deviceRows adds the devices of a stack. It returns the rate of the retransmissions of each.
func (d *digest) deviceRows(s, before *sample.Stack, netdev func(uint32) string, rows *topN[deviceRow]) map[string]float64 {
	old := map[string]uint64{}
	if before != nil {
		for i := range before.Devices {
			if r := before.Devices[i].Resent; r != nil {
				old[before.Devices[i].Name] = r.Packets
			}
		}
	}
	rates := map[string]float64{}
	for i := range s.Devices {
		dev := &s.Devices[i]
		r := deviceRow{stack: s.Name, name: dev.Name, retransmits: unknown, retransmitRate: unknown, refused: unknown}
		for _, p := range dev.Ports {
			if !p.Valid {
				continue
			}
			r.active = r.active || p.Active
			r.links += p.Links
			if r.netdev != "" {
				r.netdev += ","
			}
			r.netdev += netdev(p.NetDev)
		}
		if dev.Provider != "" {
			r.refused = float64(dev.Refused.Total())
		}
		if dev.Resent != nil {
			r.retransmits = float64(dev.Resent.Packets)
			if b, ok := old[dev.Name]; ok {
				r.retransmitRate = float64(sample.Since(b, dev.Resent.Packets)) / d.elapsed.Seconds()
				rates[dev.Name] = r.retransmitRate
			}
		}
		rows.add(&r)
	}
	return rates
}

// known returns the flow of links, or what says that it is not known: if the stack was not
// there before, or if it has connections and it is not known on which link each is.
func (d *digest) known(s *sample.Stack, conns uint32, flows ...*flow) flow {
	if d.earlier(s) == nil {
		return unknownFlow
	}
	var sum flow
	found := conns == 0
	for _, f := range flows {
		if f != nil {
			sum.add(*f)
			found = true
		}
	}
	if !found {
		return unknownFlow
	}
	return sum
}

func (d *digest) groupRows(s *sample.Stack, rows *topN[groupRow]) {
	flows := map[nl.LinkGroupID]*flow{}
	for id, f := range d.flows[s.Name] {
		if flows[id.group] == nil {
			flows[id.group] = &flow{}
		}
		flows[id.group].add(*f)
	}
	for i := range s.Groups {
		g := &s.Groups[i]
		rows.add(&groupRow{stack: s.Name, g: *g, flow: d.known(s, g.Conns, flows[g.ID&^0xff])})
	}
}

func (d *digest) linkRows(s *sample.Stack, again map[string]float64, netdev func(uint32) string, rows *topN[linkRow]) {
	for i := range s.Links {
		l := &s.Links[i]
		r := linkRow{stack: s.Name, netdev: netdev(l.NetDev), l: *l, retransmits: unknown}
		r.flow = d.known(s, l.Conns, d.flows[s.Name][linkID{l.LinkGroup &^ 0xff, l.ID}])
		if n, ok := again[l.IBDev]; ok {
			r.retransmits = n
		}
		rows.add(&r)
	}
}
