// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"net/netip"

	"smcr/rdmaverbs/softroce/header"
)

const (
	etherTypeQinQ = 0x88a8 // IEEE 802.1ad
	maxTags       = 4
	maxExtensions = 4 // of an IPv6 header

	protocolTCP = 6

	sllLen  = 16
	sll2Len = 20

	flagsFragment = 0x3fff // IPv4: more fragments, or not the first
)

// Packet decodes one packet. Packets of other protocols are no events.
func (d *Decoder) Packet(p *Packet) {
	d.frame = p.Frame
	b := p.Data
	var typ uint16
	switch p.Link {
	case Ethernet:
		if len(b) < header.EthernetLen {
			return
		}
		typ, b = binary.BigEndian.Uint16(b[12:]), b[header.EthernetLen:]
		for range maxTags {
			if typ != header.EtherTypeVLAN && typ != etherTypeQinQ || len(b) < header.VLANTagLen {
				break
			}
			typ, b = binary.BigEndian.Uint16(b[2:]), b[header.VLANTagLen:]
		}
	case LinuxSLL:
		if len(b) < sllLen {
			return
		}
		typ, b = binary.BigEndian.Uint16(b[14:]), b[sllLen:]
	case LinuxSLL2:
		if len(b) < sll2Len {
			return
		}
		typ, b = binary.BigEndian.Uint16(b), b[sll2Len:]
	case RawIP:
		if len(b) == 0 {
			return
		}
		typ = header.EtherTypeIPv4
		if b[0]>>4 == 6 {
			typ = header.EtherTypeIPv6
		}
	}
	switch typ {
	case header.EtherTypeIPv4:
		d.ipv4(p, b)
	case header.EtherTypeIPv6:
		d.ipv6(p, b)
	case header.EtherTypeRoCE:
		d.rocev1(p, b)
	}
}

// datagram is the payload of an IP packet: what was captured of it, and its length.
type datagram struct {
	src, dst netip.Addr
	ip       []byte // the header
	data     []byte
	length   int
}

func (d *Decoder) ipv4(p *Packet, b []byte) {
	if len(b) < header.IPv4Len {
		return
	}
	ip := header.IPv4(b)
	n, total := ip.HeaderLen(), int(ip.TotalLen())
	if b[0]>>4 != 4 || n < header.IPv4Len || n > len(b) || total < n || binary.BigEndian.Uint16(b[6:])&flagsFragment != 0 {
		return
	}
	d.ip(p, ip.Protocol(), datagram{ip.Src(), ip.Dst(), b[:n], b[n:min(total, len(b))], total - n})
}

func (d *Decoder) ipv6(p *Packet, b []byte) {
	if len(b) < header.IPv6Len || b[0]>>4 != 6 {
		return
	}
	ip := header.IPv6(b)
	g := datagram{ip.Src(), ip.Dst(), b[:header.IPv6Len], b[header.IPv6Len:], int(ip.PayloadLen())}
	g.data = g.data[:min(len(g.data), g.length)]
	next := ip.NextHeader()
	for range maxExtensions {
		if next != 0 && next != 43 && next != 60 { // hop-by-hop, routing, destination options
			break
		}
		if len(g.data) < 8 {
			return
		}
		n := 8 + 8*int(g.data[1])
		if n > len(g.data) {
			return
		}
		next, g.data, g.length = g.data[0], g.data[n:], g.length-n
	}
	d.ip(p, next, g)
}

func (d *Decoder) ip(p *Packet, protocol uint8, g datagram) {
	switch protocol {
	case protocolTCP:
		d.tcp(p, &g)
	case header.ProtocolUDP:
		if len(g.data) < header.UDPLen {
			return
		}
		udp := header.UDP(g.data[:header.UDPLen])
		if udp.DstPort() != header.UDPPortRoCE || int(udp.Len()) < header.UDPLen || int(udp.Len()) > g.length {
			return
		}
		end := min(int(udp.Len()), len(g.data))
		t := &roce{
			version: 2, src: g.src, dst: g.dst,
			data: g.data[header.UDPLen:end], length: int(udp.Len()) - header.UDPLen,
		}
		switch {
		case g.src.Is4() && len(g.ip) == header.IPv4Len:
			t.icrc = func(bth []byte) header.ICRC { return d.check.V2IPv4(header.IPv4(g.ip), udp, bth) }
		case g.src.Is6():
			t.icrc = func(bth []byte) header.ICRC { return d.check.V2IPv6(header.IPv6(g.ip), udp, bth) }
		}
		d.train(p.Time, t)
	}
}

func (d *Decoder) rocev1(p *Packet, b []byte) {
	if len(b) < header.GRHLen {
		return
	}
	grh := header.GRH(b[:header.GRHLen])
	if grh.Version() != 6 || grh.NextHeader() != header.NextHeaderIBA {
		return
	}
	n := int(grh.PayloadLen())
	d.roce(p.Time, &roce{
		version: 1, src: gidAddr(grh.SGID()), dst: gidAddr(grh.DGID()),
		data: b[header.GRHLen:][:min(n, len(b)-header.GRHLen)], length: n,
		icrc: func(bth []byte) header.ICRC { return d.check.V1(grh, bth) },
	})
}

// gidAddr returns a GID as an address. One that maps an IPv4 address gives that address.
func gidAddr(gid [16]byte) netip.Addr { return netip.AddrFrom16(gid).Unmap() }
