// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// The lies of TestLyingPeer that are CDC and LLC messages.

// wrongCursor says the cursors of the first connection, changed by edit.
func wrongCursor(edit func(m *wire.CDC)) func(*testing.T, *lab, *Peer) error {
	return func(_ *testing.T, _ *lab, p *Peer) error {
		m := p.cursors()
		edit(&m)
		return p.QP.Send(p.Say(m))
	}
}

// protocolError is what B says of a connection whose peer broke the protocol.
var protocolError = []string{"protocol violation"}

// cdcLies are CDC messages. 5000 bytes have been sent and have come back.
var cdcLies = []lie{
	{"producer cursor goes back", wrongCursor(func(m *wire.CDC) { m.Prod.Count -= 100 }), connReset, protocolError},
	{"producer cursor overruns the element", wrongCursor(func(m *wire.CDC) { m.Prod.Wrap++; m.Prod.Count++ }), connReset, protocolError},
	{"producer cursor a whole stream ahead", wrongCursor(func(m *wire.CDC) { m.Prod.Wrap += 0x8000 }), connReset, protocolError},
	{"producer cursor outside of the element", wrongCursor(func(m *wire.CDC) { m.Prod.Count = 1 << 30 }), connReset, protocolError},
	{"consumer cursor goes back", wrongCursor(func(m *wire.CDC) { m.Cons.Count -= 100 }), connReset, protocolError},
	{"consumer cursor before what was sent", wrongCursor(func(m *wire.CDC) { m.Cons.Count += 1000 }), connReset, protocolError},
	{"consumer cursor outside of the element", wrongCursor(func(m *wire.CDC) { m.Cons.Count = 1<<32 - 1 }), connReset, protocolError},
	{"bytes that were never written", func(_ *testing.T, _ *lab, p *Peer) error {
		// The program gets what is in the element: nothing of anybody else.
		p.sent += 4000
		if err := p.QP.Send(p.Say(p.cursors())); err != nil {
			return err
		}
		back, err := p.Collect(4000)
		if err == nil && !bytes.Equal(back, make([]byte, 4000)) {
			err = fmt.Errorf("the element has something in it: %.40x", back)
		}
		return err
	}, lives, nil},
	{"alert tokens of nobody and of others", func(t *testing.T, l *lab, p *Peer) error {
		conns, err := l.B.stack.Control().Connections(t.Context())
		if err != nil {
			return err
		}
		var msgs []Packet
		for _, c := range conns {
			if c.Info != nil && c.Info.Token != p.Victim.AlertToken {
				msgs = append(msgs, CDC(wire.CDC{Seq: 1, Token: c.Info.Token, State: wire.ConnAbnormalClose}))
			}
		}
		if len(msgs) < 2*flows {
			return fmt.Errorf("%d alert tokens of others", len(msgs))
		}
		for i := range uint32(1000) {
			msgs = append(msgs, CDC(wire.CDC{Seq: 1, Token: 1 + i*0x3fffff, State: wire.ConnAbnormalClose, Prod: wire.Cursor{Count: 1000}}))
		}
		return p.QP.Send(msgs...)
	}, lives, nil},
	{"the alert token of a connection that has ended", func(t *testing.T, l *lab, p *Peer) error {
		end := p.cursors()
		end.State = wire.ConnSendingDone | wire.ConnClosed
		if err := p.QP.Send(p.Say(end)); err != nil {
			return err
		}
		if err := l.wantConns(0); err != nil {
			return err
		}
		var stale []Packet
		for range 500 {
			m := p.cursors()
			m.Prod.Count += 1000
			stale = append(stale, p.Say(m))
		}
		return p.QP.Send(append(stale, p.writes(pattern(1000))...)...)
	}, groupLives, nil},
	{"old and future sequence numbers", func(_ *testing.T, _ *lab, p *Peer) error {
		var msgs []Packet
		for i := range uint16(500) {
			m := p.cursors()
			m.Seq, m.Token = uint16(p.seq.Load())-i, p.Victim.AlertToken
			m.Prod.Count += uint32(i)
			msgs = append(msgs, CDC(m))
		}
		return p.QP.Send(msgs...)
	}, indifferent, nil},
	{"all flags", func(_ *testing.T, _ *lab, p *Peer) error {
		m := p.cursors()
		m.Flags, m.State = 0xf8, 0xe0
		return p.QP.Send(p.Say(m))
	}, connReset, nil},
	{"reserved bytes and short messages", func(_ *testing.T, _ *lab, p *Peer) error {
		b, err := wire.CDC{Seq: 1, Token: p.Victim.AlertToken}.AppendBinary(nil)
		if err != nil {
			return err
		}
		for i := 26; i < len(b); i++ {
			b[i] = 0xff
		}
		return p.QP.Send(Message(b), Message(b[:43]))
	}, groupEnds, protocolError},
}

// flood is how many messages of a type a liar sends.
const flood = 3000

// llcFlood sends many messages, each made by its number.
func llcFlood(m func(p *Peer, i int) wire.LLC) func(*testing.T, *lab, *Peer) error {
	return func(_ *testing.T, _ *lab, p *Peer) error {
		msgs := make([]wire.LLC, flood)
		for i := range msgs {
			msgs[i] = m(p, i)
		}
		return floodDone(p.LLC(msgs...))
	}
}

// floodDone takes the end of a flood: the victim has taken all, or has ended the link.
func floodDone(err error) error {
	if errors.Is(err, ErrRefused) || errors.Is(err, ErrSilent) {
		return nil
	}
	return err
}

// someGID is the GID of one of many devices that do not exist.
func someGID(i int) smc.GID {
	return smc.GID{10: 0xff, 11: 0xff, 12: 10, 13: 99, 14: byte(i >> 8), 15: byte(i)}
}

