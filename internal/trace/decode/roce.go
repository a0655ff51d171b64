// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
	"smcr/userstack/wire"
)

// roce is a RoCE packet from the BTH on: what was captured of it, and its length.
type roce struct {
	version  int
	src, dst netip.Addr
	data     []byte
	length   int
	icrc     func(bth []byte) header.ICRC // begins the ICRC; nil if it cannot be computed
}

// A sendKey is the direction of a queue pair.
type sendKey struct {
	src, dst netip.Addr
	qpn      smc.QPN
}

// sendParts are the packets of one SEND operation so far.
type sendParts struct {
	next uint32 // PSN
	b    []byte
}

// roce decodes one RoCE packet, and the message in it.
func (d *Decoder) roce(now time.Time, r *roce) {
	if len(r.data) < header.BTHLen || r.length < header.BTHLen+header.ICRCLen {
		return
	}
	bth := header.BTH(r.data[:header.BTHLen])
	op := bth.Opcode()
	ev := &Event{
		Frame: d.frame, Time: now, Type: RoCE, Message: op.String(), DstQPN: smc.QPN(bth.DestQP()),
		Src: netip.AddrPortFrom(r.src, 0), Dst: netip.AddrPortFrom(r.dst, 0),
	}
	ev.SrcQPN, _ = d.qps.get(QP{r.dst, ev.DstQPN})
	var f fields
	f.brief("psn", smc.PSN(bth.PSN()).String())
	if !op.Known() {
		ev.Fields, ev.Fault = f, "unknown opcode"
		d.emit(ev)
		return
	}
	whole := len(r.data) == r.length
	end := r.length - header.ICRCLen - int(bth.PadCount()) // of the payload
	n := op.HeaderLen()
	if end < n {
		ev.Fields, ev.Fault = f, "shorter than its headers"
		d.emit(ev)
		return
	}
	if op.HasPayload() {
		f.brief("length", end-n)
	}
	rest := r.data[header.BTHLen:]
	if op.HasRETH() && len(rest) >= header.RETHLen {
		reth := header.RETH(rest)
		f.brief("address", hex64(reth.VA()))
		f.brief("rkey", smc.RKey(reth.RKey()).String())
		f.brief("dma_length", reth.DMALen())
		rest = rest[header.RETHLen:]
	}
	if op.HasAETH() && len(rest) >= header.AETHLen {
		aeth := header.AETH(rest)
		f.brief("syndrome", aeth.Syndrome().String())
		f.brief("msn", aeth.MSN())
		rest = rest[header.AETHLen:]
	}
	if op.HasImmDt() && len(rest) >= header.ImmDtLen {
		f.brief("immediate", fmt.Sprintf("0x%08x", header.ImmDt(rest).Imm()))
	}
	f.flag("ack_request", bth.AckReq())
	f.flag("solicited", bth.Solicited())
	f.more("pad", int(bth.PadCount()))
	f.more("pkey", fmt.Sprintf("0x%04x", bth.PKey()))
	f.more("roce_version", r.version)
	if whole && r.icrc != nil {
		at := r.length - header.ICRCLen
		good := r.icrc(r.data[:header.BTHLen]).Add(r.data[header.BTHLen:at]) == header.ReadICRC(r.data[at:])
		f.more("icrc_good", good)
		if !good {
			ev.Fault = "wrong ICRC"
		}
	}
	ev.Fields = f
	d.emit(ev)
	if op <= header.SendOnlyImm && n <= len(r.data) {
		d.send(ev, bth, r.data[n:min(end, len(r.data))], end <= len(r.data))
	}
}

// send decodes the message of a SEND operation. Only LLC messages of version 2 can have
// several packets.
func (d *Decoder) send(ev *Event, bth header.BTH, payload []byte, whole bool) {
	k := sendKey{ev.Src.Addr(), ev.Dst.Addr(), ev.DstQPN}
	op, psn := bth.Opcode(), bth.PSN()
	switch op {
	case header.SendOnly, header.SendOnlyImm:
		d.message(ev, payload, whole)
	case header.SendFirst:
		if whole && len(payload) <= wire.MaxLLCLenV2 {
			d.sends.put(k, &sendParts{next: (psn + 1) & header.PSNMask, b: append([]byte(nil), payload...)})
		}
	default:
		s, ok := d.sends.get(k)
		if !ok || s == nil || s.next != psn {
			return // a repetition, or the beginning is missing
		}
		s.next = (psn + 1) & header.PSNMask
		if !whole || len(s.b)+len(payload) > wire.MaxLLCLenV2 {
			d.sends.put(k, nil)
			return
		}
		s.b = append(s.b, payload...)
		if op != header.SendMiddle {
			d.sends.put(k, nil)
			d.message(ev, s.b, true)
		}
	}
}

// message decodes a message that came in a SEND operation. Other protocols than SMC send
// messages, too: what does not look like one of SMC is no event.
func (d *Decoder) message(packet *Event, b []byte, whole bool) {
	ev := &Event{
		Frame: packet.Frame, Time: packet.Time, Src: packet.Src, Dst: packet.Dst,
		SrcQPN: packet.SrcQPN, DstQPN: packet.DstQPN, Group: packet.Group,
	}
	switch {
	case len(b) >= 2 && b[0] == wire.CDCType && b[1] == wire.CDCLen:
		d.cdc(ev, b)
	case looksLLC(b, whole):
		d.llc(ev, b)
	default:
		return
	}
	if !whole {
		ev.Fault = strings.TrimPrefix(ev.Fault+", not captured as a whole", ", ")
	}
	d.emit(ev)
}

// looksLLC reports whether b begins like a known LLC message.
func looksLLC(b []byte, whole bool) bool {
	h, err := wire.ParseLLCHeader(b)
	if err != nil {
		// The header says more bytes than were captured.
		return !whole && errors.Is(err, wire.ErrLength)
	}
	return h.Type >= wire.LLCConfirmLink && h.Type <= wire.LLCDeleteRKey
}

func hex64(v uint64) string { return fmt.Sprintf("0x%016x", v) }

// faultOf returns the text of an error of package wire.
func faultOf(err error) string { return strings.TrimPrefix(err.Error(), "wire: ") }
