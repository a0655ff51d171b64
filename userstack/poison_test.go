// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"encoding"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// A liar is a host of the LAN with some addresses that knows all that the honest hosts tell those who speak SMC with
// them. It has a script for the client's and for the server's part of a rendezvous; n counts its connections.
type liar struct {
	name   string
	client func(p lying, of honest, n int)
	server func(p lying, of honest, n int)
}

// honest is what is known of the other end of an honest connection with the victim.
type honest struct{ wire.Endpoint }

// proposal is what that one would propose.
func (h honest) proposal() wire.Proposal {
	return wire.Proposal{PeerID: h.PeerID, GID: h.GID, MAC: h.MAC, IPv4: prefix(1, 0).Masked()}
}

func stranger() wire.Proposal {
	return wire.Proposal{PeerID: peerID, GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 9}, IPv4: prefix(1, 0).Masked()}
}

// lying is the end of a connection that a liar has. That the victim ends it is no error.
type lying struct{ tc *simfabric.TCPConn }

func (p lying) say(m encoding.BinaryAppender) {
	if b, err := m.AppendBinary(nil); err == nil {
		p.raw(b)
	}
}

func (p lying) raw(b []byte) { _, _ = p.tc.Write(b) }

// gone resets the connection.
func (p lying) gone() {
	p.tc.SetLinger(0)
	p.tc.Close()
}

// take reads a message, and whatever it is.
func (p lying) take() bool {
	p.tc.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 2048)
	n, err := p.tc.Read(b)
	return n > 0 && err == nil
}

// claims plays a client, or a server, that says of itself what edit makes of what is true of somebody else, and does not answer
// over RoCE.
func claims(name string, edit func(e *wire.Endpoint)) liar {
	return liar{name, func(p lying, of honest, _ int) {
		edit(&of.Endpoint)
		p.say(of.proposal())
		if p.take() {
			p.say(wire.Confirm{FirstContact: true, Endpoint: of.Endpoint})
			p.take()
		}
	}, func(p lying, of honest, _ int) {
		edit(&of.Endpoint)
		if p.take() {
			p.say(wire.Accept{FirstContact: true, Endpoint: of.Endpoint})
			p.take()
		}
	}}
}

