// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"slices"
	"sync"

	"smcr/nl"
	"smcr/smc"
	"smcr/stats"
	"smcr/userstack"
)

// tallies counts what became of the connections that the Diverter has taken, for each attached cgroup.
type tallies struct {
	mu sync.Mutex
	of map[uint64]*tally
}

type tally struct {
	smcr   uint64
	tcp    map[stats.Fallback]uint64 // the keys have no Count
	resets map[string]uint64
}

// maxReasons is how many reasons are counted for a cgroup: a peer chooses some of them. All beyond count as one.
const maxReasons = 64

// add begins to count for a cgroup.
func (t *tallies) add(cgroup uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[cgroup] == nil {
		t.of[cgroup] = &tally{tcp: map[stats.Fallback]uint64{}, resets: map[string]uint64{}}
	}
}

// drop forgets a cgroup.
func (t *tallies) drop(cgroup uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, cgroup)
}

// count counts a connection of a cgroup that uses SMC-R, or, if d is not nil, TCP. One of a cgroup that is not attached
// any more counts nowhere.
func (t *tallies) count(cgroup uint64, side smc.Role, d *userstack.DeclineError) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of[cgroup]
	if c == nil {
		return
	}
	if d == nil {
		c.smcr++
		return
	}
	why := stats.Fallback{Side: side, Reason: uint32(d.Code)}
	if _, known := c.tcp[why]; !known && len(c.tcp) >= maxReasons {
		why.Reason = uint32(smc.DiagPeerDeclined)
	}
	c.tcp[why]++
}

// reset counts a connection of a cgroup that the stack has reset by itself.
func (t *tallies) reset(cgroup uint64, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of[cgroup]
	if c == nil || why == "" {
		return
	}
	if _, known := c.resets[why]; !known && len(c.resets) >= maxReasons {
		why = "other reasons"
	}
	c.resets[why]++
}

// get returns what was counted for a cgroup.
func (t *tallies) get(cgroup uint64) (o nl.Outcomes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of[cgroup]
	if c == nil {
		return o
	}
	o.SMCR = c.smcr
	for why, n := range c.tcp {
		why.Count = n
		o.TCP = append(o.TCP, why)
	}
	for why, n := range c.resets {
		o.Resets = append(o.Resets, nl.Reset{Why: why, Count: n})
	}
	slices.SortFunc(o.Resets, func(a, b nl.Reset) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Why, b.Why)) })
	return o
}

// outcomes returns what became of the connections of each attached cgroup.
func (w *boundary) outcomes() (map[uint64]nl.Outcomes, error) {
	left, err := w.d.Counts()
	if err != nil {
		return nil, err
	}
	of := map[uint64]nl.Outcomes{}
	for _, e := range w.attached.Entries() {
		of[e.Cgroup] = w.tallies.get(e.Cgroup)
	}
	for _, c := range left {
		if o, ok := of[c.Cgroup]; ok && c.Why != refused {
			o.TCP = append(o.TCP, stats.Fallback{Side: c.Side, Reason: uint32(c.Why), Count: c.N})
			of[c.Cgroup] = o
		}
	}
	for _, o := range of {
		slices.SortFunc(o.TCP, func(a, b stats.Fallback) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Side, b.Side))
		})
	}
	return of, nil
}

// refused is the reason in divert.Count of connections that the peer has refused: these are none.
const refused = smc.Diagnosis(0)

// plain adds the connections that were never taken to the fallbacks of a stack.
func (w *boundary) plain(f stats.Fallbacks) stats.Fallbacks {
	if w == nil {
		return f
	}
	all, err := w.d.Counts()
	if err != nil {
		w.s.log.Debug("cannot count the connections that are TCP", "err", err)
		return f
	}
	sums := map[stats.Fallback]uint64{} // the keys have no Count
	for _, c := range all {
		if c.Why != refused && c.Why != smc.DiagLocal { // which is the right thing, and no fallback
			sums[stats.Fallback{Side: c.Side, Reason: uint32(c.Why)}] += c.N
		}
	}
	var add stats.Fallbacks
	for why, n := range sums {
		if why.Side == smc.Client {
			add.ClientTotal += n
		} else {
			add.ServerTotal += n
		}
		why.Count = n
		add.Reasons = append(add.Reasons, why)
	}
	return f.Add(add)
}
