// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"encoding/binary"
	"io"
	"net/netip"

	"smcr/userstack/wire"
)

// Numbers that classify a frame.
const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100
	// EtherTypeRoCE is RoCE version 1 (InfiniBand annex A16).
	EtherTypeRoCE = 0x8915
	// PortRoCEv2 is the UDP port of RoCE version 2 (annex A17).
	PortRoCEv2 = 4791

	protoTCP = 6
	protoUDP = 17

	etherLen = 14
)

// Tally counts frames and bytes.
type Tally struct {
	// Packets is the number of captured frames. With segmentation offload, one frame can
	// stand for many packets.
	Packets int
	// Bytes is the size of the whole frames on the wire, without FCS.
	Bytes int64
	// Payload is the number of bytes after the headers of TCP or UDP, for RoCE v1 after
	// the Ethernet header.
	Payload int64
}

func (t *Tally) add(frame, payload int) {
	t.Packets++
	t.Bytes += int64(frame)
	t.Payload += int64(payload)
}

// Flow is a TCP connection: the pair of addresses, the lower one first.
type Flow struct {
	A, B netip.AddrPort
}

// Traffic has the counts of a capture, by protocol.
type Traffic struct {
	RoCEv1, RoCEv2, TCP, Other Tally
	// Flows has the TCP connections.
	Flows map[Flow]*Tally
	// SYNs and SYNACKs count the first and second segments of handshakes, including
	// repeated ones.
	SYNs, SYNACKs int
	// SMCSYNs and SMCSYNACKs count those with the SMC-R option of RFC 7609, section 3.1:
	// see wire.AppendTCPOption.
	SMCSYNs, SMCSYNACKs int
}

// RoCEShare returns the share of RoCE in the bytes of all frames, from 0 to 1.
func (t *Traffic) RoCEShare() float64 {
	roce := t.RoCEv1.Bytes + t.RoCEv2.Bytes
	all := roce + t.TCP.Bytes + t.Other.Bytes
	if all == 0 {
		return 0
	}
	return float64(roce) / float64(all)
}

// MaxFlowPayload returns the largest payload of a TCP connection. It adds both
// directions.
func (t *Traffic) MaxFlowPayload() int64 {
	var n int64
	for _, tally := range t.Flows {
		n = max(n, tally.Payload)
	}
	return n
}

// CountTraffic counts the frames of a classic pcap file with Ethernet frames. The
// captured frames may be cut, but must contain the headers (96 bytes are enough).
func CountTraffic(r io.Reader) (*Traffic, error) {
	p, err := newPcap(r)
	if err != nil {
		return nil, err
	}
	t := &Traffic{Flows: make(map[Flow]*Tally)}
	for {
		rec, err := p.next()
		if err == io.EOF {
			return t, nil
		} else if err != nil {
			return nil, err
		}
		t.count(rec.kept, rec.length)
	}
}

// count counts one frame of frameLen bytes. b has its captured bytes.
func (t *Traffic) count(b []byte, frameLen int) {
	proto, src, dst, off, ok := parseNetwork(b, &t.RoCEv1, frameLen)
	switch {
	case off < 0:
		return // counted as RoCE version 1
	case ok && proto == protoTCP && len(b) >= off+20:
		t.countTCP(b[off:], frameLen-off, frameLen, src, dst)
	case ok && proto == protoUDP && len(b) >= off+8 && binary.BigEndian.Uint16(b[off+2:]) == PortRoCEv2:
		t.RoCEv2.add(frameLen, frameLen-off-8)
	default:
		t.Other.add(frameLen, 0)
	}
}

// parseNetwork returns the transport protocol of a frame, its addresses and the offset of
// the transport header. A RoCE version 1 frame is added to roce and has a negative
// offset.
func parseNetwork(b []byte, roce *Tally, frameLen int) (proto byte, src, dst netip.Addr, off int, ok bool) {
	if len(b) < etherLen {
		return
	}
	off = etherLen
	etherType := binary.BigEndian.Uint16(b[12:])
	if etherType == etherTypeVLAN && len(b) >= etherLen+4 {
		off += 4
		etherType = binary.BigEndian.Uint16(b[16:])
	}
	switch etherType {
	case EtherTypeRoCE:
		roce.add(frameLen, frameLen-off)
		return 0, src, dst, -1, true
	case etherTypeIPv4:
		if len(b) < off+20 {
			return
		}
		src, _ = netip.AddrFromSlice(b[off+12 : off+16])
		dst, _ = netip.AddrFromSlice(b[off+16 : off+20])
		return b[off+9], src, dst, off + int(b[off]&0x0f)*4, true
	case etherTypeIPv6:
		if len(b) < off+40 {
			return
		}
		src, _ = netip.AddrFromSlice(b[off+8 : off+24])
		dst, _ = netip.AddrFromSlice(b[off+24 : off+40])
		return b[off+6], src, dst, off + 40, true
	}
	return
}

// countTCP counts the segment that starts at b and has length bytes. Ethernet pads frames
// to 60 bytes, but a veth device does not.
func (t *Traffic) countTCP(b []byte, length, frameLen int, src, dst netip.Addr) {
	const fin, syn, ack = 0x01, 0x02, 0x10
	hlen := int(b[12]>>4) * 4
	payload := max(0, length-hlen)
	t.TCP.add(frameLen, payload)

	a := netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	z := netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	if z.Compare(a) < 0 {
		a, z = z, a
	}
	f := t.Flows[Flow{a, z}]
	if f == nil {
		f = &Tally{}
		t.Flows[Flow{a, z}] = f
	}
	f.add(frameLen, payload)

	if b[13]&syn == 0 {
		return
	}
	smc := wire.HasTCPOption(b[20:min(len(b), max(hlen, 20))])
	if b[13]&ack == 0 {
		t.SYNs++
		if smc {
			t.SMCSYNs++
		}
	} else {
		t.SYNACKs++
		if smc {
			t.SMCSYNACKs++
		}
	}
}
