// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	ethLen  = 14
	ipv4Len = 20
	ipv6Len = 40
)

// For whom a frame is: the second byte of its destination says that to the program at the device of
// held packets. The last four are the index of the device by which it goes.
const (
	forProgram = 1 + iota
	forStack   // for inner or outer
	forPeer
)

// errFrame is the error of a frame that is no TCP packet.
var errFrame = errors.New("divert: not a TCP packet")

// frame is an Ethernet frame with one TCP packet, as the device of held packets has it: all
// checksums are right.
type frame struct {
	b       []byte // begins with the Ethernet header and ends with the payload
	tcp     int    // offset of the TCP header
	payload int    // offset of the payload
	tuple   Tuple  // of the host that receives it
	segment
}

// parseFrame parses b, which the frame keeps. The error is errFrame or errSegment.
func parseFrame(b []byte) (frame, error) {
	if len(b) < ethLen {
		return frame{}, errFrame
	}
	f := frame{b: b}
	ip := b[ethLen:]
	var from, to netip.Addr
	switch binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_IP:
		if len(ip) < ipv4Len || ip[0]>>4 != 4 || ip[9] != unix.IPPROTO_TCP || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return frame{}, errFrame
		}
		header, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if header < ipv4Len || total < header || total > len(ip) {
			return frame{}, errFrame
		}
		from, to = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		f.tcp, ip = ethLen+header, ip[:total]
	case unix.ETH_P_IPV6:
		if len(ip) < ipv6Len || ip[0]>>4 != 6 || ip[6] != unix.IPPROTO_TCP {
			return frame{}, errFrame
		}
		total := ipv6Len + int(binary.BigEndian.Uint16(ip[4:]))
		if total > len(ip) {
			return frame{}, errFrame
		}
		from, to = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		f.tcp, ip = ethLen+ipv6Len, ip[:total]
	default:
		return frame{}, errFrame
	}
	f.b = b[:ethLen+len(ip)]
	s, n, err := parseSegment(f.b[f.tcp:])
	if err != nil {
		return frame{}, err
	}
	f.segment, f.payload = s, f.tcp+n
	f.tuple = Tuple{
		Local:  netip.AddrPortFrom(to, binary.BigEndian.Uint16(f.b[f.tcp+2:])),
		Remote: netip.AddrPortFrom(from, binary.BigEndian.Uint16(f.b[f.tcp:])),
	}
	return f, nil
}

// hasPayload reports whether the packet has data, or the end of the stream.
func (f *frame) hasPayload() bool { return len(f.b) > f.payload || f.flags&flagFIN != 0 }

// whoLen is the beginning of a frame that [frame.to] writes, the destination's MAC address in the frames of others.
const whoLen = 6

// to returns the frame for the program at the device of held packets. It may be called while others call header, which does
// not read what it writes: a packet is let go again while its connection is reset.
func (f *frame) to(whom byte, dev uint32) []byte {
	f.b[0], f.b[1] = 2, whom
	binary.BigEndian.PutUint32(f.b[2:], dev)
	return f.b
}

// header returns a copy of the packet with another sequence number and other flags, and nothing behind
// its headers.
func (f *frame) header(seq uint32, flags byte) *frame {
	a := *f
	a.b = make([]byte, f.payload)
	copy(a.b[whoLen:], f.b[whoLen:])
	a.seq, a.flags = seq, flags
	ip, tcp := a.b[ethLen:a.tcp], a.b[a.tcp:]
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[13] = flags
	var pseudo uint32
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(tcp)))
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip, 0))
		pseudo = added(ip[12:20], 0)
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(tcp)))
		pseudo = added(ip[8:40], 0)
	}
	binary.BigEndian.PutUint16(tcp[16:], 0)
	binary.BigEndian.PutUint16(tcp[16:], checksum(tcp, pseudo+unix.IPPROTO_TCP+uint32(len(tcp))))
	return &a
}

// question returns a packet of the other end with a sequence number that is over, and without options: a timestamp could be an old one, and
// such a packet gets no answer.
func (f *frame) question(seq uint32) *frame {
	bare := *f
	bare.payload = f.tcp + tcpLen
	bare.b = make([]byte, bare.payload)
	copy(bare.b[whoLen:], f.b[whoLen:])
	bare.b[f.tcp+12] = tcpLen / 4 << 4
	a := bare.header(seq, flagACK)
	at, n := ethLen+12, 4
	if a.b[ethLen]>>4 == 6 {
		at, n = ethLen+8, 16
	}
	swap := func(at, n int) {
		for i := at; i < at+n; i++ {
			a.b[i], a.b[i+n] = a.b[i+n], a.b[i]
		}
	}
	swap(at, n)
	swap(a.tcp, 2) // the checksums stay right: sums have no order
	a.tuple = f.tuple.reverse()
	return a
}

// added adds the words of b to a sum of the Internet checksum (RFC 1071).
func added(b []byte, sum uint32) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// checksum returns the Internet checksum of b, beside a sum. b is a header, so no carry is lost.
func checksum(b []byte, sum uint32) uint16 {
	sum = added(b, sum)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
