// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// tap receives RoCE version 2 with packet sockets, one for each version of IP, because
// another process has the UDP sockets of the netdev. A filter lets only packets for queue
// pairs with certain numbers pass. If the kernel has joined packets, the number of the
// first one decides for all of them. A packet that is lost this way is sent again.
//
// Packet sockets receive packets before a firewall of this host does. Each packet must still
// be from the peer of its queue pair. The kernel passes joined packets to packet sockets
// since Linux 6.2; before that, they are lost and sent again one by one.
type tap struct {
	sock [2]*socket // IPv4, IPv6
}

// openTap opens the sockets in the calling thread's network namespace and begins to read
// them. w.v2.hand is held.
func (w *netWire) openTap(numbers QPNs) (_ *tap, err error) {
	t := &tap{}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	for family := range t.sock {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("softroce: packet socket: %w", err)
		}
		s, err := newSocket(fd, "packet socket")
		if err != nil {
			return nil, err
		}
		t.sock[family] = s
		if err := tapOptions(fd, family, numbers); err != nil {
			return nil, err
		}
		ll := unix.SockaddrLinklayer{Protocol: htons(tapProtocol(family)), Ifindex: w.index}
		if err := unix.Bind(fd, &ll); err != nil {
			return nil, fmt.Errorf("softroce: bind packet socket: %w", err)
		}
		if err := w.read(s, w.tapReader(s, family, w.handle)); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func tapProtocol(family int) uint16 {
	if family == udp6 {
		return header.EtherTypeIPv6
	}
	return unix.ETH_P_IP
}

func tapOptions(fd, family int, numbers QPNs) error {
	setReceiveBuffer(fd)
	for _, o := range []int{unix.PACKET_VNET_HDR, unix.PACKET_IGNORE_OUTGOING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o, 1); err != nil {
			return fmt.Errorf("softroce: set packet socket option %d: %w", o, err)
		}
	}
	code := tapFilter(family, numbers)
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: unsafe.SliceData(code)}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		return fmt.Errorf("softroce: filter packets: %w", err)
	}
	return nil
}

// tapFilter returns a filter for whole UDP packets to the port of RoCE whose queue pair
// number is one of numbers.
func tapFilter(family int, numbers QPNs) []unix.SockFilter {
	const (
		ip         = header.EthernetLen
		fragmented = 0x3fff // more fragments, or not the first
		dstPort    = 2
		qpn        = header.UDPLen + 5
		load       = unix.BPF_LD
	)
	var code []unix.SockFilter
	add := func(op uint16, k uint32) { code = append(code, unix.SockFilter{Code: op, K: k}) }
	equal := func(k uint32) { add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, k) }
	mode, at := uint16(unix.BPF_ABS), uint32(ip+header.IPv6Len)
	if family == udp6 {
		add(load|unix.BPF_ABS|unix.BPF_B, ip+6)
		equal(header.ProtocolUDP)
	} else {
		add(load|unix.BPF_ABS|unix.BPF_B, ip+9)
		equal(header.ProtocolUDP)
		add(load|unix.BPF_ABS|unix.BPF_H, ip+6)
		add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, fragmented)
		equal(0)
		add(unix.BPF_LDX|unix.BPF_B|unix.BPF_MSH, ip) // X is the length of the IP header
		mode, at = unix.BPF_IND, ip
	}
	add(load|mode|unix.BPF_H, at+dstPort)
	equal(header.UDPPortRoCE)
	bits, mask := numbers.first()
	add(load|mode|unix.BPF_B, at+qpn)
	add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, uint32(mask))
	equal(uint32(bits))
	add(unix.BPF_RET|unix.BPF_K, 1<<18)
	add(unix.BPF_RET|unix.BPF_K, 0)
	// If a comparison fails, it jumps to the last instruction.
	for i := range code {
		if code[i].Code&7 == unix.BPF_JMP {
			code[i].Jf = uint8(len(code) - 2 - i)
		}
	}
	return code
}

// close closes the sockets. t may be nil.
func (t *tap) close() {
	if t == nil {
		return
	}
	for _, s := range t.sock {
		if s != nil {
			s.close()
		}
	}
}

// tapReader returns a function that gives packets of a tap to h. The function reports
// whether there may be more.
func (w *netWire) tapReader(s *socket, family int, h handler) func() bool {
	rx := newRxBatch()
	rx.udp = newUDPRx()
	return func() bool {
		n := rx.udp.receive(s.fd)
		for i := range n {
			w.splitTapped(i, family, rx)
			if len(rx.in) >= ioBatch || i == n-1 && len(rx.in) > 0 {
				h(rx.in)
				rx.reset()
			}
		}
		return n == udpMsgs
	}
}

// splitTapped puts the packets of the frame in message i into rx, or gives them to the
// sibling that has their destination.
func (w *netWire) splitTapped(i, family int, rx *rxBatch) {
	r := rx.udp
	b := r.buf[i*udpBuf:][:r.msgs[i].n]
	from := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&r.names[i]))
	if from.Pkttype != unix.PACKET_HOST || int(from.Ifindex) != w.index {
		w.stats.dropMAC.Add(1)
		return
	}
	if len(b) < vnetHdrLen || r.msgs[i].hdr.Flags&unix.MSG_TRUNC != 0 {
		w.stats.dropShort.Add(1)
		return
	}
	m, payload, err := parseTapped(b[vnetHdrLen:], family)
	if err != nil {
		w.stats.parseDrop(err).Add(1)
		return
	}
	size := max(len(payload), 1)
	if b[1]&^vnetGSOECN == vnetGSOUDP {
		size = max(int(binary.NativeEndian.Uint16(b[4:])), 1)
	}
	self := w.self.Load()
	if self.defForeign && m.dst == self.def {
		return // the port for link-local GIDs has it too
	}
	split := func(x *netWire) {
		splitTrain(payload, size, family, &m, [6]byte{}, rx, x.v2.ids, x.self.Load(), &x.stats)
	}
	if slices.Contains(self.v2, m.dst) || w.siblings == nil || !w.siblings.give(w, m.dst, rx, split) {
		split(w)
	}
}

// parseTapped returns the addresses of a frame that the filter let pass, and its UDP
// payload.
func parseTapped(b []byte, family int) (m udpMeta, payload []byte, err error) {
	_, b, err = header.ParseEthernet(b)
	if err != nil {
		return m, nil, err
	}
	var udp header.UDP
	if family == udp6 {
		var ip header.IPv6
		if ip, udp, payload, err = header.ParseUDPIPv6(b); err != nil {
			return m, nil, err
		}
		m.src, m.dst = ip.Src().As16(), ip.Dst().As16()
	} else {
		var ip header.IPv4
		if ip, udp, payload, err = header.ParseUDPIPv4(b); err != nil {
			return m, nil, err
		}
		m.src, m.dst = ip.Src().As16(), ip.Dst().As16()
	}
	m.srcPort, m.ok = udp.SrcPort(), true
	return m, payload, nil
}
