// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/wire"
)

// lie is an attack of a lying peer: one that has made a link group with B in order.
type lie struct {
	name string
	// tell does it. An error fails the test.
	tell func(t *testing.T, l *lab, p *Peer) error
	// then is what becomes of the liar.
	then fate
	// log are texts of the line of B's log that tells, or nil if nothing must be told.
	log []string
}

// fate is what becomes of a liar's own link group and connection.
type fate int

const (
	lives       fate = iota // the connection carries data as before
	groupLives              // the link group goes on
	connReset               // the same, and the connection is reset
	groupEnds               // the link group ends
	indifferent             // any of these
)

// pattern returns n bytes.
func pattern(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(7, uint64(n)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// refused wants that the victim refuses a packet.
func refused(p *Peer, pkt Packet) error {
	if err := p.QP.Send(pkt); !errors.Is(err, ErrRefused) {
		return fmt.Errorf("%v, want %w", err, ErrRefused)
	}
	return nil
}

// foreignWrite waits for an honest WRITE to B, and returns where it goes.
func foreignWrite(l *lab) (smc.RKey, uint64, error) {
	s, err := Tap(l.t.Context(), l.B.Host, echoTime, func(s *Seen) bool {
		return s.RETH != nil && s.From.Addr() == l.A.Links[0].IPv4 && s.To.Addr() == l.B.Links[0].IPv4
	})
	if err != nil {
		return 0, 0, err
	}
	return smc.RKey(s.RETH.RKey()), s.RETH.VA(), nil
}

// refusedWrite is a WRITE of 64 bytes that B must refuse.
func refusedWrite(at func(p *Peer) (smc.RKey, uint64)) func(*testing.T, *lab, *Peer) error {
	return func(_ *testing.T, _ *lab, p *Peer) error {
		rkey, addr := at(p)
		return refused(p, Write(rkey, addr, pattern(64)))
	}
}

// failedLink is what B says of a link whose queue pair is in the error state.
var failedLink = []string{"link failed"}

// rdmaLies are packets.
var rdmaLies = []lie{
	{"WRITE before the RMB", refusedWrite(func(p *Peer) (smc.RKey, uint64) { return p.Victim.RMB.RKey, p.Victim.RMB.Addr - 1 }), groupEnds, failedLink},
	{"WRITE behind the RMB", refusedWrite(func(p *Peer) (smc.RKey, uint64) { return p.Victim.RMB.RKey, p.Victim.RMB.Addr + 4<<20 }), groupEnds, failedLink},
	{"WRITE across the end of the RMB", refusedWrite(func(p *Peer) (smc.RKey, uint64) { return p.Victim.RMB.RKey, p.Victim.RMB.Addr + 4<<20 - 1 }), groupEnds, failedLink},
	{"WRITE to an address that overflows", refusedWrite(func(p *Peer) (smc.RKey, uint64) { return p.Victim.RMB.RKey, 1<<64 - 1 }), groupEnds, failedLink},
	{"WRITE to an RKey of nobody", refusedWrite(func(p *Peer) (smc.RKey, uint64) { return p.Victim.RMB.RKey ^ 0x5a5a5a5a, p.Victim.RMB.Addr }), groupEnds, failedLink},
	{"WRITE to the RMB of others", func(_ *testing.T, l *lab, p *Peer) error {
		rkey, addr, err := foreignWrite(l)
		if err != nil {
			return err
		}
		return refused(p, Write(rkey, addr, pattern(64)))
	}, groupEnds, failedLink},
	{"WRITE to an RMB that was freed", func(t *testing.T, l *lab, p *Peer) error {
		self := l.C.Own
		self.PeerID[0]++
		other, err := l.C.Join(t.Context(), l.B.address(), eid, self)
		if err == nil {
			err = errors.Join(other.LLC(wire.DeleteLink{All: true, Reason: wire.DeleteLinkProgram}), other.Close())
		}
		if err != nil {
			return err
		}
		<-other.Ended()
		return refused(p, Write(other.Victim.RMB.RKey, other.Victim.RMB.Addr, pattern(64)))
	}, groupEnds, failedLink},
	{"WRITE of more than it says", func(_ *testing.T, _ *lab, p *Peer) error {
		pkt := Write(p.Victim.RMB.RKey, p.Victim.RMB.Addr, pattern(64))
		pkt.RETH.DMALen = 32
		return refused(p, pkt)
	}, groupEnds, failedLink},
	{"WRITE of 2 GiB", func(_ *testing.T, _ *lab, p *Peer) error {
		pkt := Write(p.Victim.RMB.RKey, p.Victim.RMB.Addr, pattern(1024))
		pkt.Op, pkt.RETH.DMALen = header.WriteFirst, 1<<31
		return refused(p, pkt)
	}, groupEnds, failedLink},
	{"WRITE longer than the path MTU", func(_ *testing.T, _ *lab, p *Peer) error {
		return refused(p, Write(p.Victim.RMB.RKey, p.Victim.RMB.Addr, pattern(1028)))
	}, groupEnds, failedLink},
	{"WRITE without a beginning", func(_ *testing.T, _ *lab, p *Peer) error {
		return refused(p, Packet{Op: header.WriteMiddle, Payload: pattern(1024)})
	}, groupEnds, failedLink},
	{"READ of the RMB", func(_ *testing.T, _ *lab, p *Peer) error {
		pkt := Write(p.Victim.RMB.RKey, p.Victim.RMB.Addr, nil)
		pkt.Op, pkt.RETH.DMALen = header.ReadRequest, 64
		return refused(p, pkt)
	}, groupEnds, failedLink},
	{"SEND longer than a message", func(_ *testing.T, _ *lab, p *Peer) error {
		for i := range 9 {
			pkt := Packet{Op: header.SendMiddle, Payload: pattern(1024)}
			if i == 0 {
				pkt.Op = header.SendFirst
			}
			if err := p.QP.Send(pkt); err != nil {
				if errors.Is(err, ErrRefused) {
					return nil
				}
				return err
			}
		}
		return errors.New("9 KiB were taken")
	}, groupEnds, failedLink},
	{"unknown opcodes, queue pairs and partitions", func(_ *testing.T, _ *lab, p *Peer) error {
		for _, pkt := range []Packet{
			{Op: 0x1f}, {Op: 0x64, Payload: pattern(64)}, {Op: 0xff}, // FETCH ADD is 0x14: it would be refused
			{Op: header.SendOnly, PSN: p.QP.PSN(), PKey: 0x1234, Payload: pattern(44)},
			{Op: header.SendOnly, PSN: p.QP.PSN(), DestQP: 1, Payload: pattern(44)},
			{Op: header.SendOnly, PSN: p.QP.PSN(), DestQP: header.PSNMask, Payload: pattern(44)},
		} {
			pkt.PSN |= 1 << 22 // never the one that is expected
			for range 100 {
				if err := p.QP.Emit(pkt); err != nil {
					return err
				}
			}
		}
		return nil
	}, lives, nil},
	{"packets twice and out of order", func(_ *testing.T, _ *lab, p *Peer) error {
		r := rand.New(rand.NewPCG(1, 1))
		for range 20 {
			at := p.QP.PSN()
			pkts := p.writes(pattern(4000))
			p.sent += 4000
			pkts = append(pkts, p.Say(p.cursors()))
			for _, i := range r.Perm(2 * len(pkts)) { // before they are sent in order
				pkt := pkts[i%len(pkts)]
				pkt.PSN = (at + uint32(i%len(pkts))) & header.PSNMask
				if err := p.QP.Emit(pkt); err != nil {
					return err
				}
			}
			if err := p.QP.Send(pkts...); err != nil {
				return err
			}
			for i, pkt := range pkts { // and again afterwards
				pkt.PSN = (at + uint32(i)) & header.PSNMask
				if err := p.QP.Emit(pkt); err != nil {
					return err
				}
			}
			if back, err := p.Collect(4000); err != nil {
				return err
			} else if !bytes.Equal(back, pattern(4000)) {
				return errors.New("other bytes came back")
			}
		}
		return nil
	}, lives, nil},
	{"acknowledgements of what was never sent", func(_ *testing.T, _ *lab, p *Peer) error {
		for i := range uint32(2000) {
			s := []header.Syndrome{header.ACKNoCredits, header.NAKSequence, header.RNR(1), header.ACK(3)}[i%4]
			if err := p.QP.Emit(Packet{Op: header.Acknowledge, PSN: uint32(p.Victim.PSN) + 1<<20 + i*37, AETH: &Answer{s, i}}); err != nil {
				return err
			}
		}
		return nil
	}, lives, nil},
	{"no acknowledgements", func(t *testing.T, l *lab, p *Peer) error {
		p.QP.Silence()
		if err := p.Transfer(pattern(1000)); err != nil { // B's program answers
			return err
		}
		return l.wantGroups(0)
	}, groupEnds, failedLink},
}

// wantGroups waits until B has n link groups with the attacker.
func (l *lab) wantGroups(n int) error {
	return netnstest.Until(settleTime, func() error {
		if got := len(l.B.groups(l.t, &l.C.Own.PeerID)); got != n {
			return fmt.Errorf("%d link groups with the attacker, want %d", got, n)
		}
		return nil
	})
}

// wantConns waits until the link groups of B with the attacker have n connections.
func (l *lab) wantConns(n uint32) error {
	return netnstest.Until(settleTime, func() error {
		got := uint32(0)
		for _, g := range l.B.groups(l.t, &l.C.Own.PeerID) {
			got += g.Conns
		}
		if got != n {
			return fmt.Errorf("%d connections with the attacker, want %d", got, n)
		}
		return nil
	})
}

// wantFate checks what has become of a liar.
func (l *lab) wantFate(t *testing.T, p *Peer, want fate) {
	t.Helper()
	switch want {
	case lives:
		back, err := p.Echo(pattern(3000))
		if err != nil || !bytes.Equal(back, pattern(3000)) {
			t.Errorf("the liar's connection is to live: %d bytes came back: %v", len(back), err)
		}
	case groupLives:
		if err := p.Test(); err != nil {
			t.Errorf("the liar's link group is to live: %v", err)
		}
	case connReset:
		if err := errors.Join(p.AwaitReset(), p.Test(), l.wantConns(0)); err != nil {
			t.Errorf("the liar's connection is to be reset, and its link group is to live: %v", err)
		}
	case groupEnds:
		if err := l.wantGroups(0); err != nil {
			t.Errorf("the liar's link group is to end: %v", err)
		}
	}
}

// TestLyingPeer: a peer that lies harms its own connections alone.
func TestLyingPeer(t *testing.T) {
	for name, lies := range map[string][]lie{"RDMA": rdmaLies, "CDC": cdcLies, "LLC": llcLies} {
		t.Run(name, func(t *testing.T) {
			cfg := userstack.Config{}
			if testing.Short() { // for "no acknowledgements"
				cfg.StallTime = 3 * time.Second
			}
			l := newLab(t, cfg)
			for _, lie := range some(lies) {
				t.Run(lie.name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
					defer cancel()
					p, err := l.C.Join(ctx, l.B.address(), eid, l.C.Own)
					if err != nil {
						t.Fatal(err)
					}
					if back, err := p.Echo(pattern(5000)); err != nil || !bytes.Equal(back, pattern(5000)) {
						t.Fatalf("the liar is no peer: %d bytes came back: %v", len(back), err)
					}
					before := l.B.log.count(lie.log...)
					if err := lie.tell(t, l, p); err != nil {
						t.Error(err)
					}
					l.wantFate(t, p, lie.then)
					if lie.log != nil && l.B.log.count(lie.log...) == before {
						t.Errorf("B's log does not say %q", slices.Concat(lie.log))
					}
					l.unharmed(t)
					_ = p.LLC(wire.DeleteLink{All: true, Reason: wire.DeleteLinkProgram}) // if there is a link
					if err := p.Close(); err != nil {
						t.Error(err)
					}
					if err := l.wantGroups(0); err != nil {
						t.Error(err)
					}
				})
			}
			l.finish()
		})
	}
}
