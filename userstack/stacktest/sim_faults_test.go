// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"fmt"
	"time"

	"smcr/internal/testing/conntest"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// simCheckPair checks two ends of one connection against each other.
func simCheckPair(in inside.Inspector[*userstack.Conn], a, b *userstack.Conn) (err error) {
	in.View(a, func(ca *linkgroup.Conn) {
		in.View(b, func(cb *linkgroup.Conn) { err = conntest.CheckPair(&ca.Conn, &cb.Conn) })
	})
	return err
}

// simTrigger calls a function when a certain message is sent, so that a fault happens in
// the middle of an exchange.
type simTrigger struct {
	llc  wire.LLCType // 0: CDC
	skip int          // messages to let pass
	then func()
}

// triggers calls the functions of the triggers that wait for a message.
func (s *simulation) triggers(e *simfabric.Event) {
	if len(s.armed) == 0 || len(e.Data) == 0 {
		return
	}
	typ := wire.LLCType(0)
	if !wire.IsCDC(e.Data) {
		h, err := wire.ParseLLCHeader(e.Data)
		if err != nil {
			return
		}
		typ = h.Type
	}
	for i := 0; i < len(s.armed); i++ {
		t := &s.armed[i]
		if t.llc != typ {
			continue
		}
		if t.skip--; t.skip < 0 {
			s.hits, s.hitAt = append(s.hits, t.then), e.To
			s.armed = append(s.armed[:i], s.armed[i+1:]...)
			i--
		}
	}
}

// soon calls f at some time within span, or in the middle of an exchange. The simulation
// waits only for the first case, because the exchange may not occur.
func (s *simulation) soon(span time.Duration, f func()) {
	if s.rng.IntN(2) == 0 {
		s.later(s.some(span), f)
		return
	}
	types := []wire.LLCType{
		0, wire.LLCConfirmLink, wire.LLCAddLink, wire.LLCAddLinkCont, wire.LLCDeleteLink, wire.LLCDeleteRKey,
		wire.LLCConfirmRKey, wire.LLCTestLink, wire.LLCConfirmLink, wire.LLCAddLink, wire.LLCDeleteLink,
	}
	late := s.some(200 * time.Microsecond)
	s.armed = append(s.armed, simTrigger{
		llc: types[s.rng.IntN(len(types))], skip: s.rng.IntN(6),
		then: func() { s.later(late, f) },
	})
}

// planTrouble chooses what fails.
func (s *simulation) planTrouble(span time.Duration) {
	for range 1 + s.rng.IntN(4) {
		s.soon(span, s.trouble)
	}
}

// trouble makes something fail, and repairs it later.
func (s *simulation) trouble() {
	s.faults++
	r := s.rng
	h := s.hosts[r.IntN(len(s.hosts))]
	dev := fmt.Sprintf("eth%d", r.IntN(h.devs))
	outage := s.some(50 * time.Millisecond)
	if r.IntN(3) == 0 {
		outage = s.some(8 * time.Second)
	}
	back := func(f func()) { s.later(outage, f) }
	switch r.IntN(8) {
	case 0, 1:
		h.h.SetPort(dev, false)
		back(func() { h.h.SetPort(dev, true) })
	case 2, 3:
		h.h.Remove(dev)
		back(func() { h.h.Restore(dev) })
	case 4:
		s.w.SetLAN("lan", false)
		back(func() { s.w.SetLAN("lan", true) })
	case 5:
		if h.down {
			return
		}
		h.h.SetVanished(true)
		back(func() {
			if !h.down {
				h.h.SetVanished(false)
			}
		})
	case 6:
		s.reboot(h, outage)
	case 7:
		s.breakQP()
	}
}

// breakQP makes one queue pair fail, like a device that finds a fault.
func (s *simulation) breakQP() {
	if qps := s.w.QPs(); len(qps) > 0 {
		s.w.InjectWrite(qps[s.rng.IntN(len(qps))].QPN, s.rng.Uint32(), 1, []byte{0})
	}
}

