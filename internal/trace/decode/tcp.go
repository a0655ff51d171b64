// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"smcr/userstack/wire"
)

const (
	tcpFIN, tcpSYN, tcpRST = 0x01, 0x02, 0x04

	maxHeld     = 8       // segments of one flow that wait for one before them
	maxAhead    = 8 << 10 // bytes that a waiting segment may be ahead
	maxMessages = 4       // CLC messages in one direction
)

// A flowKey is one direction of a TCP connection.
type flowKey struct{ src, dst netip.AddrPort }

// A flow is the beginning of one direction, in which CLC messages may be.
type flow struct {
	next  uint32 // sequence number behind buf
	buf   []byte // not decoded yet; less than wire.MaxCLCLen bytes
	held  []segment
	count int
	done  bool // no more CLC
}

type segment struct {
	seq uint32
	b   []byte
}

// tcp looks for CLC messages in a segment.
func (d *Decoder) tcp(p *Packet, g *datagram) {
	if len(g.data) < 20 {
		return
	}
	n := int(g.data[12]>>4) * 4
	if n < 20 || n > len(g.data) {
		return
	}
	k := flowKey{
		netip.AddrPortFrom(g.src, binary.BigEndian.Uint16(g.data)),
		netip.AddrPortFrom(g.dst, binary.BigEndian.Uint16(g.data[2:])),
	}
	seq, flags, payload := binary.BigEndian.Uint32(g.data[4:]), g.data[13], g.data[n:]
	f, ok := d.flows.get(k)
	switch {
	case flags&tcpSYN != 0:
		d.flows.put(k, &flow{next: seq + 1})
		return
	case len(payload) == 0:
		return
	case !ok:
		if !beginsCLC(payload) {
			return // in the middle of a connection
		}
		f = &flow{next: seq}
		d.flows.put(k, f)
	case f.done:
		return
	}
	f.add(seq, payload)
	d.messages(p.Time, k, f)
	if n+len(payload) < g.length { // the rest of the segment was not captured
		if !f.done && len(f.buf) > 0 {
			d.clc(p.Time, k, f.buf)
		}
		f.end()
	}
}

// beginsCLC reports whether b begins like a CLC message.
func beginsCLC(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	e := binary.BigEndian.Uint32(b)
	return e == wire.EyecatcherSMCR || e == wire.EyecatcherSMCD
}

func (f *flow) end() { *f = flow{done: true} }

// add adds a segment, in any order.
func (f *flow) add(seq uint32, b []byte) {
	switch ahead := int32(seq - f.next); {
	case ahead > 0:
		if ahead < maxAhead && len(f.held) < maxHeld {
			f.held = append(f.held, segment{seq, slices.Clone(b[:min(len(b), wire.MaxCLCLen)])})
		}
		return
	case int64(-int64(ahead)) >= int64(len(b)):
		return // all of it is known
	default:
		b = b[-ahead:]
	}
	f.buf = append(f.buf, b...)
	f.next += uint32(len(b))
	for i, s := range f.held {
		if int32(s.seq-f.next) <= 0 {
			f.held = slices.Delete(f.held, i, i+1)
			f.add(s.seq, s.b)
			return
		}
	}
}

// messages decodes the messages that are complete.
func (d *Decoder) messages(now time.Time, k flowKey, f *flow) {
	for !f.done && len(f.buf) > 0 {
		if len(f.buf) >= 4 && !beginsCLC(f.buf) {
			f.end()
			return
		}
		h, err := wire.ParseHeader(f.buf)
		switch {
		case errors.Is(err, wire.ErrShort):
			return
		case err != nil:
			d.fault(now, k, "CLC", err)
			f.end()
			return
		case len(f.buf) < h.Length:
			return
		}
		d.clc(now, k, f.buf[:h.Length])
		f.buf = f.buf[h.Length:]
		f.count++
		// What follows a DECLINE is data of the programs.
		if h.Type == wire.TypeDecline || f.count >= maxMessages {
			f.end()
		}
	}
}

func (d *Decoder) fault(now time.Time, k flowKey, message string, err error) {
	d.emit(&Event{Frame: d.frame, Time: now, Type: CLC, Src: k.src, Dst: k.dst, Message: message, Fault: faultOf(err)})
}
