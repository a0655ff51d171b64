// SPDX-License-Identifier: Apache-2.0

package top

import (
	"hash/maphash"
	"net/netip"
	"time"

	"smcr/internal/sample"
	"smcr/nl"
	"smcr/smc"
)

// A view is what the screen shows below its head.
type view int

// The views, in the order of their keys.
const (
	viewSummary view = iota
	viewGroups
	viewLinks
	viewConns
	viewFallbacks
	views // how many there are
)

// A Query says which rows of each table a sample keeps: the first in an order of those that
// have all words.
type Query struct {
	orders [views]order
	words  [views][]string
}

// Totals are the numbers of all stacks together.
type Totals struct {
	groups, links          int
	conns, smcr, smcd, tcp int // connections, by mode
	flow                   flow
	rxCalls, txCalls       float64
	newConns, fallbacks    float64
	errors, retransmits    float64
}

// A Sample is what the screen shows of one moment.
type Sample struct {
	at        time.Time
	totals    Totals
	stacks    part[stackRow]
	devices   part[deviceRow]
	busiest   part[connRow]
	groups    part[groupRow]
	links     part[linkRow]
	conns     part[connRow]
	fallbacks part[fallbackRow]
}

// counted are the byte counters of a connection.
type counted struct {
	rx, tx uint64
	// The counters begin again at these, unless they are 0.
	rxWrap, txWrap uint64
}

// A baseline is what the next sample needs to know of the last one to compute rates.
type baseline struct {
	at     time.Time
	stacks map[string]*sample.Stack
	conns  map[uint64]counted
	// full means that not all connections are in conns: those that are not need not be new.
	full bool
}

// maxBaseline is how many connections a baseline remembers. Others have no rate.
const maxBaseline = 1 << 18

// seed keeps others from choosing addresses with equal hashes.
var seed = maphash.MakeSeed()

// connID tells connections apart.
type connID struct {
	stack         string
	inode, cookie uint64
	local, remote netip.AddrPort
}

// A linkID names a link within its stack.
type linkID struct {
	group nl.LinkGroupID // without the last byte, which may be anything
	link  uint8
}

// A digest makes a Sample. It is the [sample.Sink] of the connections.
type digest struct {
	q       Query
	before  *baseline // nil for the first sample
	now     *baseline
	elapsed time.Duration

	conns, busiest *topN[connRow]
	totals         Totals
	flows          map[string]map[linkID]*flow // by stack and link

	stack *stackDigest // of the stack whose connections arrive
}

// A stackDigest is what is known of the connections of one stack, until all have arrived.
type stackDigest struct {
	*sample.Stack
	comparable     bool // with the baseline
	conns, busiest *topN[connRow]
	totals         Totals
	flows          map[linkID]*flow
	kernelLinks    map[kernelLink]linkID
	counts         map[uint64]counted
}

// kernelLink is what the kernel says about the link of a connection: it does not say which
// link group that is.
type kernelLink struct {
	role         smc.Role
	id, port     uint8
	device       string
	gid, peerGID smc.GID
}

// maxBusiest is how many connections the summary shows.
const maxBusiest = 50

func busiestFirst() *topN[connRow] {
	return connSheet.newTopN(order{column: columnOf(connSheet, "B/s")}, nil, maxBusiest)
}

func newDigest(q Query, before *baseline, at time.Time) *digest {
	d := &digest{
		q: q, before: before, now: &baseline{at: at, stacks: map[string]*sample.Stack{}, conns: map[uint64]counted{}},
		conns: connSheet.newTopN(q.orders[viewConns], q.words[viewConns], maxRows), busiest: busiestFirst(),
		flows: map[string]map[linkID]*flow{},
	}
	if before != nil {
		d.elapsed = at.Sub(before.at)
	}
	return d
}

// earlier returns the stack in the last sample, or nil if it was not there or is another
// process now.
func (d *digest) earlier(s *sample.Stack) *sample.Stack {
	if d.before == nil || d.elapsed <= 0 {
		return nil
	}
	b := d.before.stacks[s.Name]
	if b == nil || b.Info.PID != s.Info.PID {
		return nil
	}
	return b
}

// Begin implements [sample.Sink].
func (d *digest) Begin(s *sample.Stack) {
	d.stack = &stackDigest{
		Stack: s, comparable: d.earlier(s) != nil,
		conns:   connSheet.newTopN(d.q.orders[viewConns], d.q.words[viewConns], maxRows),
		busiest: busiestFirst(), flows: map[linkID]*flow{}, counts: map[uint64]counted{},
	}
	if s.Name == sample.Kernel {
		d.stack.kernelLinks = kernelLinks(s.Links)
	}
}