var liars = []liar{
	{"is silent over RoCE", func(p lying, _ honest, _ int) {
		p.say(stranger())
		p.take()
		p.say(wire.Confirm{FirstContact: true, Endpoint: endpointOf(1)})
		p.take()
	}, func(p lying, _ honest, _ int) {
		p.take()
		p.say(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
		p.take()
	}},
	{"declines each second connection", func(p lying, _ honest, n int) {
		p.say(stranger())
		p.take()
		if n%2 == 0 {
			p.say(wire.Decline{PeerID: peerID, Diagnosis: smc.DiagNoPath})
			return
		}
		p.say(wire.Confirm{FirstContact: true, Endpoint: endpointOf(1)})
		p.say(wire.Decline{PeerID: peerID, Diagnosis: smc.DiagNoPath})
	}, func(p lying, _ honest, n int) {
		p.take()
		if n%2 == 0 {
			p.say(wire.Decline{PeerID: peerID, Diagnosis: smc.DiagNoPath})
			return
		}
		p.say(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
		p.take()
		p.say(wire.Decline{PeerID: peerID, Diagnosis: smc.DiagTimeoutConfLink})
	}},
	{"answers late", func(p lying, _ honest, _ int) {
		time.Sleep(5 * time.Second)
		p.say(stranger())
		p.take()
		time.Sleep(5 * time.Second)
		p.say(wire.Confirm{FirstContact: true, Endpoint: endpointOf(1)})
		p.take()
	}, func(p lying, _ honest, _ int) {
		p.take()
		time.Sleep(5 * time.Second)
		p.say(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
		p.take()
	}},
	{"resets at each moment", func(p lying, _ honest, n int) {
		defer p.gone()
		for i, m := range []wire.CLC{stranger(), wire.Confirm{FirstContact: true, Endpoint: endpointOf(1)}} {
			if n%4 <= i {
				return
			}
			p.say(m)
			p.take()
		}
	}, func(p lying, _ honest, n int) {
		defer p.gone()
		if n%3 == 0 || !p.take() || n%3 == 1 {
			return
		}
		p.say(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
		p.take()
	}},
	{"sends a part of a message", func(p lying, _ honest, _ int) {
		b, _ := stranger().AppendBinary(nil)
		p.raw(b[:len(b)-1])
		p.take()
	}, func(p lying, _ honest, _ int) {
		p.take()
		b, _ := wire.Accept{FirstContact: true, Endpoint: endpointOf(1)}.AppendBinary(nil)
		p.raw(b[:len(b)-1])
		p.take()
	}},
	claims("has the name, GID and queue pair of another host", func(*wire.Endpoint) {}),
	claims("has the GID of another host", func(e *wire.Endpoint) { e.PeerID = peerID }),
	claims("has the name of another host", func(e *wire.Endpoint) { e.GID, e.MAC = smc.GID{15: 1}, smc.MAC{2, 0, 0, 0, 0, 9} }),
	claims("has a queue pair that nobody has", func(e *wire.Endpoint) { e.QPN = 0xfffffe }),
	claims("has the smallest MTU", func(e *wire.Endpoint) { e.PeerID, e.MTU = peerID, 1 }),
	claims("has an MTU that is none", func(e *wire.Endpoint) { e.PeerID, e.MTU = peerID, 15 }),
}

// TestPoison: whatever a host of the LAN with several addresses says and does in a rendezvous, as client or as server, connections
// with another host use SMC-R and do not wait, meanwhile and afterwards: their first contact, too.
func TestPoison(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		for _, l := range liars {
			t.Run(fmt.Sprintf("%s/%s", role, l.name), func(t *testing.T) {
				bubble(t, func(t *testing.T) { testPoison(t, role, l) })
			})
		}
	}
}

// testPoison has the stack with a role be the victim.
func testPoison(t *testing.T, role smc.Role, l liar) {
	const addresses, each = 3, 4
	b := newBed(t, bedConfig{})
	devs := netdevs(3, 1)
	for i := range addresses - 1 {
		devs[0].Addrs = append(devs[0].Addrs, prefix(3, i+1))
	}
	b.w.Host("liar", devs...)
	c, s := b.connect()
	of := honest{side(c)}
	if role == smc.Client {
		of = honest{side(s)}
	}
	b.finish(c, s)
	victim, own := b.server, addr(2, 0)
	if role == smc.Client {
		victim, own = b.client, addr(1, 0)
	}
	first := func(when string) {
		t.Helper()
		for _, s := range []*Stack{b.client, b.server} {
			for _, g := range list(t, s.Control().LinkGroups) {
				if g.PeerID == b.client.peerIDNow() || g.PeerID == b.server.peerIDNow() {
					_ = s.Control().DeleteLinkGroup(t.Context(), g.ID) // or the other side has
				}
			}
		}
		time.Sleep(50 * time.Millisecond)
		began := time.Now()
		c, s := b.connect()
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("%s: an honest connection has waited for %v", when, took)
		}
		b.finish(c, s)
	}
	var played []<-chan struct{}
	for n := range addresses * each {
		from, to := netip.AddrPortFrom(addr(3, n%addresses), 0), netip.AddrPortFrom(own, 80)
		if role == smc.Client {
			from, to = netip.AddrPortFrom(own, 0), netip.AddrPortFrom(addr(3, n%addresses), 80)
		}
		ct, st, err := b.w.Connect(from, to)
		if err != nil {
			t.Fatal(err)
		}
		tc, theirs, play, rendezvous := st, ct, l.client, victim.Server
		if role == smc.Client {
			tc, theirs, play, rendezvous = ct, st, l.server, victim.Client
		}
		over := make(chan struct{})
		played = append(played, over)
		go func() {
			defer close(over)
			done := make(chan struct{})
			go func() {
				defer close(done)
				play(lying{theirs}, of, n)
			}()
			if c, err := rendezvous(t.Context(), tc); err == nil {
				t.Error("the liar has a connection")
				c.Close()
			}
			<-done
			tc.Close()
			theirs.Close()
		}()
		if n%addresses == 0 {
			time.Sleep(time.Millisecond)
			first(fmt.Sprint("during lie ", n))
		}
	}
	time.Sleep(time.Second)
	first("after a second")
	for _, over := range played {
		<-over
	}
	first("afterwards")
}
