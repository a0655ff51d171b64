// SPDX-License-Identifier: Apache-2.0

package synth

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"smcr/internal/trace/decode"
	"smcr/nl"
	"smcr/rdmaverbs/softroce/header"
)

// ErrEvent means that an event has no packet: its addresses or its length are wrong.
var ErrEvent = errors.New("synth: the event cannot be a packet")

const (
	tcpLen      = 20
	protocolTCP = 6
	pushAck     = 0x18
	ttl         = 64
	maxIP       = 65535 - header.IPv4Len
	// sourcePort is a UDP source port: any from the range of annex A17, A17.9.2.
	sourcePort = 0xc000
)

// maxFlows limits the directions of which a Maker remembers the next number.
const maxFlows = 4096

// A flow is a direction of a TCP connection, or of a link.
type flow struct {
	src, dst netip.AddrPort
	qpn      uint32 // of the destination
}

// A Maker makes packets. The zero value is ready for use.
type Maker struct {
	next  map[flow]uint32 // sequence number, or PSN
	order []flow
	check header.Checker
}

// take returns the number of the next byte or packet of f, and adds n to it.
func (m *Maker) take(f flow, first, n uint32) uint32 {
	if m.next == nil {
		m.next = make(map[flow]uint32)
	}
	at, ok := m.next[f]
	if !ok {
		at = first
		if len(m.order) >= maxFlows {
			delete(m.next, m.order[0])
			m.order = m.order[1:]
		}
		m.order = append(m.order, f)
	}
	m.next[f] = at + n
	return at
}

// Packet returns the packet of an event. The error is ErrEvent.
func (m *Maker) Packet(e *nl.TraceEvent) (*decode.Packet, error) {
	src, dst, qpn := e.Remote, e.Local, e.QPN
	if e.Out {
		src, dst, qpn = e.Local, e.Remote, e.PeerQPN
	}
	a, b := src.Addr(), dst.Addr()
	if !a.IsValid() || !b.IsValid() || a.Is4() != b.Is4() || int(e.Length) < len(e.Data) || e.Length > maxIP-64 {
		return nil, ErrEvent
	}
	p := &decode.Packet{Time: e.Time, Link: decode.Ethernet}
	if e.Type == nl.TraceCLC {
		p.Data = m.segment(src, dst, e.Data)
		p.Length = len(p.Data)
		return p, nil
	}
	transport, length := e.Data, int(e.Length)
	if e.Type != nl.TraceRoCE {
		f := header.BTHFields{
			Opcode: header.SendOnly, Solicited: true, MigReq: true, PKey: header.DefaultPKey, DestQP: qpn, AckReq: true,
			PadCount: uint8(-length & 3), PSN: m.take(flow{src, dst, qpn}, 0, 1) & header.PSNMask,
		}
		bth := make(header.BTH, header.BTHLen)
		bth.Encode(&f)
		transport = append(append([]byte(bth), e.Data...), make([]byte, f.PadCount)...)
		length = len(transport)
	}
	if len(transport) < header.BTHLen {
		return nil, ErrEvent
	}
	if e.RoCE == 1 {
		m.version1(p, a, b, transport, length)
	} else {
		m.version2(p, a, b, transport, length)
	}
	return p, nil
}

// ethernet begins a frame. The MAC addresses are locally administered ones, made of the IP
// addresses.
func ethernet(src, dst netip.Addr, typ uint16) []byte {
	mac := func(a netip.Addr) (m [6]byte) {
		ip := a.As16()
		m[0] = 0x02
		copy(m[2:], ip[12:])
		return m
	}
	b := make(header.Ethernet, header.EthernetLen)
	b.Encode(&header.EthernetFields{Dst: mac(dst), Src: mac(src), Type: typ})
	return b
}