// llcLies are LLC messages.
var llcLies = []lie{
	{"flood of TEST LINK", llcFlood(func(_ *Peer, i int) wire.LLC { return wire.TestLink{UserData: [16]byte{byte(i), byte(i >> 8)}} }), indifferent, nil},
	{"flood of TEST LINK replies", llcFlood(func(_ *Peer, i int) wire.LLC { return wire.TestLink{Reply: true, UserData: [16]byte{byte(i)}} }), lives, nil},
	{"flood of CONFIRM LINK", llcFlood(func(p *Peer, i int) wire.LLC {
		return wire.ConfirmLink{GID: p.self.GID, QPN: smc.QPN(p.QP.Num), LinkNum: byte(i), LinkUserID: uint32(i), MaxLinks: 2}
	}), indifferent, nil},
	{"flood of CONFIRM LINK replies", llcFlood(func(p *Peer, i int) wire.LLC {
		return wire.ConfirmLink{Reply: true, GID: p.self.GID, QPN: smc.QPN(p.QP.Num), LinkNum: byte(i), LinkUserID: uint32(i), MaxLinks: 2}
	}), lives, nil},
	{"flood of ADD LINK", llcFlood(func(_ *Peer, i int) wire.LLC {
		return wire.AddLink{GID: someGID(i), QPN: smc.QPN(i + 1), LinkNum: byte(i), MTU: 3, PSN: smc.PSN(i)}
	}), lives, nil},
	{"flood of ADD LINK replies", llcFlood(func(_ *Peer, i int) wire.LLC {
		return wire.AddLink{Reply: true, GID: someGID(i), QPN: smc.QPN(i + 1), LinkNum: byte(i), MTU: 3, PSN: smc.PSN(i)}
	}), lives, nil},
	{"flood of REQUEST ADD LINK", llcFlood(func(_ *Peer, i int) wire.LLC {
		return wire.ReqAddLink{GIDs: []smc.GID{someGID(i), someGID(i + 1)}}
	}), indifferent, nil},
	{"flood of DELETE LINK for links that do not exist", llcFlood(func(_ *Peer, i int) wire.LLC {
		return wire.DeleteLink{LinkNum: byte(100 + i%100), Orderly: i%2 == 0, Reason: wire.DeleteLinkOperator}
	}), indifferent, nil},
	{"flood of DELETE LINK replies", llcFlood(func(p *Peer, i int) wire.LLC {
		return wire.DeleteLink{Reply: true, All: i%2 == 0, LinkNum: p.LinkNum}
	}), lives, nil},
	{"DELETE LINK for all links", func(_ *testing.T, _ *lab, p *Peer) error {
		return floodDone(p.LLC(wire.DeleteLink{All: true, Reason: wire.DeleteLinkProtocolViolation}))
	}, groupEnds, []string{"link group ended"}},
	{"flood of CONFIRM RKEY", llcFlood(func(_ *Peer, i int) wire.LLC {
		return wire.ConfirmRKey{This: smc.RToken{RKey: smc.RKey(i + 1000), Addr: uint64(i) << 20}}
	}), indifferent, nil},
	{"flood of CONFIRM RKEY for links that do not exist", llcFlood(func(_ *Peer, i int) wire.LLC {
		return wire.ConfirmRKey{Others: 255, This: smc.RToken{RKey: smc.RKey(i + 1000)}, Other: [2]wire.LinkRToken{{LinkNum: 77}, {LinkNum: 78}}}
	}), indifferent, nil},
	{"flood of CONFIRM RKEY replies", llcFlood(func(_ *Peer, i int) wire.LLC {
		return wire.ConfirmRKey{Reply: true, Negative: i%2 == 0, Retry: i%3 == 0, This: smc.RToken{RKey: smc.RKey(i)}}
	}), lives, nil},
	{"flood of DELETE RKEY", llcFlood(func(_ *Peer, i int) wire.LLC { return wire.DeleteRKeyV2{RKeys: []smc.RKey{smc.RKey(i + 5000)}} }), indifferent, nil},
	{"flood of DELETE RKEY replies", llcFlood(func(_ *Peer, i int) wire.LLC { return wire.DeleteRKeyV2{Reply: true, Count: byte(i)} }), lives, nil},
	{"flood of noise", func(_ *testing.T, _ *lab, p *Peer) error {
		r := rand.New(rand.NewPCG(3, 3))
		msgs := make([]Packet, flood)
		for i := range msgs {
			b := make([]byte, 44+4*r.IntN(20))
			for j := range b {
				b[j] = byte(r.Uint32())
			}
			b[0] = 0x80 | b[0]&0x3f // opcodes that a receiver must ignore
			msgs[i] = Message(b)
		}
		return p.QP.Send(msgs...)
	}, lives, nil},
	{"a message of version 1", func(_ *testing.T, _ *lab, p *Peer) error {
		b, err := wire.AppendLLC(nil, wire.LLCV1, wire.TestLink{})
		if err != nil {
			return err
		}
		return p.QP.Send(Message(b))
	}, groupEnds, protocolError},
	{"a message that says that it is longer", func(_ *testing.T, _ *lab, p *Peer) error {
		b, err := wire.AppendLLC(nil, p.Layout, wire.TestLink{})
		if err != nil {
			return err
		}
		binary.LittleEndian.PutUint16(b[1:], 8000)
		return p.QP.Send(Message(b))
	}, groupEnds, protocolError},
	{"an empty message", func(_ *testing.T, _ *lab, p *Peer) error { return p.QP.Send(Message(nil)) }, groupEnds, protocolError},
}
