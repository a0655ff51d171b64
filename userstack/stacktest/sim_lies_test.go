// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"slices"
	"time"

	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// recordedMessages are earlier messages that the false host sends again.
type recordedMessages struct {
	mute     bool // the stopped host has stopped
	recorded [][]byte
}

const maxRecorded = 64

func (s *simulation) record(e *simfabric.Event) {
	if s.liar == nil || e.From.Host != s.liar.name && e.To.Host != s.liar.name {
		return
	}
	if len(s.recorded) < maxRecorded {
		s.recorded = append(s.recorded, slices.Clone(e.Data))
	} else {
		s.recorded[s.wire.IntN(maxRecorded)] = slices.Clone(e.Data)
	}
}

// alter changes messages of the false host. It drops messages from and to a host that has
// stopped: the adapter of this host still acknowledges, but no program reads.
func (s *simulation) alter(from, to simfabric.Place, msg []byte) ([]byte, bool) {
	if s.mute && s.dishonest(from.Host) || s.mute && s.dishonest(to.Host) {
		return msg, false
	}
	if s.liar == nil || from.Host != s.liar.name || s.wire.IntN(25) > 0 {
		return msg, true
	}
	switch s.wire.IntN(5) {
	case 0:
		return msg, false
	case 1: // a bit changes
		m := slices.Clone(msg)
		m[s.wire.IntN(len(m))] ^= 1 << s.wire.IntN(8)
		return m, true
	case 2: // the message is too short or too long
		m := append(slices.Clone(msg), make([]byte, s.wire.IntN(30))...)
		return m[:s.wire.IntN(len(m)+1)], true
	default:
		return s.lie(msg), true
	}
}

// alterTCP changes what the false host sends in the rendezvous.
func (s *simulation) alterTCP(from, _ simfabric.Place, data []byte) []byte {
	if s.liar == nil || from.Host != s.liar.name || s.wire.IntN(12) > 0 {
		return data
	}
	switch s.wire.IntN(3) {
	case 0:
		data[s.wire.IntN(len(data))] ^= 1 << s.wire.IntN(8)
	case 1:
		data = data[:s.wire.IntN(len(data)+1)]
	case 2:
		data = append(data, data...)
	}
	return data
}

// planLies plans false messages that do not replace a correct message.
func (s *simulation) planLies(span time.Duration) {
	for range 1 + s.rng.IntN(12) {
		s.soon(2*span, func() {
			var victims []simfabric.QP
			for _, q := range s.w.QPs() {
				if q.Peer.Host == s.liar.name && q.Host != s.liar.name {
					victims = append(victims, q)
				}
			}
			if len(victims) == 0 {
				return
			}
			q := victims[s.rng.IntN(len(victims))]
			if s.rng.IntN(4) == 0 {
				s.forgeWrite(q)
				return
			}
			s.w.Inject(q.QPN, s.lie(nil))
		})
	}
}

// forgeWrite injects a write at a random place in the memory of the host of q, also where
// the false host may not write.
func (s *simulation) forgeWrite(q simfabric.QP) {
	var there []simfabric.MR
	for _, m := range s.w.MRs() {
		if m.Host == q.Host {
			there = append(there, m)
		}
	}
	if len(there) == 0 {
		return
	}
	m := there[s.wire.IntN(len(there))]
	off := uint64(s.wire.IntN(m.Len))
	n := min(1+s.wire.IntN(5000), m.Len-int(off)+s.wire.IntN(2))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(s.wire.Uint32())
	}
	s.w.InjectWrite(q.QPN, m.RKey, m.Addr+off, data)
}

// lie returns a false message: an earlier message, one with changed values, or a new one.
func (s *simulation) lie(msg []byte) []byte {
	r := s.wire
	if len(s.recorded) > 0 && r.IntN(3) == 0 {
		return slices.Clone(s.recorded[r.IntN(len(s.recorded))])
	}
	if len(s.recorded) > 0 && (msg == nil || r.IntN(2) == 0) {
		msg = s.recorded[r.IntN(len(s.recorded))]
	}
	if len(msg) == wire.LLCLen && r.IntN(4) > 0 {
		m := slices.Clone(msg)
		if wire.IsCDC(m) {
			s.twistCDC(m)
		} else {
			s.twistLLC(m)
		}
		return m
	}
	m := make([]byte, wire.LLCLen)
	for i := range m {
		if r.IntN(3) == 0 {
			m[i] = byte(r.Uint32())
		}
	}
	types := []wire.LLCType{
		wire.LLCConfirmLink, wire.LLCAddLink, wire.LLCAddLinkCont, wire.LLCDeleteLink, wire.LLCConfirmRKey,
		wire.LLCConfirmRKeyCont, wire.LLCDeleteRKey, wire.LLCTestLink, wire.CDCType, 0x45, 0x99,
	}
	m[0], m[1] = byte(types[r.IntN(len(types))]), wire.LLCLen
	return m
}

// twistCDC changes the sequence number, a cursor or the flags.
func (s *simulation) twistCDC(m []byte) {
	c, err := wire.ParseCDC(m)
	if err != nil {
		return
	}
	r := s.wire
	c.Seq += uint16(r.IntN(3))
	switch r.IntN(6) {
	case 0:
		c.Prod.Count += uint32(r.IntN(40000))
	case 1:
		c.Cons.Count += uint32(r.IntN(40000))
	case 2:
		c.Prod.Wrap++
	case 3:
		c.Cons.Wrap--
	case 4:
		c.Flags ^= wire.ProducerFlags(1 << r.IntN(8))
	case 5:
		c.State ^= wire.StateFlags(1 << r.IntN(8))
	}
	if b, err := c.AppendBinary(nil); err == nil {
		copy(m, b)
	}
}

// twistLLC changes the type, makes an answer a request, or changes a field.
func (s *simulation) twistLLC(m []byte) {
	r := s.wire
	switch r.IntN(4) {
	case 0:
		m[0] = byte(1 + r.IntN(9))
	case 1:
		m[3] ^= 0x80 // answer
	case 2:
		m[3] ^= 1 << r.IntN(8)
	case 3:
		m[4+r.IntN(len(m)-4)] = byte(r.Uint32())
	}
}
