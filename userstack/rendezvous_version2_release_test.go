// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/wire"
)

// recorder is a TCP connection that keeps what is written to it.
type recorder struct {
	TCPConn
	mu   sync.Mutex
	sent [][]byte
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.sent = append(r.sent, slices.Clone(b))
	r.mu.Unlock()
	return r.TCPConn.Write(b)
}

// lengths returns the lengths of the messages that were sent.
func (r *recorder) lengths() (n []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.sent {
		n = append(n, len(b))
	}
	return n
}

// TestReleases connects stacks of version 2.0 and 2.1 with each other. Their messages
// have the lengths that Linux requires (smc_clc.c), and no message of release 0 has
// numbers of release 1.
func TestReleases(t *testing.T) {
	old := func(c *Config) { c.tune.release0 = true }
	few := func(c *Config) { c.MaxConns, c.MaxLinks = 20, 1 }
	eids := []string{"COMMON-1"}
	for _, tt := range []struct {
		name           string
		client, server func(*Config)
		devices        int
		offered        uint8 // release
		want           uint8
		conns, links   uint8
	}{
		{"Both21", nil, nil, 1, 1, 1, 255, 2},
		{"OldClient", old, nil, 1, 0, 0, 255, 2},
		{"OldServer", nil, old, 1, 1, 0, 255, 2},
		{"BothOld", old, old, 1, 0, 0, 255, 2},
		{"TwoDevices", nil, nil, 2, 1, 1, 255, 2},
		{"OldClientTwoDevices", old, nil, 2, 0, 0, 255, 2},
		{"ClientWantsFew", few, nil, 2, 1, 1, 20, 1},
		{"ServerWantsFew", nil, few, 2, 1, 1, 20, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{devices: tt.devices, client: tt.client, server: tt.server})
				b.withEIDs(eids, eids)
				rendezvous := func() (c, s *Conn, ct, st *recorder) {
					x, y := b.tcp()
					ct, st = &recorder{TCPConn: x}, &recorder{TCPConn: y}
					c, s, cerr, serr := b.rendezvous(ct, st)
					if cerr != nil || serr != nil {
						t.Fatalf("rendezvous: client %v, server %v", cerr, serr)
					}
					return c, s, ct, st
				}
				c, s, ct, st := rendezvous()
				b.exchange(c, s, pattern(1, 100<<10))
				b.exchange(s, c, pattern(2, 100<<10))
				// PROPOSAL: both versions with an IPv4 subnet and one EID.
				if diff := cmp.Diff([]int{40 + 40 + 8 + 40 + 32 + 4, 164 + 16*tt.devices}, ct.lengths()); diff != "" {
					t.Errorf("PROPOSAL and CONFIRM (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff([]int{160}, st.lengths()); diff != "" {
					t.Errorf("ACCEPT (-want +got):\n%s", diff)
				}
				// The extension of version 2 is at 88, with the release at 3 and the
				// numbers at 24. The extension for the first contact is at 104, with the
				// release at 1 and the numbers at 36.
				prop := ct.sent[0][88:]
				checkRelease(t, "PROPOSAL", prop[3]>>4, prop[24:28], tt.offered)
				for name, m := range map[string][]byte{"ACCEPT": st.sent[0][104:], "CONFIRM": ct.sent[1][104:]} {
					checkRelease(t, name, m[1]&0xf, m[36:40], tt.want)
					if want := [2]byte{tt.conns, tt.links}; tt.want > 0 && [2]byte(m[36:]) != want {
						t.Errorf("%s: at most %d, want %d connections and links", name, m[36:38], want)
					}
				}
				c2, s2, ct2, st2 := rendezvous() // on the same link group
				b.exchange(c2, s2, pattern(3, 100<<10))
				if got := fmt.Sprint(ct2.lengths()[1:], st2.lengths()); got != "[108] [108]" {
					t.Errorf("CONFIRM and ACCEPT on a link group have %s bytes", got)
				}
				for _, x := range []*Stack{b.client, b.server} {
					g := one(t, x.Control().LinkGroups)
					if g.V2 == nil || g.V2.Release != tt.want {
						t.Errorf("%s: %+v", x.cfg.Hostname, g.V2)
					}
					if want := (nl.V2R{Direct: true, MaxConns: tt.conns, MaxLinks: tt.links}); *g.V2R != want {
						t.Errorf("%s: %+v, want %+v", x.cfg.Hostname, *g.V2R, want)
					}
					if want := min(tt.devices, int(tt.links)); int(g.Links) != want {
						t.Errorf("%s: %d links, want %d", x.cfg.Hostname, g.Links, want)
					}
				}
				b.finish(c, s)
				b.finish(c2, s2)
			})
		})
	}
}

// checkRelease checks the release in a message, and the fields of release 1: connections,
// links and features. Linux has one feature, for SMC-D; this stack has none.
func checkRelease(t *testing.T, name string, got uint8, numbers []byte, want uint8) {
	t.Helper()
	if got != want {
		t.Errorf("%s: release %d, want %d", name, got, want)
	}
	if want < wire.ReleaseV21 && [4]byte(numbers) != [4]byte{} {
		t.Errorf("%s: %x where release 0 has zeros", name, numbers)
	}
	if [2]byte(numbers[2:]) != [2]byte{} {
		t.Errorf("%s: features %x", name, numbers[2:])
	}
}

// TestOldServer: the release of an ACCEPT determines the fields of CONFIRM. The bytes
// that have the numbers in release 1 are ignored in release 0.
func TestOldServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		b.withEIDs([]string{"COMMON-1"}, nil)
		ct, st := b.tcp()
		done := ended(t, b.client.Client, ct)
		p := scripted{t, st}
		o, err := as[wire.Proposal](p).Offer()
		if err != nil {
			t.Fatal(err)
		}
		e := endpointOf(1)
		e.GID = smc.GIDFromIPv4(addr(2, 0))
		p.send(wire.AcceptV2{Endpoint: e, EID: o.EIDs[0], FirstContact: &wire.FirstContactExt{
			Direct: true, OS: smc.OSLinux, Hostname: wire.NewHostname("peer"),
		}})
		want := &wire.FirstContactExt{Direct: true, OS: smc.OSLinux, Hostname: wire.NewHostname("client")}
		if diff := cmp.Diff(want, as[wire.ConfirmV2](p).FirstContact); diff != "" {
			t.Errorf("first contact (-want +got):\n%s", diff)
		}
		p.send(wire.Decline{Version: wire.Version2, OSType: smc.OSLinux, Diagnosis: smc.DiagMem})
		wantDecline(t, "client", <-done, smc.DiagMem, true)
	})
}
