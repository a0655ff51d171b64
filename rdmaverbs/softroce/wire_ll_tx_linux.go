// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// bypassesIP reports whether packets to dst are sent as frames, without the IP
// stack.
func (w *netWire) bypassesIP(dst *path) bool {
	return w.ll != nil && dst.typ == rdmaverbs.RoCEv2 && isLinkLocal(dst.dgid) && (w.loopback || len(dst.dmac) == 6)
}

func isLinkLocal(g smc.GID) bool { return g[0] == 0xfe && g[1]&0xc0 == 0x80 }

// vnetHdrLen is the length in bytes of struct virtio_net_hdr
// (linux/virtio_net.h), which is before each packet to be sent. Its fields are
// flags, segmentation type, header length, segment size, start of the bytes
// under the checksum, and offset of the checksum in these. They are in host
// byte order.
const vnetHdrLen = 10

const (
	vnetNeedsCsum = 1    // VIRTIO_NET_HDR_F_NEEDS_CSUM
	vnetGSOUDP    = 5    // VIRTIO_NET_HDR_GSO_UDP_L4
	vnetGSOECN    = 0x80 // VIRTIO_NET_HDR_GSO_ECN
)

// Offsets in the headers before the BTH of a link-local packet.
const (
	llAtIP  = vnetHdrLen + header.EthernetLen
	llAtUDP = llAtIP + header.IPv6Len
	llAtBTH = llAtUDP + header.UDPLen
)

// maxLLBytes is the largest number of bytes of datagrams in one frame that the
// kernel splits: it must fit an IPv6 packet and the buffer of a reader.
const maxLLBytes = min(65535-header.UDPLen, udpBuf-llAtBTH)

// sendLL sends up to ioBatch packets as RoCE version 2 frames over IPv6:
// several packets in one frame, if the kernel or the netdev can split it. port is the
// UDP source port.
func (w *netWire) sendLL(tx *txBatch, port uint16, dst *path, pkts []packet) error {
	var bytes int
	for i := range pkts {
		bytes += transportLen(&pkts[i])
	}
	w.stats.txBytes.Add(uint64(bytes))
	err := w.sendLLFrames(tx, port, dst, pkts, !w.ll.noGSO.Load())
	if err == errNoGSO {
		// The packets that were sent before are sent again: see sendV2.
		if err = w.sendLLFrames(tx, port, dst, pkts, false); err == nil && tx.dropped == 0 {
			w.ll.noGSO.Store(true)
		}
	}
	return err
}

func (w *netWire) sendLLFrames(tx *txBatch, port uint16, dst *path, pkts []packet, gso bool) error {
	self := w.self.Load()
	var same [llAtBTH]byte
	w.llHeaders(&same, self, port, dst)
	tx.pre.UseIPv6((*[16]byte)(&dst.sgid), (*[16]byte)(&dst.dgid), port)

	msgs := 0
	for i := 0; i < len(pkts); {
		n := 1
		// The kernel does not check the length of the packets in a frame. The
		// netdev would silently drop those that exceed its MTU.
		if gso && header.IPv6Len+header.UDPLen+datagramLen(&pkts[i]) <= self.mtu {
			n = segments(pkts[i:], maxLLBytes)
		}
		tx.frame(msgs, i, pkts[i:i+n], &same)
		msgs++
		i += n
	}
	err := tx.flush(w.ll.tx, msgs, &w.stats)
	tx.clear(len(pkts))
	return err
}

// llHeaders writes the headers that all frames to dst have, without lengths and
// checksums.
func (w *netWire) llHeaders(same *[llAtBTH]byte, self *identity, port uint16, dst *path) {
	same[0] = vnetNeedsCsum
	binary.NativeEndian.PutUint16(same[2:], llAtBTH-vnetHdrLen)
	binary.NativeEndian.PutUint16(same[6:], llAtUDP-vnetHdrLen)
	binary.NativeEndian.PutUint16(same[8:], 6)
	eth := header.EthernetFields{Type: header.EtherTypeIPv6}
	// On lo, source and destination are zero: see loopbackMAC.
	if !w.loopback {
		eth.Src = self.mac
		copy(eth.Dst[:], dst.dmac)
	}
	header.Ethernet(same[vnetHdrLen:]).Encode(&eth)
	ip := header.IPv6Fields{HopLimit: dst.hopLimit, Src: dst.sgid, Dst: dst.dgid}
	if ip.HopLimit == 0 {
		ip.HopLimit = defaultHopLimit
	}
	header.IPv6(same[llAtIP:]).Encode(&ip)
	header.UDP(same[llAtUDP:]).Encode(&header.UDPFields{SrcPort: port, DstPort: header.UDPPortRoCE})
}

// frame makes message m, a frame with pkts. If they are several, the kernel
// splits it.
func (tx *txBatch) frame(m, first int, pkts []packet, same *[llAtBTH]byte) {
	head := append(tx.head[first][:0], same[:]...)
	n := header.UDPLen
	for i := range pkts {
		n += datagramLen(&pkts[i])
	}
	if len(pkts) > 1 {
		head[1] = vnetGSOUDP
		binary.NativeEndian.PutUint16(head[4:], uint16(datagramLen(&pkts[0])))
	}
	ip := header.IPv6(head[llAtIP:llAtUDP])
	ip.SetPayloadLen(uint16(n))
	header.UDP(head[llAtUDP:]).SetLen(uint16(n))
	header.UDP(head[llAtUDP:]).SetChecksum(pseudoSum(ip))
	tx.pieces(m, first, pkts, head, false)
}

// pseudoSum returns the checksum of the pseudo-header of UDP (RFC 8200, section
// 8.1). The kernel adds the rest.
func pseudoSum(ip header.IPv6) uint16 {
	sum := uint32(header.ProtocolUDP) + uint32(ip.PayloadLen())
	for i := 8; i < header.IPv6Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	return uint16(sum + sum>>16)
}
