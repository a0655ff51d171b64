// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"
	"testing"
	"time"

	"smcr/smc"
)

// loads returns how many connections write over each link, in the order of the
// links.
func (g *Group) loads() []int {
	var out []int
	for _, l := range g.links.list {
		out = append(out, l.conns)
	}
	return out
}

// busy starts n connections that carry data until quiet ends them.
func (s *sim) busy(n int) *[]*app {
	apps := new([]*app)
	for range n {
		s.connect(0, 4096, func(a, b *app) {
			for _, p := range []*app{a, b} {
				p.total, p.chunk, p.slow = 1<<40, 900, 2*time.Millisecond
				*apps = append(*apps, p)
			}
		})
		s.run(time.Millisecond, func() bool { return false })
	}
	return apps
}

// quiet lets connections end and checks that each byte came.
func (s *sim) quiet(apps []*app) {
	s.t.Helper()
	for _, p := range apps {
		p.total = p.wrote
		p.wake()
	}
	s.run(time.Second, func() bool { return false })
	for _, p := range apps {
		if !p.closed || p.closeErr != nil || p.read != p.other.total || p.read == 0 {
			s.t.Errorf("%s: connection %d: closed %v with %v, %d of %d bytes", p.h.role, p.id, p.closed, p.closeErr, p.read, p.other.total)
		}
	}
}

// TestRebalance: when a link returns it gets its share of the connections, in
// the middle of their traffic and in both directions (RFC 7609, section 2.3).
func TestRebalance(t *testing.T) {
	for seed := range uint64(8) {
		s := newSim(t, seed)
		n := 2 + int(seed%3)
		s.addHost(smc.Server, n, links(n))
		s.addHost(smc.Client, n, links(n))
		s.record()
		srv, cli := s.connectFirst(0, 4096)
		srv.manual, cli.manual = true, true
		if seed%2 == 1 {
			s.maxDelay = 20 * time.Microsecond
		}
		s.run(time.Millisecond, func() bool { return false })
		role := smc.Role(seed / 2 % 2)
		for i := 1; i < n; i++ {
			s.dead[device(role, i).GID] = true
			s.group(role).DeviceDown(s.now, i)
		}
		s.hosts[role].drain()
		s.run(time.Millisecond, func() bool { return false })
		apps := s.busy(2 * n)
		if got := s.group(smc.Server).loads(); got[0] != 2*n+1 {
			t.Fatalf("connections on links: %v", got)
		}
		for i := 1; i < n; i++ {
			delete(s.dead, device(role, i).GID)
			s.group(role).DeviceUp(s.now, device(role, i))
			s.hosts[role].drain()
			s.run(50*time.Millisecond, func() bool { return false })
		}
		// A link that the exchange made on the way may be gone again.
		s.run(60*time.Millisecond, func() bool { return false })
		for _, h := range s.hosts {
			got := h.g.loads()
			if len(got) != n || slices.Max(got)-slices.Min(got) > 1 {
				t.Errorf("seed %d, %s: connections on links: %v", seed, h.role, got)
			}
		}
		s.quiet(*apps)
		s.finish()
	}
}

// TestRebalanceInterrupted: the link that connections are on their way to, or
// the one that they leave, is lost before they got there.
func TestRebalanceInterrupted(t *testing.T) {
	for seed := range uint64(20) {
		s := newSim(t, seed)
		s.addHost(smc.Server, 2, links(3))
		s.addHost(smc.Client, 2, links(3))
		srv, cli := s.connectFirst(0, 4096)
		srv.manual, cli.manual = true, true
		s.group(smc.Client).DeviceDown(s.now, 1)
		s.hosts[smc.Client].drain()
		s.run(time.Millisecond, func() bool { return false })
		apps := s.busy(5)
		s.group(smc.Client).DeviceUp(s.now, device(smc.Client, 1))
		s.hosts[smc.Client].drain()
		s.run(time.Duration(s.rng.Int64N(int64(40*time.Millisecond))), func() bool { return len(s.group(smc.Server).links.active()) > 1 && s.rng.IntN(2000) == 0 })
		h := s.hosts[s.rng.IntN(2)]
		if n := len(h.g.links.active()); n > 1 {
			h.g.LinkFailed(s.now, h.g.links.active()[s.rng.IntN(n)], errAny)
			h.drain()
		}
		s.run(80*time.Millisecond, func() bool { return false })
		s.quiet(*apps)
		s.finish()
	}
}

// TestDirections: each side chooses the link that it writes over by its own
// load; CONFIRM names the link that ACCEPT named (RFC 7609, sections 2.3 and
// 3.5.2.1).
func TestDirections(t *testing.T) {
	s := started(t, 2, 2, noTest)
	srv, cli := s.group(smc.Server), s.group(smc.Client)
	apps := s.busy(3)
	for _, c := range cli.connsSorted() {
		c.move(cli.links.byID(2))
	}
	s.hosts[smc.Client].drain()
	more := s.busy(3)
	*apps = append(*apps, *more...)
	if got := srv.loads(); max(got[0], got[1]) != 4 || min(got[0], got[1]) != 3 {
		t.Errorf("server writes over links: %v", got)
	}
	if got := cli.loads(); got[0] != 3 || got[1] != 4 {
		t.Errorf("client writes over links: %v", got)
	}
	for _, p := range *apps {
		if p.h.role == smc.Client && p.c.Local().Link != p.c.named.local {
			t.Errorf("CONFIRM names another link than ACCEPT")
		}
	}
	s.run(5*time.Millisecond, func() bool { return false })
	s.quiet(*apps)
	s.finish()
}
