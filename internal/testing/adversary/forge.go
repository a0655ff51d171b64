// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"
)

// Forger sends Ethernet frames with any content from the first netdev of a host. It needs
// CAP_NET_RAW. It is safe for concurrent use.
type Forger struct {
	fd  int
	mac [6]byte

	mu  sync.Mutex
	pre header.Prefix
}

// NewForger opens the packet socket of a host. The caller closes it.
func NewForger(h *netnstest.Host) (*Forger, error) {
	f := &Forger{mac: [6]byte(h.Links[0].MAC)}
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		var ifr *unix.Ifreq
		if ifr, err = unix.NewIfreq(h.Links[0].Name); err == nil {
			err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: int(ifr.Uint32())})
		}
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		f.fd = fd
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("adversary: packet socket: %w", err)
	}
	return f, nil
}

// Close closes the socket.
func (f *Forger) Close() error { return unix.Close(f.fd) }

// send sends an IPv4 packet to a host.
func (f *Forger) send(to *netnstest.Host, packet []byte) error {
	b := make([]byte, header.EthernetLen, header.EthernetLen+len(packet))
	header.Ethernet(b).Encode(&header.EthernetFields{Dst: [6]byte(to.Links[0].MAC), Src: f.mac, Type: header.EtherTypeIPv4})
	if _, err := unix.Write(f.fd, append(b, packet...)); err != nil {
		return fmt.Errorf("adversary: send a frame: %w", err)
	}
	return nil
}

// RoCE sends a packet of RoCE version 2 that seems to come from an address and UDP port of
// another host.
func (f *Forger) RoCE(from netip.AddrPort, to *netnstest.Host, pkt *Packet) error {
	dst := to.Links[0].IPv4
	f.mu.Lock()
	data := pkt.datagram(&f.pre, from, dst)
	f.mu.Unlock()
	b := make([]byte, header.IPv4Len+header.UDPLen)
	header.IPv4(b).Encode(&header.IPv4Fields{
		TotalLen: uint16(len(b) + len(data)), TTL: 64, Src: from.Addr().As4(), Dst: dst.As4(),
	})
	// A checksum of 0 says that there is none (RFC 768).
	header.UDP(b[header.IPv4Len:]).Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: header.UDPPortRoCE, Len: uint16(header.UDPLen + len(data))})
	return f.send(to, append(b, data...))
}

// Segment is a TCP segment without data.
type Segment struct {
	From, To netip.AddrPort
	Seq, Ack uint32
	Flags    byte // see the constants of RFC 9293, section 3.1: FIN 1, SYN 2, RST 4, ACK 16
	// Announces says that it has the option of SMC.
	Announces bool
}

// Flags of [Segment].
const (
	SYN = 1 << 1 // it begins a connection
	ACK = 1 << 4 // it acknowledges
)

// smcOption is the TCP option of SMC, with two bytes that are none.
var smcOption = []byte{254, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1}

// TCP sends a TCP segment to a host.
func (f *Forger) TCP(to *netnstest.Host, s *Segment) error {
	const tcpLen = 20
	b := make([]byte, header.IPv4Len+tcpLen, header.IPv4Len+tcpLen+len(smcOption))
	if s.Announces {
		b = append(b, smcOption...)
	}
	src, dst := s.From.Addr().As4(), s.To.Addr().As4()
	header.IPv4(b).Encode(&header.IPv4Fields{TotalLen: uint16(len(b)), TTL: 64, Src: src, Dst: dst})
	setProtocol(b, unix.IPPROTO_TCP)
	t := b[header.IPv4Len:]
	binary.BigEndian.PutUint16(t, s.From.Port())
	binary.BigEndian.PutUint16(t[2:], s.To.Port())
	binary.BigEndian.PutUint32(t[4:], s.Seq)
	binary.BigEndian.PutUint32(t[8:], s.Ack)
	t[12], t[13] = byte(len(t)/4<<4), s.Flags
	binary.BigEndian.PutUint16(t[14:], 0xffff) // window
	pseudo := append(append(src[:], dst[:]...), 0, unix.IPPROTO_TCP, 0, byte(len(t)))
	binary.BigEndian.PutUint16(t[16:], checksum(append(pseudo, t...)))
	return f.send(to, b)
}

// Nothing sends a frame that no protocol of a host takes.
func (f *Forger) Nothing(to *netnstest.Host) error {
	b := make([]byte, 64)
	header.Ethernet(b).Encode(&header.EthernetFields{Dst: [6]byte(to.Links[0].MAC), Src: f.mac, Type: experimental})
	if _, err := unix.Write(f.fd, b); err != nil {
		return fmt.Errorf("adversary: send a frame: %w", err)
	}
	return nil
}

// experimental is an Ethertype for experiments (IEEE Std 802, section 9.2.4).
const experimental = 0x88b5

// Unreachable is what an ICMP message of type 3 says.
type Unreachable struct {
	// Code is that of ICMP: 1 host, 2 protocol, 3 port, 4 fragmentation needed.
	Code uint8
	// MTU is that of the next hop, in bytes, for code 4.
	MTU uint16
	// Protocol, Src and Dst are of the packet of the victim that could not be delivered.
	Protocol uint8
	Src, Dst netip.AddrPort
	// Seq is the TCP sequence number of that packet.
	Seq uint32
}

// ICMP sends a forged ICMP message of type 3 to a host, from a router that has the given
// address.
func (f *Forger) ICMP(router netip.Addr, to *netnstest.Host, u Unreachable) error {
	quoted := make([]byte, header.IPv4Len+8)
	header.IPv4(quoted).Encode(&header.IPv4Fields{TotalLen: 1500, TTL: 60, Src: u.Src.Addr().As4(), Dst: u.Dst.Addr().As4()})
	setProtocol(quoted, u.Protocol)
	binary.BigEndian.PutUint16(quoted[header.IPv4Len:], u.Src.Port())
	binary.BigEndian.PutUint16(quoted[header.IPv4Len+2:], u.Dst.Port())
	binary.BigEndian.PutUint32(quoted[header.IPv4Len+4:], u.Seq) // for UDP length and checksum
	icmp := make([]byte, 8, 8+len(quoted))
	icmp[0], icmp[1] = 3, u.Code
	binary.BigEndian.PutUint16(icmp[6:], u.MTU)
	icmp = append(icmp, quoted...)
	binary.BigEndian.PutUint16(icmp[2:], checksum(icmp))
	b := make([]byte, header.IPv4Len)
	header.IPv4(b).Encode(&header.IPv4Fields{TotalLen: uint16(len(b) + len(icmp)), TTL: 64, Src: router.As4(), Dst: to.Links[0].IPv4.As4()})
	setProtocol(b, unix.IPPROTO_ICMP)
	return f.send(to, append(b, icmp...))
}

// setProtocol changes the protocol of an encoded IPv4 header.
func setProtocol(b header.IPv4, protocol uint8) {
	b[9], b[10], b[11] = protocol, 0, 0
	binary.BigEndian.PutUint16(b[10:], checksum(b[:header.IPv4Len]))
}

// checksum returns the Internet checksum of b, whose length is even (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
