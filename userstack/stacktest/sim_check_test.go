// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
)

// observe is called for each event of the world, which is locked.
func (s *simulation) observe(e *simfabric.Event) {
	s.trace.event(e)
	if s.ending {
		return
	}
	switch e.Kind {
	case simfabric.EventWrite, simfabric.EventPartial:
		s.writes = append(s.writes, simWrite{
			from: e.From.Host, to: e.To.Host, rkey: e.RKey, addr: e.Addr,
			before: append([]byte(nil), e.Data...), after: append([]byte(nil), e.Mem...), forged: e.Note != "",
		})
	case simfabric.EventSend:
		s.record(e)
		s.triggers(e)
	case simfabric.EventRefused:
		// A correct host writes only where it may. While links end, keys become invalid
		// before the peer learns it, so a refused write alone is no failure.
	}
}

// maxSimSteps is much more than a seed needs.
const maxSimSteps = 1 << 20

// step is called after each event of the world.
func (s *simulation) step() {
	synctest.Wait()
	if s.ending {
		return
	}
	s.onTime()
	if s.steps++; s.steps > maxSimSteps {
		s.fail("the hosts do not come to rest: %d steps", s.steps)
	}
	s.check()
	s.reboots()
	for _, f := range s.hits {
		f()
	}
	s.hits = s.hits[:0]
	for _, p := range s.pairs {
		for _, e := range p.ends {
			if e.wanted() {
				e.wake()
			}
		}
	}
}

// onTime records whether a step took longer than 10 ms: then the Go scheduler may have
// preempted a goroutine.
func (s *simulation) onTime() {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		s.fail("%v", err)
		return
	}
	now := time.Duration(ts.Nano())
	if s.real > 0 && now-s.real > 8*time.Millisecond {
		s.late = true
	}
	s.real = now
}

// check verifies all invariants. All goroutines are blocked.
func (s *simulation) check() {
	now := time.Now()
	for i := range s.writes {
		s.checkWrite(now, &s.writes[i])
	}
	s.writes = s.writes[:0]
	for _, h := range s.hosts {
		if h.stack == nil {
			continue
		}
		for _, g := range inspect(h.stack).Groups() {
			var err error
			g.View(func(core *linkgroup.Group) { err = core.Check() })
			if err != nil {
				s.fail("%s link group %s: %v", h.name, g.Name(), err)
				return
			}
		}
	}
	for _, p := range s.pairs {
		s.checkPair(p)
	}
}

// checkWrite checks that a write goes to memory where the receiver expects it, and comes
// from the peer of the link group.
func (s *simulation) checkWrite(now time.Time, w *simWrite) {
	to := s.host(w.to)
	if to.stack == nil {
		return
	}
	for _, g := range inspect(to.stack).Groups() {
		var ok bool
		var err error
		g.View(func(core *linkgroup.Group) {
			ok, err = core.CheckWrite(now, smc.RKey(w.rkey), w.addr, w.before, w.after)
		})
		peer := s.hostOf(g)
		if !ok {
			continue
		}
		if peer != nil && peer.name != w.from {
			s.fail("%s wrote to memory of %s that is for %s", w.from, w.to, peer.name)
		}
		// A host that received a false address may write there.
		if err != nil && !s.dishonest(w.from) && !s.dishonest(w.to) && !w.forged {
			s.fail("%s>%s: %v", w.from, w.to, err)
		}
		return
	}
}

func (s *simulation) dishonest(name string) bool {
	return s.liar != nil && s.liar.name == name || s.stopped != nil && s.stopped.name == name
}

func (s *simulation) host(name string) *simHost { return s.hosts[name[0]-'A'] }

// hostOf returns the host at the other end of a link group.
func (s *simulation) hostOf(g inside.Group) *simHost {
	peer := g.Peer()
	if !peer.IsValid() {
		return nil
	}
	return s.hosts[peer.As4()[3]-1]
}

func (s *simulation) checkPair(p *simPair) {
	if p.tainted {
		return
	}
	a, b := p.ends[0], p.ends[1]
	if a.over || b.over || !a.done.Load() || !b.done.Load() || a.c == nil || b.c == nil {
		return
	}
	if err := simCheckPair(inspect(a.stack), a.c, b.c); err != nil {
		s.fail("connection %d: %v", p.id, err)
	}
}

// leaks checks that closed stacks have released everything.
func (s *simulation) leaks() {
	for _, h := range s.hosts {
		for _, st := range append(h.old, h.stack) {
			if st == nil {
				continue
			}
			if n := inspect(st).MemoryInUse(); n != 0 {
				s.fail("%s: %d bytes of memory are still handed out", h.name, n)
			}
			if n := len(inspect(st).Groups()); n != 0 {
				s.fail("%s: %d link groups are left", h.name, n)
			}
		}
	}
	if got := s.w.Objects(); got != (simfabric.Objects{}) {
		s.fail("verbs objects left: %+v", got)
	}
}
