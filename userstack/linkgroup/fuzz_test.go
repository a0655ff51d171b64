// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"encoding/binary"
	"testing"
	"time"

	"smcr/userstack/wire"
)

// FuzzReceived feeds messages to a group that has two links and some
// connections, in the middle of whatever it does. The input is a list of
// records: a byte that chooses link, way and time, then a message of 44
// bytes. Some ways put values into the message that get past the first
// checks: a known type, a live alert token, a plausible sequence number.
func FuzzReceived(f *testing.F) {
	add := func(role byte, ms ...interface {
		AppendBinary([]byte) ([]byte, error)
	}) {
		in := []byte{role}
		for i, m := range ms {
			in = append(in, byte(i&1))
			in, _ = m.AppendBinary(in)
		}
		f.Add(in)
	}
	for _, role := range []byte{0, 1} {
		add(role, wire.TestLink{}, wire.TestLink{Reply: true})
		add(role, wire.AddLink{LinkNum: 3, MTU: 3, QPN: 1}, wire.AddLinkCont{LinkNum: 3, Left: 1}, wire.ConfirmLink{LinkNum: 3})
		add(role, wire.AddLink{Reply: true, LinkNum: 2, MTU: 3, QPN: 1}, wire.AddLinkCont{Reply: true, LinkNum: 2, Left: 3})
		add(role, wire.DeleteLink{LinkNum: 1}, wire.DeleteLink{Reply: true, LinkNum: 1}, wire.DeleteLink{LinkNum: 2, Orderly: true})
		add(role, wire.ConfirmRKey{Others: 4}, wire.ConfirmRKeyCont{Left: 2}, wire.DeleteRKey{Count: 8})
		add(role, wire.DeleteLink{All: true})
		add(role, wire.CDC{Seq: 1, Prod: wire.Cursor{Count: 9}}, wire.CDC{Seq: 2, Flags: 0xF8, State: 0xE0})
	}
	types := []byte{1, 2, 3, 4, 6, 7, 8, 9, 0xFE, 0xFE, 0xFE, 0xFE, 0x80, 0xBF, 5, 0x21}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) == 0 || len(in) > 4000 {
			return
		}
		s, srv, cli := pair(t, 1, 2, 2, func(c *Config) { c.RMBEsPerRMB = 1 })
		for range 3 {
			s.connect(0, 500, func(a, b *app) {
				for _, p := range []*app{a, b} {
					p.manual, p.total = true, 100
				}
			})
		}
		s.runUntilIdle()
		p := []*app{srv, cli}[in[0]&1]
		h := p.h
		in = in[1:]
		// What the peer does on its own is over: it only takes.
		s.block = func(from *host, _ *Link, _ []byte) bool { return from != h }
		s.tap = func(*host, *Link, []byte) {}
		s.lies = true
		for len(in) > MsgLen && !h.gone {
			way := in[0]
			msg := append([]byte(nil), in[1:1+MsgLen]...)
			in = in[1+MsgLen:]
			links := h.g.Links()
			if len(links) == 0 {
				break
			}
			l := links[int(way&1)%len(links)]
			if way&2 != 0 {
				msg[0], msg[1] = types[msg[0]%16], MsgLen
			}
			if msg[0] == 0xFE && way&4 != 0 {
				list := h.g.connsSorted()
				if len(list) > 0 {
					c := list[int(msg[7])%len(list)]
					binary.BigEndian.PutUint32(msg[4:], c.Token())
					binary.BigEndian.PutUint16(msg[2:], c.Positions().LastSeq+uint16(msg[3]&7))
					if way&8 != 0 {
						msg[8], msg[9], msg[12], msg[13], msg[16], msg[17], msg[20], msg[21] = 0, 0, 0, 0, 0, 0, 0, 0
					}
				}
			}
			h.g.Received(s.now, l, msg)
			h.drain()
			switch way >> 5 {
			case 1:
				s.run(5*time.Millisecond, func() bool { return false })
			case 2:
				s.run(3*time.Second, func() bool { return false })
			case 3:
				p.c.Close(s.now)
			case 4:
				p.writeSome(50)
			case 5:
				a, b := p.c.RecvData()
				p.c.Consumed(s.now, len(a)+len(b))
			case 6:
				h.g.DeviceUp(s.now, device(h.role, 2))
			case 7:
				h.newApp(60, 0, 50)
			}
			h.drain()
			for _, c := range h.g.connsSorted() {
				if c.Positions().Received-c.Positions().Read > uint64(c.ours().size) || c.Protocol().Established() && (c.Positions().PeerRead > c.Positions().Announced || c.Positions().Written > c.Positions().Produced || c.Positions().Outstanding < 0) {
					t.Fatalf("cursors: rprod %d rcons %d prep %d sent %d pcons %d inflight %d", c.Positions().Received, c.Positions().Read, c.Positions().Produced, c.Positions().Written, c.Positions().PeerRead, c.Positions().Outstanding)
				}
			}
		}
		s.block = nil
		for _, h := range s.hosts {
			for _, p := range h.apps {
				if !p.open {
					p.c.Cancel(s.now)
					p.closed = true
					h.drain()
				}
			}
		}
		s.finish()
	})
}
