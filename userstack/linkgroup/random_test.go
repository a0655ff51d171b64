// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var (
	seeds    = flag.Int("seeds", 400, "random histories to run")
	fromSeed = flag.Uint64("seed", 1, "first seed")
)

// randomRun is one history: two groups with some devices, some connections
// with programs of all habits, perhaps devices that die and come back.
func randomRun(t *testing.T, seed uint64, deaths bool) {
	s := newSim(t, seed)
	r := s.rng
	s.maxDelay = []time.Duration{0, 20 * time.Microsecond, time.Millisecond, 10 * time.Millisecond}[r.IntN(4)]
	s.skew = deaths && r.IntN(4) == 0
	eye := r.IntN(2) == 0
	edit := func(c *Config) {
		c.EyeCatcher = eye
		c.SendQueue = []int{16, 24, 48}[r.IntN(3)]
		c.RMBEsPerRMB = 1 + r.IntN(5)
		c.Timers.RMBIdle = time.Duration(1+r.IntN(50)) * time.Millisecond
	}
	s.addHost(Server, 1+r.IntN(2), edit)
	s.addHost(Client, 1+r.IntN(2), edit)
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
			s.connect(uint8(r.IntN(2)), 1+r.IntN(40000), func(a, b *app) {
				habits(a)
				habits(b)
			})
			s.checkRMBEs()
		})
	}
	lossless := true
	if deaths {
		for range 1 + r.IntN(3) {
			d := device(Role(r.IntN(2)), r.IntN(2))
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
						for _, known := range h.g.devices {
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
					t.Logf("%s conn %d token %#x: %s open=%v wrote %d/%d read %d done=%v eof=%v info %+v inflight %d link %d %s verify=%v update=%v waitOn=%v phase %d",
						h.role, p.id, p.c.token, p.c.State(), p.open, p.wrote, p.total, p.read, p.done, p.eof, p.c.Info(), p.c.inflight, p.c.link.id, p.c.link.state, p.c.verify, p.c.update, p.c.waitOn != nil, h.g.phase)
				}
			}
		}
		t.Fatalf("connections hang after %v", s.now.Sub(epoch))
	}
	if !deaths {
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
	_ = lossless
	s.finish()
}

func TestRandom(t *testing.T) {
	for i := range *seeds {
		seed := *fromSeed + uint64(i)
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { randomRun(t, seed, false) }) {
			break
		}
	}
}

func TestRandomDeaths(t *testing.T) {
	for i := range *seeds {
		seed := *fromSeed + uint64(i)
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { randomRun(t, seed, true) }) {
			break
		}
	}
}
