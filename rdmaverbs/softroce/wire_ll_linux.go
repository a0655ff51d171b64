// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// llRingBlocks is the size of the ring for link-local packets: one peer rarely
// has more outstanding than what a queue pair's window is.
const llRingBlocks = 64

// llPort carries RoCE version 2 between link-local GIDs past the IP stack, as
// an RNIC does. Such a GID tells the MAC, or the path does, so that a packet
// needs neither route nor neighbour discovery; and the default GID is in the
// GID table whether or not the netdev has that address. Hosts with addresses
// that do not show the MAC (RFC 7217), or without IPv6, have it not.
//
// Packets always leave here. They arrive here as long as the netdev lacks the
// address; else at the UDP socket, like all others. While they arrive here, the
// UDP socket must not have the kernel join packets: these are longer than the
// ring's slots.
type llPort struct {
	*packetPort

	mu        sync.Mutex
	start     func() // begins the reception
	listening bool
	to        rdmaverbs.GID // what passes the filter; zero for nothing
}

// newLLPort opens the sockets in the calling thread's network namespace.
func newLLPort(i *netdevInfo) (*llPort, error) {
	p, err := newPacketPort(i)
	if err != nil {
		return nil, err
	}
	p.parse = (*packetPort).parseV2
	// The kernel is to compute the UDP checksum.
	if err := unix.SetsockoptInt(p.tx, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		p.close()
		return nil, fmt.Errorf("softroce: leave UDP checksums to the kernel: %w", err)
	}
	return &llPort{packetPort: p}, nil
}

// started tells what begins the reception, once the wire is started.
func (l *llPort) started(start func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start = start
	if l.listening {
		start()
	}
}

// follow makes the port receive what the UDP socket does not. udp may be nil.
func (l *llPort) follow(self *identity, udp *socket) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var to rdmaverbs.GID
	if self.foreign {
		to = self.def
	}
	if to == l.to || to.IsZero() && !l.listening {
		return nil
	}
	if udp != nil {
		join := 0
		if to.IsZero() {
			join = 1
		}
		_ = unix.SetsockoptInt(udp.fd, unix.SOL_UDP, unix.UDP_GRO, join)
	}
	if err := l.filter(to); err != nil {
		return err
	}
	l.to = to
	if l.listening {
		return nil
	}
	if err := l.listen(header.EtherTypeIPv6, llRingBlocks); err != nil {
		return err
	}
	l.listening = true
	if l.start != nil {
		l.start()
	}
	return nil
}

// filter lets only RoCE packets to that address pass, none for the zero GID.
func (l *llPort) filter(to rdmaverbs.GID) error {
	const (
		ip      = header.EthernetLen
		nextHdr = ip + 6
		dst     = ip + 24
		dstPort = ip + header.IPv6Len + 2
	)
	load := func(size uint16, at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_ABS | size, K: at}
	}
	var code []unix.SockFilter
	if !to.IsZero() {
		equal := func(k uint32) {
			code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k})
		}
		code = append(code, load(unix.BPF_B, nextHdr))
		equal(header.ProtocolUDP)
		code = append(code, load(unix.BPF_H, dstPort))
		equal(header.UDPPortRoCE)
		for i := uint32(0); i < 16; i += 4 {
			code = append(code, load(unix.BPF_W, dst+i))
			equal(binary.BigEndian.Uint32(to[i:]))
		}
		code = append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 18})
	}
	code = append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K})
	// What is not equal goes to the last instruction, which takes nothing.
	for i := range code {
		if code[i].Code&7 == unix.BPF_JMP {
			code[i].Jf = uint8(len(code) - 2 - i)
		}
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: unsafe.SliceData(code)}
	if err := unix.SetsockoptSockFprog(l.sock.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		return fmt.Errorf("softroce: filter packets to %v: %w", to, err)
	}
	return nil
}