// kernelLinks returns the links by what a connection says about them. Those that cannot be
// told apart are missing: a kernel has such links when a link group is full.
func kernelLinks(links []nl.Link) map[kernelLink]linkID {
	m := make(map[kernelLink]linkID, len(links))
	twice := map[kernelLink]bool{}
	for i := range links {
		l := &links[i]
		k := kernelLink{l.Role, l.ID, l.IBPort, l.IBDev, l.GID, l.PeerGID}
		if _, ok := m[k]; ok {
			twice[k] = true
		}
		m[k] = linkID{l.LinkGroup &^ 0xff, l.ID}
	}
	for k := range twice {
		delete(m, k)
	}
	return m
}

// Connection implements [sample.Sink]. It leaves out sockets without a connection.
func (d *digest) Connection(c *nl.Connection) {
	s := d.stack
	if c.State == smc.StateListen || c.State == smc.StateInit {
		return
	}
	s.totals.conns++
	switch c.Mode {
	case nl.ModeSMCR:
		s.totals.smcr++
	case nl.ModeSMCD:
		s.totals.smcd++
	default:
		s.totals.tcp++
	}
	r := connRow{
		stack: s.Name, state: c.State, mode: c.Mode, local: c.Local, remote: c.Remote, group: c.LinkGroup,
		pid: c.PID, command: c.Command, uid: c.UID, inode: c.Inode, fallback: c.Fallback, flow: unknownFlow, total: unknownFlow,
	}
	if c.Link != nil {
		r.link = c.Link.LinkID
		if s.kernelLinks != nil {
			k := c.Link
			r.group = s.kernelLinks[kernelLink{k.Role, k.LinkID, k.IBPort, k.IBDev, k.GID, k.PeerGID}].group
		}
	}
	if n, ok := countedBytes(c, s.Name == sample.Kernel); ok {
		if s.Name != sample.Kernel {
			r.total = flow{float64(n.rx), float64(n.tx)}
		}
		key := maphash.Comparable(seed, connID{s.Name, c.Inode, c.Cookie, c.Local, c.Remote})
		if len(d.now.conns)+len(s.counts) < maxBaseline {
			s.counts[key] = n
		} else {
			d.now.full = true
		}
		r.flow = d.rate(key, n)
	}
	if r.group != 0 && r.flow.rx == r.flow.rx { // known
		id := linkID{r.group &^ 0xff, r.link}
		if s.flows[id] == nil {
			s.flows[id] = &flow{}
		}
		s.flows[id].add(r.flow)
	}
	s.conns.add(&r)
	if r.mode != nl.ModeTCP {
		s.busiest.add(&r)
	}
}

// rate returns the flow of a connection since the last sample.
func (d *digest) rate(key uint64, n counted) flow {
	if !d.stack.comparable {
		return unknownFlow
	}
	b, ok := d.before.conns[key]
	if !ok && d.before.full {
		return unknownFlow
	}
	since := func(before, now, wrap uint64) float64 {
		if now < before && wrap > 0 && before < wrap {
			return float64(now+wrap-before) / d.elapsed.Seconds()
		}
		return float64(sample.Since(before, now)) / d.elapsed.Seconds()
	}
	return flow{since(b.rx, n.rx, n.rxWrap), since(b.tx, n.tx, n.txWrap)}
}

// countedBytes returns the bytes of a connection so far, if they are counted. The kernel has
// no counters, but cursors: how often they have wrapped is a number of 16 bits.
func countedBytes(c *nl.Connection, kernel bool) (n counted, ok bool) {
	switch {
	case !kernel:
		return counted{rx: c.RXBytes, tx: c.TXBytes}, c.Mode != nl.ModeTCP || c.RXBytes|c.TXBytes != 0
	case c.Info == nil || c.Mode == nl.ModeTCP:
		return n, false
	}
	at := func(x nl.Cursor, size uint32) uint64 { return uint64(x.Wrap)*uint64(size) + uint64(x.Count) }
	i := c.Info
	return counted{
		rx: at(i.TXCons, i.RMBE), rxWrap: uint64(i.RMBE) << 16,
		tx: at(i.TXPrep, i.Sndbuf), txWrap: uint64(i.Sndbuf) << 16,
	}, true
}

// End implements [sample.Sink].
func (d *digest) End() {
	s := d.stack
	d.conns.merge(s.conns)
	d.busiest.merge(s.busiest)
	t := &d.totals
	t.conns, t.smcr, t.smcd, t.tcp = t.conns+s.totals.conns, t.smcr+s.totals.smcr, t.smcd+s.totals.smcd, t.tcp+s.totals.tcp
	d.flows[s.Name] = s.flows
	for k, n := range s.counts {
		d.now.conns[k] = n
	}
}

var _ sample.Sink = (*digest)(nil)
