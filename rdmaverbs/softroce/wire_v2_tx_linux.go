// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"unsafe"

	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"

	"golang.org/x/sys/unix"
)

// Limits of UDP_SEGMENT: segments in one message (Linux UDP_MAX_SEGMENTS, 64 in
// older kernels), and bytes, from the largest IPv4 packet.
const (
	maxSegs     = 64
	maxSegBytes = 65535 - header.IPv4Len - header.UDPLen
)

// v2Target has the socket, address and control data for a batch of version 2
// packets.
type v2Target struct {
	fd      int
	family  int
	name    unsafe.Pointer
	nameLen uint32
	hops    int32
	pktinfo [20]byte // struct in_pktinfo or in6_pktinfo
}

// sendV2 sends up to ioBatch packets as RoCE version 2 datagrams, with the sockets of
// from and over the netdev of w. The kernel
// makes the IP and UDP headers. The same headers are computed here for the
// ICRC. If possible, one message carries many packets of the same size, and the
// kernel or the netdev splits it (UDP_SEGMENT).
func (w *netWire) sendV2(tx *txBatch, from *sourcePorts, dst *path, pkts []packet) error {
	t := &tx.v2
	if !w.target(tx, t, from, dst) {
		w.stats.txLost.Add(uint64(len(pkts)))
		return nil
	}
	var bytes int
	for i := range pkts {
		bytes += transportLen(&pkts[i])
	}
	w.stats.txBytes.Add(uint64(bytes))
	err := w.sendTo(tx, t, pkts, !w.v2.noGSO.Load())
	if err == errNoGSO {
		// Packets that were sent before the error are sent again; the peer
		// ignores duplicates. The netdev does not support segmentation only if
		// all packets can be sent one by one. If they cannot, they may have
		// become too long for the MTU.
		if err = w.sendTo(tx, t, pkts, false); err == nil && tx.dropped == 0 {
			w.v2.noGSO.Store(true)
		}
	}
	return err
}

// sendTo sends packets to t, several in one message if gso is true.
func (w *netWire) sendTo(tx *txBatch, t *v2Target, pkts []packet, gso bool) error {
	msgs := 0
	for i := 0; i < len(pkts); {
		n := 1
		if gso {
			n = segments(pkts[i:], maxSegBytes)
		}
		tx.message(msgs, i, pkts[i:i+n], t)
		msgs++
		i += n
	}
	err := tx.flush(t.fd, msgs, &w.stats)
	tx.clear(len(pkts))
	return err
}

// target sets t for dst. It returns false if dst cannot be reached at all.
func (w *netWire) target(tx *txBatch, t *v2Target, from *sourcePorts, dst *path) bool {
	if w.v2 == nil || from == nil {
		return false
	}
	src, to := smc.GID(dst.sgid).Addr(), smc.GID(dst.dgid).Addr()
	if src.Is4() != to.Is4() {
		return false
	}
	t.hops = int32(dst.hopLimit)
	if t.hops == 0 {
		t.hops = defaultHopLimit
	}
	if to.Is4() {
		t.family = udp4
		tx.name4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: htons(header.UDPPortRoCE), Addr: to.As4()}
		t.name, t.nameLen = unsafe.Pointer(&tx.name4), unix.SizeofSockaddrInet4
		// ipi_ifindex, then ipi_spec_dst, which is the source address.
		t.pktinfo = [20]byte{}
		binary.NativeEndian.PutUint32(t.pktinfo[:4], uint32(w.index))
		copy(t.pktinfo[4:8], dst.sgid[12:])
	} else {
		t.family = udp6
		tx.name6 = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: htons(header.UDPPortRoCE), Addr: dst.dgid}
		if to.IsLinkLocalUnicast() {
			tx.name6.Scope_id = uint32(w.index)
		}
		t.name, t.nameLen = unsafe.Pointer(&tx.name6), unix.SizeofSockaddrInet6
		copy(t.pktinfo[:16], dst.sgid[:])
		binary.NativeEndian.PutUint32(t.pktinfo[16:], uint32(w.index))
	}
	s := from.of(dst)
	t.fd = s.fd
	if t.family == udp4 {
		tx.pre.UseIPv4((*[16]byte)(&dst.sgid), (*[16]byte)(&dst.dgid), s.port)
	} else {
		tx.pre.UseIPv6((*[16]byte)(&dst.sgid), (*[16]byte)(&dst.dgid), s.port)
	}
	return s.fd > 0
}