// parseV2 checks the frame in a slot, as parseV1 does.
func (p *packetPort) parseV2(s []byte, rx *rxBatch, self *identity, c *wireCounters) (in inbound, drop *atomic.Uint64) {
	eth, b, drop := p.frame(s, c)
	if drop != nil {
		return in, drop
	}
	if eth.Type() != header.EtherTypeIPv6 {
		return in, &c.dropFormat
	}
	ip, udp, data, icrc, err := header.ParseV2IPv6(b)
	if err != nil {
		return in, c.parseDrop(err)
	}
	in = inbound{typ: rdmaverbs.RoCEv2, sgid: ip.Src().As16(), dgid: ip.Dst().As16(), smac: eth.Src(), data: data}
	if drop := c.checkGIDs(in.sgid, in.dgid, self.v2); drop != nil {
		return in, drop
	}
	rx.pre.UseIPv6((*[16]byte)(&in.sgid), (*[16]byte)(&in.dgid), udp.SrcPort())
	if rx.pre.Start(len(data)+header.ICRCLen).AddBTH(data) != header.ReadICRC(icrc) {
		return in, &c.dropICRC
	}
	return in, c.checkBTH(header.BTH(data))
}

// past reports whether packets to dst go past the IP stack.
func (w *netWire) past(dst *path) bool {
	return w.ll != nil && dst.typ == rdmaverbs.RoCEv2 && isLinkLocal(dst.dgid) && (w.loopback || len(dst.dmac) == 6)
}

func isLinkLocal(g rdmaverbs.GID) bool { return g[0] == 0xfe && g[1]&0xc0 == 0x80 }

// vnetHdrLen is the length of struct virtio_net_hdr (linux/virtio_net.h), which
// goes before each packet to be sent: flags, segmentation type, header length,
// segment size, begin of the checksummed bytes, and place of the sum in these,
// in host byte order but for devices of virtio 1.0.
const vnetHdrLen = 10

const vnetNeedsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM

// sendLL sends up to ioBatch packets as RoCE version 2 frames over IPv6.
func (w *netWire) sendLL(tx *txBatch, dst *path, pkts []packet) error {
	eth := header.EthernetFields{Type: header.EtherTypeIPv6}
	// On lo source and destination stay zero: see loopbackMAC.
	if !w.loopback {
		eth.Src = w.self.Load().mac
		copy(eth.Dst[:], dst.dmac)
	}
	ip := header.IPv6Fields{HopLimit: dst.hopLimit, Src: dst.sgid, Dst: dst.dgid}
	if ip.HopLimit == 0 {
		ip.HopLimit = defaultHopLimit
	}
	udp := header.UDPFields{SrcPort: dst.srcPort, DstPort: header.UDPPortRoCE}
	const (
		atIP  = vnetHdrLen + header.EthernetLen
		atUDP = atIP + header.IPv6Len
		atBTH = atUDP + header.UDPLen
	)
	tx.pre.UseIPv6((*[16]byte)(&dst.sgid), (*[16]byte)(&dst.dgid), udp.SrcPort)
	var bytes int
	for i := range pkts {
		p := &pkts[i]
		n := transportLen(p)
		bytes += n
		head := tx.head[i][:]
		clear(head[:vnetHdrLen])
		head[0] = vnetNeedsCsum
		binary.NativeEndian.PutUint16(head[6:], atUDP-vnetHdrLen)
		binary.NativeEndian.PutUint16(head[8:], 6)
		header.Ethernet(head[vnetHdrLen:]).Encode(&eth)
		udp.Len = uint16(header.UDPLen + n + header.ICRCLen)
		ip.PayloadLen = udp.Len
		ip6 := header.IPv6(head[atIP:atUDP])
		ip6.Encode(&ip)
		udp.Checksum = pseudoSum(ip6)
		header.UDP(head[atUDP:atBTH]).Encode(&udp)
		end := atBTH + copy(head[atBTH:], p.hdr)

		crc := tx.pre.Start(n + header.ICRCLen).AddBTH(p.hdr).Add(p.payload[0]).Add(p.payload[1])
		tx.fill(i, head[:end], p, p.appendTail(tx.last[i][:0], crc))
	}
	err := tx.flush(w.ll.tx, len(pkts), &w.stats)
	tx.clear(len(pkts))
	w.stats.txBytes.Add(uint64(bytes))
	return err
}

// pseudoSum is the sum over the pseudo-header of UDP (RFC 8200, section 8.1),
// to which the kernel adds the rest.
func pseudoSum(ip header.IPv6) uint16 {
	sum := uint32(header.ProtocolUDP) + uint32(ip.PayloadLen())
	for i := 8; i < header.IPv6Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	return uint16(sum + sum>>16)
}
