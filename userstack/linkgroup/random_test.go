// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

var (
	seeds    = flag.Int("seeds", 120, "random histories to run")
	fromSeed = flag.Uint64("seed", 1, "first seed")
)

// mode is what happens to the links of a history.
type mode int

const (
	plain    mode = iota // nothing
	failover             // one of two is lost
	deaths               // anything
)

// randomRun is one history: two groups with some devices, some connections
// with programs of all habits, perhaps devices that die and come back.
func randomRun(t *testing.T, seed uint64, mode mode) {
	s := newSim(t, seed)
	deaths := mode == deaths
	r := s.rng
	s.maxDelay = []time.Duration{0, 20 * time.Microsecond, time.Millisecond, 10 * time.Millisecond}[r.IntN(4)]
	s.skew = deaths && r.IntN(4) == 0
	eye := r.IntN(2) == 0
	edit := func(c *Config) {
		c.EyeCatcher = eye
		c.Version = 1 + uint8(seed%2)
		c.PeerOS = []smc.OS{smc.OSLinux, smc.OSZOS}[seed/2%2]
		c.SendQueue = []int{16, 24, 48}[r.IntN(3)]
		c.SendChunk = []int{1, 1000, 5000, 0}[r.IntN(4)]
		c.RMBEsPerRMB = 1 + r.IntN(5)
		c.Timers.RMBIdle = time.Duration(1+r.IntN(50)) * time.Millisecond
	}
	devs := [2]int{1 + r.IntN(2), 1 + r.IntN(2)}
	if mode == failover {
		devs = [2]int{2, 2}
		s.slowConfirm = []time.Duration{0, 20 * time.Millisecond, 300 * time.Millisecond}[seed%3]
	}
	s.addHost(smc.Server, devs[0], edit)
	s.addHost(smc.Client, devs[1], edit)
	habits := func(p *app) {
		p.total = uint64(r.IntN(120 << 10))
		p.chunk = 1 + r.IntN(20000)
		if r.IntN(4) == 0 {
			p.total = uint64(r.IntN(50))
		}
		if r.IntN(3) == 0 {
			p.chunk = 1 + r.IntN(300)
			p.total = min(p.total, 4000)
		}
		if r.IntN(8) == 0 {
			p.abortAt = 1 + uint64(r.IntN(100<<10))
		}
		if s.maxDelay >= time.Millisecond {
			p.chunk = max(p.chunk, 200)
		}
		if p.c.SendSize() < 100 {
			p.total = min(p.total, 1000)
		}
		p.closeEarly = r.IntN(5) == 0
		if r.IntN(4) == 0 {
			p.slow = time.Duration(r.IntN(500)) * time.Microsecond
		}
	}
	srv, cli := s.connectFirst(0, 1+r.IntN(40000))
	if s.hosts[0].first != nil || s.hosts[1].first != nil {
		t.Fatal(s.hosts[0].first, s.hosts[1].first)
	}
	habits(srv)
	habits(cli)
	for range r.IntN(12) {
		s.after(time.Duration(r.Int64N(int64(20*time.Millisecond))), func() {
			s.connect(smc.SizeCode(r.IntN(2)), 1+r.IntN(40000), func(a, b *app) {
				habits(a)
				habits(b)
			})
			s.checkRMBEs()
		})
	}
	if mode == failover {
		// One of two links is lost, in one way or another: nobody notices.
		s.after(time.Duration(r.Int64N(int64(20*time.Millisecond))), func() {
			d, h := device(smc.Role(r.IntN(2)), r.IntN(2)), s.hosts[r.IntN(2)]
			switch r.IntN(4) {
			case 0:
				s.dead[d.GID] = true
			case 1:
				s.dead[d.GID] = true
				s.hosts[d.GID[14]-1].g.DeviceDown(s.now, d.ID)
				s.hosts[d.GID[14]-1].drain()
			case 2:
				h.g.LinkFailed(s.now, h.g.links.list[r.IntN(len(h.g.links.list))], errors.New("broken"))
				h.drain()
			case 3:
				if h.role == smc.Server {
					l := h.g.links.list[0]
					l.del.want(true, wire.DeleteLinkOperator)
					h.g.Tick(s.now)
					h.drain()
				}
			}
		})
	}
	if deaths {
		for range 1 + r.IntN(3) {
			d := device(smc.Role(r.IntN(2)), r.IntN(2))
			at := time.Duration(r.Int64N(int64(20 * time.Millisecond)))
			h := s.hosts[d.GID[14]-1]
			how := r.IntN(3)
			s.after(at, func() {
				switch how {
				case 0: // the cable: nobody is told
					s.dead[d.GID] = true
				case 1: // the adapter: its host is told
					s.dead[d.GID] = true
					if !h.gone {
						h.g.DeviceDown(s.now, d.ID)
						h.drain()
					}
				case 2: // one queue pair
					for _, q := range s.qps {
						if q.h == h && q.l.local.GID == d.GID && q.state == 2 {
							s.breakQP(q)
							break
						}
					}
				}
			})
			if r.IntN(2) == 0 {
				s.after(at+time.Duration(r.Int64N(int64(30*time.Millisecond))), func() {
					delete(s.dead, d.GID)
					if !h.gone {
						for _, known := range h.g.links.devices {
							if known.ID == d.ID {
								h.g.DeviceUp(s.now, d)
							}
						}
						h.drain()
					}
				})
			}
		}
	}
	finished := func() bool {
		if len(s.hosts[0].apps) == 0 {
			return false
		}
		for _, h := range s.hosts {
			for _, p := range h.apps {
				if !p.closed && !(h.gone && !p.open) {
					return false
				}
			}
		}
		return s.now.Sub(epoch) > 60*time.Millisecond
	}
	if !s.run(5*time.Minute, finished) {
		for _, h := range s.hosts {
			for _, p := range h.apps {
				if !p.closed {
					t.Logf("%s conn %d token %#x: %s open=%v wrote %d/%d read %d done=%v eof=%v info %+v inflight %d link %d %s waitOn=%v phase %d",
						h.role, p.id, p.c.Token(), p.c.State(), p.open, p.wrote, p.total, p.read, p.done, p.eof, p.c.Info(), p.c.Positions().Outstanding, p.c.link.id, p.c.link.state, p.c.waitOn != nil, h.g.phase)
				}
			}
		}
		for _, h := range s.hosts {
			for _, l := range h.g.links.list {
				t.Logf("%s link %d %s sqLen %d used %d llcq %d lastTok %d test %v testing %v broken %v state %d", h.role, l.id, l.state, l.sqLen, l.used, len(l.llcq), l.lastToken, l.testAt.Sub(epoch), l.testing, l.Data.(*qp).broken, l.Data.(*qp).state)
			}
		}
		t.Fatalf("connections hang after %v", s.now.Sub(epoch))
	}
	if !deaths {
		if err := errors.Join(s.refused...); err != nil {
			t.Errorf("the server refused a connection: %v", err)
		}
		for _, h := range s.hosts {
			for _, p := range h.apps {
				o := p.other
				if o == nil || !p.open || !o.open || p.abortAt > 0 || o.abortAt > 0 || p.closeEarly || o.closeEarly {
					continue
				}
				if p.closeErr != nil || p.read != o.total {
					t.Errorf("%s conn %d: ended with %v after %d of %d bytes", h.role, p.id, p.closeErr, p.read, o.total)
				}
			}
		}
	}
	s.finish()
}

func TestRandom(t *testing.T)         { manySeeds(t, plain) }
func TestRandomFailover(t *testing.T) { manySeeds(t, failover) }
func TestRandomDeaths(t *testing.T)   { manySeeds(t, deaths) }

func manySeeds(t *testing.T, m mode) {
	n := *seeds
	if testing.Short() {
		n /= 8
	}
	for i := range n {
		seed := *fromSeed + uint64(i)
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { randomRun(t, seed, m) }) {
			break
		}
	}
}
