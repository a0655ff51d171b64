// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// happening is something that begins an LLC exchange or interferes with one.
type happening struct {
	who  smc.Role
	name string
	do   func(h *host)
	loss bool // of a link
}

func onLink(i int, f func(g *Group, l *Link, now time.Time)) func(*host) {
	return func(h *host) {
		if l := h.g.links.byID(uint8(i)); l != nil {
			f(h.g, l, h.s.now)
		}
	}
}

func loses(g *Group, l *Link, now time.Time) { g.LinkFailed(now, l, errAny) }
func deletes(g *Group, l *Link, now time.Time) {
	g.DeleteLink(now, l, wire.DeleteLinkOperator)
}

// carrier returns the link that the exchange under way uses.
func carrier(g *Group) *Link {
	switch {
	case g.llc.ex.kind != exNone:
		return g.llc.ex.via
	case g.rkeys.own.kind != rkNone:
		return g.rkeys.own.via
	}
	return g.links.list[len(g.links.list)-1]
}

// happenings has the messages of RFC 7609, section 3.5.5.3, by what makes a
// host send them, and failures.
func happenings() []happening {
	var list []happening
	add := func(who smc.Role, name string, do func(h *host)) {
		list = append(list, happening{who, name, do, !strings.Contains(name, "RKEY") && !strings.HasPrefix(name, "ADD")})
	}
	add(smc.Server, "ADD LINK", func(h *host) { h.g.adding.wanted = true; h.g.Tick(h.s.now) })
	add(smc.Client, "ADD LINK", func(h *host) { h.g.adding.wanted = true; h.g.Tick(h.s.now) })
	for _, who := range []smc.Role{smc.Server, smc.Client} {
		add(who, "DELETE LINK 3 orderly", onLink(3, deletes))
		add(who, "DELETE LINK 1 disorderly", onLink(1, loses))
		add(who, "DELETE LINK of the carrier", func(h *host) { loses(h.g, carrier(h.g), h.s.now) })
		add(who, "DELETE LINK of the new link", func(h *host) {
			if h.g.llc.ex.kind == exAdd {
				loses(h.g, h.g.llc.ex.link, h.s.now)
			}
		})
		add(who, "DELETE LINK all", func(h *host) { h.g.Terminate(h.s.now, wire.DeleteLinkOperator) })
		add(who, "CONFIRM RKEY", func(h *host) { h.newIdleRMB() })
		add(who, "DELETE RKEY", func(h *host) {
			for _, r := range h.g.rmbs.list {
				if r.inUse == 0 {
					h.g.rkeys.retire(r)
				}
			}
			h.g.Tick(h.s.now)
		})
		add(who, "TEST LINK", onLink(1, func(g *Group, l *Link, _ time.Time) {
			if !l.testing {
				l.testing, l.testAt = true, g.now.Add(g.cfg.Timers.TestLinkAnswer)
				l.sendLLC(wire.TestLink{UserData: l.testData}, nothing, nil)
			}
		}))
	}
	return list
}

// newIdleRMB makes a connection that needs an RMB of its own and gives up when
// that is known.
func (h *host) newIdleRMB() {
	if p, err := h.newApp(99, 0, 100); err == nil {
		var wait func()
		wait = func() {
			if !p.ready && !h.gone {
				h.s.after(10*time.Microsecond, wait)
				return
			}
			p.c.Cancel(h.s.now)
			p.closed = true
			h.drain()
		}
		wait()
	}
}

// variant is a way to run a history.
type variant struct {
	version int
	delay   time.Duration // at most, of each message and its processing
	skew    bool          // messages of different links overtake each other
}

