// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// thirdHost is a host that names objects of a connection of two other hosts in the CLC
// messages of its own connections.
type thirdHost struct {
	*bed
	c, s *Conn // the connection of the other hosts
}

// names changes the endpoint of the third host.
var names = map[string]func(e *wire.Endpoint){
	"all of it":         func(*wire.Endpoint) {},
	"element":           func(e *wire.Endpoint) { e.AlertToken++ },
	"larger element":    func(e *wire.Endpoint) { e.AlertToken++; e.RMBESize++ },
	"token":             func(e *wire.Endpoint) { e.RMBEIndex++ },
	"RKey of nobody":    func(e *wire.Endpoint) { e.AlertToken++; e.RMBEIndex++; e.RMB.RKey += 1 << 20 },
	"address of nobody": func(e *wire.Endpoint) { e.AlertToken++; e.RMBEIndex++; e.RMB.Addr += 4096 },
	"link of nobody":    func(e *wire.Endpoint) { e.AlertToken++; e.RMBEIndex++; e.QPN++ },
}

func testThirdHost(t *testing.T, f func(t *testing.T, h *thirdHost, edit func(*wire.Endpoint))) {
	for name, edit := range names {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				b.w.Host("third", netdevs(3, 1)...)
				c, s := b.connect()
				b.exchange(c, s, pattern(1, 1000))
				f(t, &thirdHost{b, c, s}, edit)
				time.Sleep(20 * time.Second)
				b.exchange(c, s, pattern(2, 100_000))
				for _, st := range []*Stack{b.client, b.server} {
					if g := one(t, st.Control().LinkGroups); g.Conns != 1 {
						t.Errorf("%d connections, want 1", g.Conns)
					}
				}
				b.finish(c, s)
			})
		})
	}
}

// side returns the endpoint that this side of a connection has sent to the other.
func side(c *Conn) (e wire.Endpoint) {
	id := c.localPeerID()
	c.d.View(func(core *linkgroup.Conn) { e = endpoint(id, core.Local()) })
	return e
}

// tcpTo makes a TCP connection between the third host and another one.
func (h *thirdHost) tcpTo(from, to netip.Addr) (client, server *simfabric.TCPConn) {
	h.t.Helper()
	ct, st, err := h.w.Connect(netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 80))
	if err != nil {
		h.t.Fatal(err)
	}
	return ct, st
}

// TestThirdHostConfirm: a third host sends PROPOSAL with the identity of another host,
// and CONFIRM with an RMB element of that host.
func TestThirdHostConfirm(t *testing.T) {
	testThirdHost(t, func(t *testing.T, h *thirdHost, edit func(*wire.Endpoint)) {
		e := side(h.c)
		ct, st := h.tcpTo(addr(3, 0), addr(2, 0))
		done := make(chan struct{})
		go func() {
			defer close(done)
			p := scripted{t, ct}
			p.send(wire.Proposal{PeerID: e.PeerID, GID: e.GID, MAC: e.MAC, IPv4: prefix(1, 0).Masked()})
			if acc := as[wire.Accept](p); !acc.FirstContact {
				t.Errorf("the third host is let into the link group of the others: queue pair %s", acc.QPN)
			}
			edit(&e)
			p.send(wire.Confirm{FirstContact: true, Endpoint: e})
		}()
		c, err := h.server.Server(t.Context(), st)
		<-done
		if c != nil || err == nil {
			t.Fatalf("the third host has a connection: %v", err)
		}
		ct.Close()
		st.Close()
	})
}

// TestThirdHostAccept: a client connects to a third host, whose ACCEPT has the identity
// of another host and an RMB element of that host.
func TestThirdHostAccept(t *testing.T) {
	testThirdHost(t, func(t *testing.T, h *thirdHost, edit func(*wire.Endpoint)) {
		e := side(h.s)
		ct, st := h.tcpTo(addr(1, 0), addr(3, 0))
		done := make(chan struct{})
		go func() {
			defer close(done)
			p := scripted{t, st}
			as[wire.Proposal](p)
			edit(&e)
			p.send(wire.Accept{Endpoint: e})
			if m := p.recv(); m.CLCType() != wire.TypeDecline {
				t.Errorf("%s, want DECLINE", m.CLCType())
			}
		}()
		c, err := h.client.Client(t.Context(), ct)
		<-done
		var d *DeclineError
		if c != nil || !errors.As(err, &d) {
			t.Fatalf("client: %v, want declined", err)
		}
		ct.Close()
		st.Close()
	})
}
