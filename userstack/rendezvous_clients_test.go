// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net/netip"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/driver"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// TestSeveralAddresses: a host that connects from two addresses gets a link group for each,
// and further connections from an address use the link group of that address.
func TestSeveralAddresses(t *testing.T) {
	for name, v2 := range map[string]bool{"version 1": false, "version 2": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{devices: 2})
				for _, s := range []*Stack{b.client, b.server} {
					if v2 {
						if err := s.Control().AddUEID(t.Context(), "COMMON"); err != nil {
							t.Fatal(err)
						}
					}
				}
				var groups [2]*driver.Group
				var conns [][2]*Conn
				for range 2 {
					for i := range groups {
						ct, st, err := b.w.Connect(netip.AddrPortFrom(addr(1, i), 0), netip.AddrPortFrom(addr(2, i), 80))
						if err != nil {
							t.Fatal(err)
						}
						c, s, cerr, serr := b.rendezvous(ct, st)
						if cerr != nil || serr != nil {
							t.Fatalf("client %v, server %v", cerr, serr)
						}
						if g := s.d.Group(); groups[i] == nil {
							groups[i] = g
						} else if groups[i] != g {
							t.Errorf("address %d has two link groups", i)
						}
						b.exchange(c, s, pattern(1, 100_000))
						conns = append(conns, [2]*Conn{c, s})
						time.Sleep(time.Second)
					}
				}
				if groups[0] == groups[1] {
					t.Error("two addresses share a link group")
				}
				for _, c := range conns {
					b.finish(c[0], c[1])
				}
			})
		})
	}
}

// TestTurnTooLate: a client whose first contact is under way for too long gets DECLINE for
// the next one, in time for it to use TCP. Another client does not wait.
func TestTurnTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		b.w.Host("third", netdevs(3, 1)...)
		ct, st := b.third()
		stuck := ended(t, b.server.Server, st)
		p := scripted{t, ct}
		id := smc.NewPeerID(9, smc.MAC{2, 3})
		propose := func(p scripted) {
			p.send(wire.Proposal{PeerID: id, GID: smc.GID{15: 3}, MAC: smc.MAC{2, 3}, IPv4: prefix(1, 0).Masked()})
		}
		propose(p)
		if a := as[wire.Accept](p); !a.FirstContact {
			t.Error("not a first contact")
		}
		ct2, st2 := b.third()
		waits := ended(t, b.server.Server, st2)
		began := time.Now()
		p2 := scripted{t, ct2}
		propose(p2)
		b.finish(b.connect()) // of another client
		if took := time.Since(began); took > time.Second {
			t.Errorf("another client waited %v", took)
		}
		if d := as[wire.Decline](p2); d.Diagnosis != smc.DiagTimeoutConfLink || d.OutOfSync {
			t.Errorf("declined with %+v", d)
		}
		if took := time.Since(began); took >= rendezvous.TurnWait+time.Second {
			t.Errorf("DECLINE came after %v", took)
		}
		wantDecline(t, "server", <-waits, smc.DiagTimeoutConfLink, false)
		b.stillTCP(ct2, st2)
		ct.Close()
		wantBroken(t, <-stuck, nil)
		st.Close()
	})
}
