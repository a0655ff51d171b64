// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"testing"

	"smcr/rdmaverbs/softroce/header"
	"smcr/userstack"
	"smcr/userstack/wire"
)

// sweeps are what an unprivileged user sends with every packet sequence number, to hit the
// one that the victim takes. Such a user can send UDP from the address of its host.
var sweeps = []struct {
	name string
	// near reports whether a packet on the wire has numbers near the one that is sought.
	near   func(*Seen) bool
	packet func(psn uint32) Packet
}{
	{"requests that end the link group", func(s *Seen) bool { return !s.BTH.Opcode().IsResponse() }, func(psn uint32) Packet {
		b, err := wire.AppendLLC(nil, wire.LLCV2Little, wire.DeleteLink{All: true, Reason: wire.DeleteLinkOperator})
		if err != nil {
			panic(err)
		}
		return Packet{Op: header.SendOnly, PSN: psn, NoAck: true, Payload: b}
	}},
	{"answers that end the queue pair", func(s *Seen) bool { return s.BTH.Opcode() == header.Acknowledge }, func(psn uint32) Packet {
		return Packet{Op: header.Acknowledge, PSN: psn, AETH: &Answer{Syndrome: header.NAKRemoteAccess}}
	}},
}

// TestUserSweepsPSNs: an unprivileged user of A's host does not get a packet executed,
// although it sends from A's address, knows the queue pairs, and tries packet sequence
// numbers one after the other.
//
// To save time, the test tells the user where to begin: the user would need a minute for
// all numbers.
func TestUserSweepsPSNs(t *testing.T) {
	numbers := uint32(1 << 17)
	if testing.Short() {
		numbers = 1 << 15
	}
	for _, sweep := range sweeps {
		t.Run(sweep.name, func(t *testing.T) {
			l := newLab(t, userstack.Config{})
			user, err := OpenPort(l.A.Host, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.must(user.Close()) })
			for _, k := range l.B.links(t) {
				s, err := Tap(t.Context(), l.B.Host, echoTime, func(s *Seen) bool { return s.BTH.DestQP() == k.QPN && sweep.near(s) })
				if err != nil {
					t.Fatal(err)
				}
				// From a little before the number: the victims go on meanwhile, slower than
				// the user.
				for i := range numbers {
					pkt := sweep.packet((s.BTH.PSN() - 1000 + i) & header.PSNMask)
					pkt.DestQP = k.QPN
					if err := user.Send(l.B.Links[0].IPv4, &pkt); err != nil {
						t.Fatal(err)
					}
				}
			}
			l.unharmed(t)
			l.B.wantLog(t, "not from the UDP port of its queue pair")
			l.finish()
		})
	}
}