// datagramLen returns the bytes of UDP payload of p.
func datagramLen(p *packet) int { return transportLen(p) + header.ICRCLen }

// segments returns how many packets from the start of pkts form one message of
// at most the given number of bytes (a train). All have the same length, except
// that the last may be shorter if the next packet does not have the same length
// as it.
func segments(pkts []packet, bytes int) int {
	size := datagramLen(&pkts[0])
	most := min(len(pkts), maxSegs, bytes/size)
	n := 1
	for n < most {
		next := datagramLen(&pkts[n])
		if next == size {
			n++
			continue
		}
		if next < size && (n+1 == len(pkts) || datagramLen(&pkts[n+1]) != next) {
			n++
		}
		break
	}
	return n
}

// pieces makes message m with pkts, after head. They use the memory of the
// batch from packet first on, and head is the start of that memory. The end of
// a packet and the start of the next are adjacent in memory, so that the kernel
// has fewer pieces to gather. numbered says that the kernel numbers the
// packets.
func (tx *txBatch) pieces(m, first int, pkts []packet, head []byte, numbered bool) {
	v := first * iovsPerPacket
	n := v
	for k := range pkts {
		p := &pkts[k]
		head = append(head, p.hdr...)
		size, id := datagramLen(p), uint16(0)
		if numbered {
			id = uint16(k)
		}
		crc := tx.pre.StartID(size, id).AddBTH(p.hdr).Add(p.payload[0]).Add(p.payload[1])
		tx.setIov(n, head)
		n++
		for _, b := range p.payload {
			if len(b) > 0 {
				tx.setIov(n, b)
				n++
			}
		}
		head = tx.last[m][:0]
		if k < len(pkts)-1 {
			head = tx.head[first+k+1][:0]
		}
		head = p.appendTail(head, crc)
	}
	tx.setIov(n, head)
	n++
	tx.segs[m] = uint16(len(pkts))
	h := &tx.msgs[m].hdr
	h.Iov = &tx.iovs[v]
	h.SetIovlen(n - v)
}

// message makes message m with pkts for a UDP socket. They use the memory of
// the batch from packet first on.
func (tx *txBatch) message(m, first int, pkts []packet, t *v2Target) {
	// The kernel numbers the segments of an IPv4 message from 0. RFC 6864
	// permits this for packets that are never fragmented.
	tx.pieces(m, first, pkts, tx.head[first][:0], t.family == udp4)
	h := &tx.msgs[m].hdr
	h.Name = (*byte)(t.name)
	h.Namelen = t.nameLen
	c := tx.control[m][:0]
	if t.family == udp4 {
		c = appendCmsg(c, unix.SOL_IP, unix.IP_PKTINFO, t.pktinfo[:unix.SizeofInet4Pktinfo])
		c = appendCmsg32(c, unix.SOL_IP, unix.IP_TTL, t.hops)
	} else {
		c = appendCmsg(c, unix.SOL_IPV6, unix.IPV6_PKTINFO, t.pktinfo[:unix.SizeofInet6Pktinfo])
		c = appendCmsg32(c, unix.SOL_IPV6, unix.IPV6_HOPLIMIT, t.hops)
	}
	if len(pkts) > 1 {
		var b [2]byte
		binary.NativeEndian.PutUint16(b[:], uint16(datagramLen(&pkts[0])))
		c = appendCmsg(c, unix.SOL_UDP, unix.UDP_SEGMENT, b[:])
	}
	h.Control = unsafe.SliceData(c)
	h.SetControllen(len(c))
}

// appendCmsg appends a control message with its padding.
func appendCmsg(b []byte, level, typ int32, data []byte) []byte {
	h := unix.Cmsghdr{Level: level, Type: typ}
	h.SetLen(unix.CmsgLen(len(data)))
	b = append(b, (*[unix.SizeofCmsghdr]byte)(unsafe.Pointer(&h))[:]...)
	b = append(b, data...)
	for len(b)%cmsgAlign != 0 {
		b = append(b, 0)
	}
	return b
}

func appendCmsg32(b []byte, level, typ, v int32) []byte {
	var d [4]byte
	binary.NativeEndian.PutUint32(d[:], uint32(v))
	return appendCmsg(b, level, typ, d[:])
}

// cmsgAlign is the alignment of control messages in bytes, the size of a C
// long.
const cmsgAlign = int(unsafe.Sizeof(uintptr(0)))
