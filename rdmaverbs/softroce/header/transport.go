// SPDX-License-Identifier: Apache-2.0

package header

import (
	"encoding/binary"
	"errors"
)

// Errors of ParseTransport, ParseV1, ParseV2 and ParseUDPIPv6.
var (
	// ErrShort means that a packet is shorter than its headers and its pad, or
	// than a length field says.
	ErrShort = errors.New("header: packet is too short")
	// ErrOpcode means that this package does not know the opcode.
	ErrOpcode = errors.New("header: unknown opcode")
	// ErrLength means that a packet carries payload that its opcode does
	// not allow, or is not a multiple of four bytes long.
	ErrLength = errors.New("header: wrong packet length")
	// ErrFormat means that a version or protocol field is wrong.
	ErrFormat = errors.New("header: not a RoCE packet")
)

// Transport has the parts of a transport packet. They point into the parsed
// bytes. Headers that the opcode does not have are nil.
type Transport struct {
	BTH     BTH
	RETH    RETH
	AETH    AETH
	ImmDt   ImmDt
	Payload []byte // without pad
}

// ParseTransport parses a transport packet: BTH to the end of the pad, without
// ICRC. It returns ErrOpcode, ErrLength or ErrShort. With ErrOpcode and
// ErrLength, t.BTH is valid, so that the request can be answered. With
// ErrShort, t.BTH is valid if it is not nil.
func ParseTransport(b []byte) (t Transport, err error) {
	if len(b) < BTHLen {
		return t, ErrShort
	}
	t.BTH = BTH(b[:BTHLen:BTHLen])
	op := t.BTH.Opcode()
	if !op.Known() {
		return t, ErrOpcode
	}
	info := &ops[op]
	b = b[BTHLen:]
	if info.reth {
		if len(b) < RETHLen {
			return t, ErrShort
		}
		t.RETH, b = RETH(b[:RETHLen:RETHLen]), b[RETHLen:]
	}
	if info.aeth {
		if len(b) < AETHLen {
			return t, ErrShort
		}
		t.AETH, b = AETH(b[:AETHLen:AETHLen]), b[AETHLen:]
	}
	if info.immDt {
		if len(b) < ImmDtLen {
			return t, ErrShort
		}
		t.ImmDt, b = ImmDt(b[:ImmDtLen:ImmDtLen]), b[ImmDtLen:]
	}
	pad := int(t.BTH.PadCount())
	if len(b) < pad {
		return t, ErrShort
	}
	if len(b)&3 != 0 || len(b) > 0 && !info.payload {
		return t, ErrLength
	}
	t.Payload = b[: len(b)-pad : len(b)-pad]
	return t, nil
}

// ParseV1 parses the bytes after the Ethernet header of a RoCE version 1 frame.
// It uses the payload length of the GRH, not len(b), because Ethernet pads
// short frames. transport goes from the BTH to the end of the pad; icrc are the
// four bytes after it.
func ParseV1(b []byte) (grh GRH, transport, icrc []byte, err error) {
	if len(b) < GRHLen {
		return nil, nil, nil, ErrShort
	}
	grh = GRH(b[:GRHLen:GRHLen])
	if grh.Version() != 6 || grh.NextHeader() != NextHeaderIBA {
		return grh, nil, nil, ErrFormat
	}
	transport, icrc, err = splitICRC(b[GRHLen:], int(grh.PayloadLen()))
	return grh, transport, icrc, err
}

// ParseV2 parses the payload of a UDP datagram to port 4791. transport goes
// from the BTH to the end of the pad; icrc are the four bytes after it. It
// returns ErrShort or ErrLength.
func ParseV2(udpPayload []byte) (transport, icrc []byte, err error) {
	return splitICRC(udpPayload, len(udpPayload))
}

// ParseUDPIPv4 does the same as [ParseUDPIPv6] for IPv4. It skips IP options, and returns
// ErrFormat for a fragment.
func ParseUDPIPv4(b []byte) (ip IPv4, udp UDP, payload []byte, err error) {
	const fragmented = 0x3fff // more fragments, or not the first
	if len(b) < IPv4Len {
		return nil, nil, nil, ErrShort
	}
	ip = IPv4(b)
	n, total := ip.HeaderLen(), int(ip.TotalLen())
	if b[0]>>4 != 4 || n < IPv4Len || ip.Protocol() != ProtocolUDP || binary.BigEndian.Uint16(b[6:])&fragmented != 0 {
		return nil, nil, nil, ErrFormat
	}
	if total > len(b) || total < n+UDPLen {
		return nil, nil, nil, ErrShort
	}
	ip, udp = ip[:n], UDP(b[n:n+UDPLen])
	switch {
	case int(udp.Len()) != total-n:
		return nil, nil, nil, ErrLength
	case udp.DstPort() != UDPPortRoCE:
		return nil, nil, nil, ErrFormat
	}
	return ip, udp, b[n+UDPLen : total], nil
}

// ParseUDPIPv6 parses the bytes after the Ethernet header of a frame with RoCE
// version 2 over IPv6 without extension headers. It uses the lengths in the
// headers, which must agree, not len(b). payload are the bytes after the UDP
// header: one datagram, or several that the kernel has joined. It does not
// check the UDP checksum, because the ICRC covers more. It returns ErrShort,
// ErrFormat or ErrLength.
func ParseUDPIPv6(b []byte) (ip IPv6, udp UDP, payload []byte, err error) {
	if len(b) < IPv6Len+UDPLen {
		return nil, nil, nil, ErrShort
	}
	ip = IPv6(b[:IPv6Len:IPv6Len])
	udp = UDP(b[IPv6Len : IPv6Len+UDPLen : IPv6Len+UDPLen])
	if ip[0]>>4 != 6 || ip.NextHeader() != ProtocolUDP || udp.DstPort() != UDPPortRoCE {
		return ip, udp, nil, ErrFormat
	}
	n := int(udp.Len())
	if n != int(ip.PayloadLen()) {
		return ip, udp, nil, ErrLength
	}
	if n < UDPLen || IPv6Len+n > len(b) {
		return ip, udp, nil, ErrShort
	}
	return ip, udp, b[IPv6Len+UDPLen : IPv6Len+n : IPv6Len+n], nil
}

func splitICRC(b []byte, n int) (transport, icrc []byte, err error) {
	if n > len(b) || n < BTHLen+ICRCLen {
		return nil, nil, ErrShort
	}
	if n&3 != 0 {
		return nil, nil, ErrLength
	}
	end := n - ICRCLen
	return b[:end:end], b[end:n:n], nil
}
