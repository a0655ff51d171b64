// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net/netip"
	"testing"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// TestPathOfAddresses: whoever connects chooses the addresses of both hosts, and RoCE may pass between some of them
// and not between others. What one pair of addresses shows holds for no other one, on either side.
func TestPathOfAddresses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &bed{t: t, w: simfabric.New(simfabric.Config{})}
		t.Cleanup(b.w.Close)
		t.Cleanup(b.noObjects)
		second := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, n}) }
		host := func(n byte, name string) *simfabric.Host {
			devs := netdevs(int(n), 1)
			devs[0].Addrs = append(devs[0].Addrs, netip.PrefixFrom(second(n), 16))
			return b.w.Host(name, devs...)
		}
		b.ch, b.sh = host(1, "client"), host(2, "server")
		b.client, b.server = b.stack(b.ch, nil), b.stack(b.sh, nil)
		connect := func(from, to netip.Addr) (ct, st *simfabric.TCPConn) {
			ct, st, err := b.w.Connect(netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 80))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ct.Close(); st.Close() })
			return ct, st
		}

		// A connection with the second address of the server, on which CONFIRM LINK has no answer.
		ct, st := connect(addr(1, 0), second(2))
		fails := func(err error) {
			if err == nil {
				t.Error("a rendezvous with a peer that does not answer succeeds")
			}
		}
		serr := ended(t, b.server.Server, st)
		func(p scripted) {
			p.send(wire.Proposal{PeerID: peerID, GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 9}, IPv4: prefix(1, 0).Masked()})
			as[wire.Accept](p)
			p.send(wire.Confirm{FirstContact: true, Endpoint: endpointOf(1)})
			as[wire.Decline](p)
		}(scripted{t, ct})
		fails(<-serr)
		// Likewise for a client whose program has bound its socket to the second address.
		ct, st = connect(second(1), addr(2, 0))
		cerr := ended(t, b.client.Client, ct)
		func(p scripted) {
			as[wire.Proposal](p)
			p.send(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
			as[wire.Confirm](p)
			p.send(wire.Decline{PeerID: peerID, Diagnosis: smc.DiagNoPath})
		}(scripted{t, st})
		fails(<-cerr)
		for _, from := range []netip.Addr{addr(1, 0), {}, netip.IPv4Unspecified()} {
			if err := b.client.tryPathTo(from, addr(2, 0)); err != nil {
				t.Errorf("connections from %v stay TCP: %v", from, err)
			}
		}
		if b.client.tryPathTo(second(1), addr(2, 0)) == nil {
			t.Error("connections from the second address do not stay TCP")
		}
		for s, want := range map[*Stack]nl.Learnt{
			b.server: {Everyone: true, Local: second(2), Remote: netip.AddrPortFrom(addr(1, 0), 0), Why: uint32(smc.DiagNoPath)},
			b.client: {Everyone: true, Local: second(1), Remote: netip.AddrPortFrom(addr(2, 0), 0), Why: uint32(smc.DiagNoPath)},
		} {
			got := one(t, s.Control().(nl.Learner).Learnt)
			if want.Left = got.Left; got != want || got.Left <= 0 {
				t.Errorf("%s shows %+v, want %+v", s.cfg.Hostname, got, want)
			}
		}
		ct, st = connect(addr(1, 0), second(2))
		_, _, _, err := b.rendezvous(ct, st)
		wantDecline(t, "server", err, smc.DiagNoPath, false)
		b.finish(b.connect())
	})
}
