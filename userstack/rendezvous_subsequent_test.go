// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// wrongEndpoints are the changes that a peer must not make in the endpoint of a
// connection on an existing link group: numbers out of range, a queue pair that is not
// the end of a link, an RMB that was not announced by CONFIRM RKEY.
var wrongEndpoints = map[string]func(*wire.Endpoint){
	"queue pair 0": func(e *wire.Endpoint) { e.QPN = 0 },
	"MTU 0":        func(e *wire.Endpoint) { e.MTU = 0 },
	"MTU 9":        func(e *wire.Endpoint) { e.MTU = 9 },
	"element 0":    func(e *wire.Endpoint) { e.RMBEIndex = 0 },
	"token 0":      func(e *wire.Endpoint) { e.AlertToken = 0 },
	"new RKey":     func(e *wire.Endpoint) { e.RMB.RKey++ },
	"new address":  func(e *wire.Endpoint) { e.RMB.Addr += 4096 },
}

// nextEndpoint returns the endpoint of this side of a connection with another element and alert
// token, as for a next connection.
func (c *Conn) nextEndpoint() (e wire.Endpoint) {
	id := c.localPeerID()
	c.d.View(func(core *linkgroup.Conn) {
		p := core.Local()
		p.Token, p.Index = p.Token+1, p.Index+1
		e = endpoint(id, p)
	})
	return e
}

// third makes a TCP connection to the server from a third host.
func (b *bed) third() (c, s *simfabric.TCPConn) {
	b.t.Helper()
	c, s, err := b.w.Connect(netip.AddrPortFrom(addr(3, 0), 0), netip.AddrPortFrom(addr(2, 0), 80))
	if err != nil {
		b.t.Fatal(err)
	}
	return c, s
}

// stillWorks checks that a link group carries its connection and accepts another one.
func (b *bed) stillWorks(c, s *Conn) {
	b.t.Helper()
	b.exchange(c, s, pattern(1, 200_000))
	b.exchange(s, c, pattern(2, 200_000))
	c2, s2 := b.connect()
	if c2.group() != c.group() || s2.group() != s.group() {
		b.t.Error("the next connection is in another link group")
	}
	b.exchange(c2, s2, pattern(3, 1000))
	b.finish(c2, s2)
	b.finish(c, s)
}

// TestSubsequentAccept: a client declines such an ACCEPT, and its link group does not
// change.
func TestSubsequentAccept(t *testing.T) {
	for name, edit := range wrongEndpoints {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				c, s := b.connect()
				ct, st := b.tcp()
				e := s.nextEndpoint()
				edit(&e)
				done := make(chan struct{})
				go func() {
					defer close(done)
					p := scripted{t, st}
					as[wire.Proposal](p)
					p.send(wire.Accept{Endpoint: e})
					if d := as[wire.Decline](p); d.Diagnosis != smc.DiagRToken || d.OutOfSync {
						t.Errorf("declined with %+v", d)
					}
				}()
				_, err := b.client.Client(t.Context(), ct)
				<-done
				wantDecline(t, "client", err, smc.DiagRToken, false)
				ct.Close()
				st.Close()
				b.stillWorks(c, s)
			})
		})
	}
}

// proposal returns the PROPOSAL of the first connection of c. Every host on the LAN can
// know it.
func (c *Conn) proposal() wire.Proposal {
	e := c.nextEndpoint()
	return wire.Proposal{PeerID: e.PeerID, GID: e.GID, MAC: e.MAC, IPv4: prefix(1, 0).Masked()}
}

// TestSubsequentConfirm: a server refuses such a CONFIRM, and its link group does not
// change. A third host that proposes in the name of the peer does not get into the link
// group.
func TestSubsequentConfirm(t *testing.T) {
	for name, edit := range wrongEndpoints {
		for _, from := range []string{"the peer", "a third host"} {
			t.Run(name+" of "+from, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					b := newBed(t, bedConfig{})
					c, s := b.connect()
					ct, st := b.tcp()
					third := from == "a third host"
					if third {
						b.w.Host("third", netdevs(3, 1)...)
						ct.Close()
						st.Close()
						ct, st = b.third()
					}
					done := ended(t, b.server.Server, st)
					p := scripted{t, ct}
					p.send(c.proposal())
					if a := as[wire.Accept](p); a.FirstContact != third {
						t.Fatalf("first contact: %v, want %v", a.FirstContact, third)
					}
					e := c.nextEndpoint()
					edit(&e)
					p.send(wire.Confirm{FirstContact: third, Endpoint: e})
					switch err := <-done; {
					case !third:
						wantBroken(t, err, nil)
					case err == nil:
						t.Error("the third host has a connection")
					}
					ct.Close()
					st.Close()
					time.Sleep(settled)
					b.stillWorks(c, s)
				})
			})
		}
	}
}

// TestThirdHost: a third host that claims to be another one cannot end the link group of
// two others, or a connection in it.
func TestThirdHost(t *testing.T) {
	for name, say := range map[string]func(t *testing.T, b *bed, c *Conn, p scripted){
		"a write to nowhere": func(t *testing.T, b *bed, c *Conn, p scripted) {
			// Fields that it cannot know are zero or guessed.
			p.send(wire.Confirm{Endpoint: wire.Endpoint{
				PeerID: c.nextEndpoint().PeerID, GID: c.nextEndpoint().GID, MAC: c.nextEndpoint().MAC, MTU: 3,
				RMB: smc.RToken{RKey: 0x1234, Addr: 1 << 20}, RMBEIndex: 1, AlertToken: 77, RMBESize: 1,
			}})
		},
		"out of sync": func(t *testing.T, b *bed, c *Conn, p scripted) {
			p.send(wire.Decline{PeerID: c.nextEndpoint().PeerID, Diagnosis: smc.DiagSync, OutOfSync: true})
		},
		"its alert token": func(t *testing.T, b *bed, c *Conn, p scripted) {
			e := c.nextEndpoint()
			e.AlertToken-- // the alert token of the connection
			e.RMB.RKey, e.RMB.Addr = 0x1234, 1<<20
			p.send(wire.Confirm{Endpoint: e})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				c, s := b.connect()
				b.w.Host("third", netdevs(3, 1)...)
				for range 3 {
					ct, st := b.third()
					done := make(chan error, 1)
					go func() {
						x, err := b.server.Server(t.Context(), st)
						if err == nil {
							_, _ = x.Write(pattern(9, 1000))
							_, _ = io.Copy(io.Discard, x)
							x.Close()
						}
						done <- err
					}()
					p := scripted{t, ct}
					p.send(c.proposal())
					if a := as[wire.Accept](p); !a.FirstContact {
						t.Errorf("the third host is let into the link group of the others: queue pair %s", a.QPN)
					}
					say(t, b, c, p)
					if err := <-done; err == nil {
						t.Error("the third host got a connection")
					}
					ct.Close()
					st.Close()
					time.Sleep(settled + serverPauseOther) // its path may not work
				}
				b.stillWorks(c, s)
			})
		})
	}
}