// segment returns a TCP segment.
func (m *Maker) segment(src, dst netip.AddrPort, payload []byte) []byte {
	const firstSeq = 1
	seq := m.take(flow{src: src, dst: dst}, firstSeq, uint32(len(payload)))
	ack := m.take(flow{src: dst, dst: src}, firstSeq, 0)
	tcp := make([]byte, tcpLen, tcpLen+len(payload))
	binary.BigEndian.PutUint16(tcp, src.Port())
	binary.BigEndian.PutUint16(tcp[2:], dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13] = tcpLen/4<<4, pushAck
	binary.BigEndian.PutUint16(tcp[14:], 0xffff) // window
	tcp = append(tcp, payload...)
	// The pseudo header has the addresses, the length and the protocol (RFC 9293, 3.1).
	sum := checksum(src.Addr().AsSlice(), checksum(dst.Addr().AsSlice(), uint32(len(tcp))+protocolTCP))
	binary.BigEndian.PutUint16(tcp[16:], fold(checksum(tcp, sum)))
	if src.Addr().Is4() {
		ip := ipv4(src.Addr(), dst.Addr(), len(tcp))
		ip[9], ip[10], ip[11] = protocolTCP, 0, 0
		binary.BigEndian.PutUint16(ip[10:], fold(checksum(ip, 0)))
		return append(append(ethernet(src.Addr(), dst.Addr(), header.EtherTypeIPv4), ip...), tcp...)
	}
	ip := ipv6(src.Addr(), dst.Addr(), len(tcp))
	ip[6] = protocolTCP
	return append(append(ethernet(src.Addr(), dst.Addr(), header.EtherTypeIPv6), ip...), tcp...)
}

func ipv4(src, dst netip.Addr, n int) header.IPv4 {
	b := make(header.IPv4, header.IPv4Len)
	b.Encode(&header.IPv4Fields{TotalLen: uint16(header.IPv4Len + n), TTL: ttl, Src: src.As4(), Dst: dst.As4()})
	return b
}

func ipv6(src, dst netip.Addr, n int) header.IPv6 {
	b := make(header.IPv6, header.IPv6Len)
	b.Encode(&header.IPv6Fields{PayloadLen: uint16(n), HopLimit: ttl, Src: src.As16(), Dst: dst.As16()})
	return b
}

// checksum adds b to the sum of 16-bit words of the Internet protocols.
func checksum(b []byte, sum uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum&0xffff + sum>>16
}

func fold(sum uint32) uint16 {
	sum = sum&0xffff + sum>>16
	return ^uint16(sum + sum>>16)
}

// version2 makes a packet of RoCE version 2. transport are the first bytes of length, from the
// BTH to the end of the pad.
func (m *Maker) version2(p *decode.Packet, src, dst netip.Addr, transport []byte, length int) {
	n := header.UDPLen + length + header.ICRCLen
	udp := make(header.UDP, header.UDPLen)
	udp.Encode(&header.UDPFields{SrcPort: sourcePort, DstPort: header.UDPPortRoCE, Len: uint16(n)})
	bth := transport[:header.BTHLen]
	var icrc header.ICRC
	if src.Is4() {
		ip := ipv4(src, dst, n)
		icrc = m.check.V2IPv4(ip, udp, bth)
		p.Data = append(ethernet(src, dst, header.EtherTypeIPv4), ip...)
	} else {
		ip := ipv6(src, dst, n)
		icrc = m.check.V2IPv6(ip, udp, bth)
		p.Data = append(ethernet(src, dst, header.EtherTypeIPv6), ip...)
	}
	p.Data = append(p.Data, udp...)
	finish(p, icrc, transport, length)
}

// version1 makes a packet of RoCE version 1.
func (m *Maker) version1(p *decode.Packet, src, dst netip.Addr, transport []byte, length int) {
	grh := make(header.GRH, header.GRHLen)
	grh.Encode(&header.GRHFields{PayloadLen: uint16(length + header.ICRCLen), HopLimit: 1, SGID: src.As16(), DGID: dst.As16()})
	icrc := m.check.V1(grh, transport[:header.BTHLen])
	p.Data = append(ethernet(src, dst, header.EtherTypeRoCE), grh...)
	finish(p, icrc, transport, length)
}

// finish adds the transport packet, and the ICRC if the packet is complete.
func finish(p *decode.Packet, icrc header.ICRC, transport []byte, length int) {
	p.Length = len(p.Data) + length + header.ICRCLen
	p.Data = append(p.Data, transport...)
	if len(transport) == length {
		p.Data = icrc.Add(transport[header.BTHLen:]).Append(p.Data)
	}
}
