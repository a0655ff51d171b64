// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"
	"unsafe"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"

	"golang.org/x/sys/unix"
)

const (
	udpMsgs = 16 // messages in one recvmmsg
	// Bytes of one message: the kernel joins datagrams up to 64 KiB, and packet
	// sockets add the headers.
	udpBuf     = 64<<10 + 128
	udpControl = 128
)

// udpRx is the reused memory of one recvmmsg call.
type udpRx struct {
	msgs    [udpMsgs]mmsghdr
	iovs    [udpMsgs]unix.Iovec
	names   [udpMsgs]unix.RawSockaddrInet6  // the longer of the two kinds
	control [udpMsgs][udpControl / 8]uint64 // aligned for struct cmsghdr
	buf     []byte
}

func newUDPRx() *udpRx {
	r := &udpRx{buf: make([]byte, udpMsgs*udpBuf)}
	for i := range r.msgs {
		r.iovs[i].Base = &r.buf[i*udpBuf]
		r.iovs[i].SetLen(udpBuf)
		h := &r.msgs[i].hdr
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		h.Control = (*byte)(unsafe.Pointer(&r.control[i]))
	}
	return r
}

// receive calls recvmmsg without waiting and returns how many messages came.
func (r *udpRx) receive(fd int) int {
	for i := range r.msgs {
		h := &r.msgs[i].hdr
		h.Namelen = uint32(unsafe.Sizeof(r.names[i]))
		h.SetControllen(udpControl)
	}
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.msgs)),
			udpMsgs, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(n)
		case unix.EINTR:
		default:
			// EAGAIN, or an ICMP error, which this call has cleared.
			return 0
		}
	}
}

// udpMeta is the information in the control messages and the address of a
// message.
type udpMeta struct {
	src, dst smc.GID
	srcPort  uint16
	segment  int // bytes of each datagram except the last; 0 for a single one
	ok       bool
}

func (r *udpRx) meta(i, family int) (m udpMeta) {
	port := (*[2]byte)(unsafe.Pointer(&r.names[i].Port))
	m.srcPort = binary.BigEndian.Uint16(port[:])
	if family == udp4 {
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.names[i]))
		m.src = netip.AddrFrom4(sa.Addr).As16()
	} else {
		m.src = r.names[i].Addr
	}
	h := &r.msgs[i].hdr
	if h.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return m
	}
	c := (*[udpControl]byte)(unsafe.Pointer(&r.control[i]))[:h.Controllen]
	for len(c) >= unix.SizeofCmsghdr {
		ch := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
		n := int(ch.Len)
		if n < unix.SizeofCmsghdr || n > len(c) {
			break
		}
		data := c[unix.CmsgLen(0):n]
		switch {
		case ch.Level == unix.SOL_IP && ch.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			m.dst = netip.AddrFrom4([4]byte(data[8:12])).As16()
			m.ok = true
		case ch.Level == unix.SOL_IPV6 && ch.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			m.dst = smc.GID(data[:16])
			m.ok = true
		case ch.Level == unix.SOL_UDP && ch.Type == unix.UDP_GRO && len(data) >= 4:
			m.segment = int(nativeUint32(data))
		}
		c = c[min(len(c), unix.CmsgSpace(n-unix.CmsgLen(0))):]
	}
	return m
}

// take reads messages from a socket of a family and gives their packets to h,
// or to the sibling that has their destination. It reports whether there may be
// more.
func (w *netWire) take(s *socket, family int, rx *rxBatch, h handler) (more bool) {
	self := w.self.Load()
	n := rx.udp.receive(s.fd)
	for i := range n {
		m := rx.udp.meta(i, family)
		if !m.ok || slices.Contains(self.v2, m.dst) || !w.siblings.receive(w, i, family, &m, rx) {
			w.v2.split(i, family, &m, rx, self, &w.stats)
		}
		if len(rx.in) >= ioBatch || i == n-1 && len(rx.in) > 0 {
			h(rx.in)
			rx.reset()
		}
	}
	return n == udpMsgs
}

// split puts the packets of message i into rx.
func (u *udpPorts) split(i, family int, m *udpMeta, rx *rxBatch, self *identity, c *wireCounters) {
	r := rx.udp
	b := r.buf[i*udpBuf:][:r.msgs[i].n]
	if !m.ok {
		c.dropShort.Add(1)
		return
	}
	size := m.segment
	if size == 0 {
		size = max(len(b), 1)
	}
	splitTrain(b, size, family, m, [6]byte{}, rx, u.ids, self, c)
}

// splitTrain puts the packets of the datagrams in b into rx. All datagrams have
// the same size, except the last, which may be shorter.
func splitTrain(b []byte, size, family int, m *udpMeta, smac [6]byte, rx *rxBatch, ids *header.IDSolver, self *identity, c *wireCounters) {
	datagrams := max(1, (len(b)+size-1)/size)
	if drop := c.checkGIDs(m.src, m.dst, self.v2); drop != nil {
		drop.Add(uint64(datagrams))
		return
	}
	if src, dst := (*[16]byte)(&m.src), (*[16]byte)(&m.dst); family == udp6 {
		rx.pre.UseIPv6(src, dst, m.srcPort)
	} else {
		rx.pre.UseIPv4(src, dst, m.srcPort)
	}
	var packets, bytes uint64
	var id uint16 // expected identification
	for range datagrams {
		d := b[:min(size, len(b))]
		b = b[len(d):]
		data, drop := parseDatagram(d, family, &id, rx, ids, c)
		id++
		if drop != nil {
			drop.Add(1)
			continue
		}
		rx.in = append(rx.in, inbound{typ: rdmaverbs.RoCEv2, sgid: m.src, dgid: m.dst, srcPort: m.srcPort, smac: smac, data: data})
		packets++
		bytes += uint64(len(data))
	}
	c.rxPackets.Add(packets)
	c.rxBytes.Add(bytes)
}

// parseDatagram checks one datagram. It returns the transport packet, or the
// drop counter. id is the expected identification of the IPv4 header;
// parseDatagram sets it to the real one.
func parseDatagram(d []byte, family int, id *uint16, rx *rxBatch, ids *header.IDSolver, c *wireCounters) ([]byte, *atomic.Uint64) {
	data, icrc, err := header.ParseV2(d)
	if err != nil {
		return nil, c.parseDrop(err)
	}
	got := header.ReadICRC(icrc)
	if family == udp6 {
		if rx.pre.Start(len(d)).AddBTH(data) != got {
			return nil, &c.dropICRC
		}
		return data, c.checkBTH(data)
	}
	if want := rx.pre.StartID(len(d), *id).AddBTH(data); want != got {
		const afterID = header.IPv4Len - 6 + header.UDPLen
		diff, ok := ids.Solve(want, got, afterID+len(data))
		if !ok {
			return nil, &c.dropICRC
		}
		*id ^= diff
	}
	return data, c.checkBTH(data)
}