// collide runs one history: a begins, b follows when steps LLC messages have
// been delivered since; data flows meanwhile. It says whether b had its turn.
func collide(t *testing.T, a, b happening, steps int, v variant) (met bool) {
	s := newSim(t, 1)
	version := v.version
	s.maxDelay, s.skew = v.delay, v.skew
	edit := func(c *Config) {
		links(4)(c)
		if version == 2 {
			linux(c)
		}
		c.RMBEsPerRMB = 1
		c.Timers.RMBIdle = time.Hour
	}
	n := 4
	if version == 2 {
		n = 2
	}
	s.addHost(smc.Server, n-1, edit)
	s.addHost(smc.Client, n, edit)
	s.record()
	srv, cli := s.connectFirst(0, 4096)
	s.run(10*time.Millisecond, func() bool { return len(s.queue) == 0 })
	apps := []*app{srv, cli}
	for _, h := range s.hosts {
		h.newIdleRMB()
	}
	s.run(200*time.Microsecond+20*v.delay, func() bool { return false })
	s.group(smc.Server).links.devices = append(s.group(smc.Server).links.devices, device(smc.Server, n-1))
	for _, p := range apps {
		p.manual, p.total, p.chunk, p.slow = false, 1<<40, 900, 20*time.Microsecond
		p.wake()
	}
	s.run(50*time.Microsecond, func() bool { return false })

	count := 0
	begin := func(x happening) {
		if h := s.hosts[x.who]; !h.gone {
			x.do(h)
			h.drain()
		}
	}
	tap := s.tap
	s.trace = nil
	s.tap = func(from *host, l *Link, msg []byte) {
		tap(from, l, msg)
		if !wire.IsCDC(msg) {
			if count++; count == steps {
				met = true
				s.after(0, func() { begin(b) })
			}
		}
	}
	begin(a)
	if steps == 0 {
		met = true
		begin(b)
	}
	s.run(2*time.Millisecond+50*v.delay, func() bool { return false })
	for _, p := range apps {
		p.total = p.wrote
		p.wake()
		p.h.drain()
	}
	s.run(90*time.Second, func() bool { return false })
	s.block = nil
	all := strings.HasSuffix(a.name, "all") || met && strings.HasSuffix(b.name, "all")
	if version == 2 && a.loss && b.loss && (s.hosts[0].gone || s.hosts[1].gone) {
		all = true // there were two links only; the TCP connections tell the other side
		for _, h := range s.hosts {
			if !h.gone {
				h.g.Terminate(s.now, wire.DeleteLinkLostPath)
				h.drain()
			}
		}
		s.run(20*time.Second, func() bool { return false })
	}
	for _, h := range s.hosts {
		if h.gone != all {
			t.Errorf("%s: group is gone: %v, %v", h.role, h.gone, h.deadE)
		}
		if h.g.llc.ex.kind != exNone || h.g.rkeys.own.kind != rkNone || h.g.rkeys.peer.via != nil {
			t.Errorf("%s: an exchange is left: %+v %+v", h.role, h.g.llc.ex, h.g.rkeys.own)
		}
	}
	for _, p := range apps {
		if !all && (!p.closed || p.closeErr != nil || p.read != p.other.total) {
			t.Errorf("%s: connection: closed %v with %v, %d of %d bytes", p.h.role, p.closed, p.closeErr, p.read, p.other.total)
		}
	}
	if !all {
		s.agree()
		s.checkLinks("in the end")
	}
	s.finish()
	if t.Failed() {
		t.Logf("flow: %s", strings.Join(s.trace, " "))
	}
	return met
}

// TestCollisionsEverywhere lets each exchange of RFC 7609, section 3.5.5.3,
// meet each other one and each failure after each of its messages, in both
// orders: both sides end with the same links and RMBs, no exchange is left,
// and no byte of a connection is lost (section 4.6).
func TestCollisionsEverywhere(t *testing.T) {
	runs := 0
	variants := []variant{{version: 1}, {version: 2}, {1, 20 * time.Microsecond, false}, {1, 100 * time.Microsecond, true}}
	if testing.Short() {
		variants = variants[:1]
	}
	for _, v := range variants {
		list := happenings()
		for _, a := range list {
			for _, b := range list {
				// With delays, every third step: the others are much the same.
				for steps := 0; !t.Failed(); steps += 1 + 2*min(1, int(v.delay)) {
					met := true
					t.Run(fmt.Sprintf("%+v/%s %s/%s %s/%d", v, a.who, a.name, b.who, b.name, steps), func(t *testing.T) {
						met = collide(t, a, b, steps, v)
					})
					if runs++; !met || steps > 40 {
						break
					}
				}
			}
		}
	}
	t.Logf("%d histories", runs)
}