// reboot ends a host without any message to the peers, and starts it again.
func (s *simulation) reboot(h *simHost, outage time.Duration) {
	if h.down || h.stack == nil {
		return
	}
	s.trace.notef("%s reboots", h.name)
	old, loop := h.stack, h.loop
	h.down, h.stack = true, nil
	h.old = append(h.old, old)
	h.h.SetVanished(true)
	s.planned++
	gone := make(chan error, 1)
	h.gone, h.away = gone, outage
	s.w.After(s.cancel(h), func() { go func() { gone <- closeStack(old, loop) }() })
}

// reboots starts the hosts whose old stack has ended.
func (s *simulation) reboots() {
	for _, h := range s.hosts {
		select {
		case err := <-h.gone:
			if err != nil {
				s.fail("close %s: %v", h.name, err)
			}
			s.later(h.away, func() {
				h.down = false
				h.h.SetVanished(false)
				h.start()
			})
			s.planned--
		default:
		}
	}
}

// planFailover plans for two hosts with two devices each. They lose one device, port or
// queue pair when both links are active. No connection may fail.
func (s *simulation) planFailover(pairs int) {
	a, b := s.hosts[0], s.hosts[1]
	for _, h := range s.hosts {
		h.conf.MaxLinks = 2
		h.conf.MaxConns = 0
		inspect(h.stack).SetLimits(2, 0)
	}
	var wait func()
	hold := s.launchBetween(a, b, true, true) // keeps the group until the other connections have begun
	hold.ends[0].total, hold.ends[0].slow = max(hold.ends[0].total, 20<<10), 5*time.Millisecond
	hold.ends[0].chunk = 1 + s.rng.IntN(2000)
	wait = func() {
		if hold.ends[0].done.Load() && hold.ends[1].done.Load() {
			s.failover(hold, pairs)
			return
		}
		s.later(100*time.Microsecond, wait)
	}
	s.later(1, wait)
}

// failover starts the other connections. Then it makes one link fail, in most cases just
// after data has arrived over the link.
func (s *simulation) failover(hold *simPair, pairs int) {
	a, b := s.hosts[0], s.hosts[1]
	span := time.Duration(1+s.rng.IntN(10)) * time.Millisecond
	begun := []*simPair{hold}
	for range pairs {
		s.later(s.some(span), func() {
			// When a link has failed, a rendezvous may fail too.
			if p := s.launchBetween(a, b, s.faults == 0, false); p != nil {
				begun = append(begun, p)
			}
		})
	}
	fault := func() {
		if !s.redundant() {
			return
		}
		s.faults++
		h, dev := s.hosts[s.rng.IntN(2)], fmt.Sprintf("eth%d", s.rng.IntN(2))
		if s.hitAt.Host != "" && s.rng.IntN(4) > 0 {
			h, dev = s.host(s.hitAt.Host), s.hitAt.NetDev
		}
		kind := s.rng.IntN(3)
		for _, p := range begun {
			for _, e := range p.ends {
				// An adapter that is removed may lose data that it has acknowledged.
				if !e.done.Load() || kind == 0 && s.hold {
					p.sure = false
				}
			}
		}
		switch kind {
		case 0:
			h.h.Remove(dev)
		case 1:
			h.h.SetPort(dev, false)
		case 2:
			s.breakQP()
		}
	}
	if s.rng.IntN(4) == 0 {
		s.later(span+s.some(20*time.Millisecond), fault)
		return
	}
	then := fault
	if late := s.some(time.Millisecond); s.rng.IntN(3) > 0 { // acknowledged, but the stack may not know it yet
		then = func() { s.later(late, fault) }
	}
	s.armed = append(s.armed, simTrigger{skip: s.rng.IntN(60), then: then})
}

// redundant reports whether all link groups have two links, so that one of them may fail.
func (s *simulation) redundant() bool {
	for _, h := range s.hosts {
		for _, g := range inspect(h.stack).Groups() {
			var t smc.GroupType
			g.View(func(core *linkgroup.Group) { t = core.Type() })
			if t != smc.GroupSymmetric {
				return false
			}
		}
	}
	return true
}
