// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"

	"golang.org/x/sys/unix"
)

// llPort carries RoCE version 2 between link-local GIDs without the IP stack,
// as an RNIC does. The GID or the path has the MAC address, so a packet needs
// neither a route nor neighbour discovery. The default GID is in the GID table
// whether or not the netdev has it as an address. A netdev does not have it if
// its addresses do not contain the MAC (RFC 7217), or without IPv6.
//
// All packets between link-local GIDs are sent here. They are received here if
// the netdev does not have the address, and otherwise by the UDP socket. In
// both directions the kernel carries many packets in one pass, as for UDP
// sockets: the virtio_net header before a frame says how the kernel must split
// it, or joined it (Linux 6.2).
type llPort struct {
	*packetPort
	noGSO atomic.Bool

	mu        sync.Mutex
	start     func() // begins the reception
	listening bool
	to        smc.GID // destination that passes the filter; zero for none
}

// newLLPort opens the sockets in the calling thread's network namespace.
func newLLPort(i *netdevInfo) (*llPort, error) {
	p, err := newPacketPort(i)
	if err != nil {
		return nil, err
	}
	// The kernel must compute the UDP checksum and split trains.
	for _, fd := range []int{p.tx, p.sock.fd} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			p.close()
			return nil, fmt.Errorf("softroce: leave UDP checksums to the kernel: %w", err)
		}
	}
	return &llPort{packetPort: p}, nil
}

// started sets the function that begins the reception. It is called when the
// wire is started.
func (l *llPort) started(start func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start = start
	if l.listening {
		start()
	}
}

// follow makes the port receive the packets that the UDP socket does not.
func (l *llPort) follow(self *identity) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var to smc.GID
	if self.defForeign {
		to = self.def
	}
	if to == l.to || to.IsZero() && !l.listening {
		return nil
	}
	if err := l.filter(to); err != nil {
		return err
	}
	l.to = to
	if l.listening {
		return nil
	}
	setReceiveBuffer(l.sock.fd)
	ll := unix.SockaddrLinklayer{Protocol: htons(header.EtherTypeIPv6), Ifindex: l.index}
	if err := unix.Bind(l.sock.fd, &ll); err != nil {
		return fmt.Errorf("softroce: bind packet socket: %w", err)
	}
	l.listening = true
	if l.start != nil {
		l.start()
	}
	return nil
}

// filter attaches a filter that only lets RoCE packets to this address pass,
// and none for the zero GID.
func (l *llPort) filter(to smc.GID) error {
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
	// If a comparison fails, it jumps to the last instruction, which drops the
	// packet.
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

// llReader returns a function that gives packets of the port to h. The function
// reports whether there may be more.
func (w *netWire) llReader(h handler) func() bool {
	rx := newRxBatch()
	rx.udp = newUDPRx()
	return guardReader(w.guard, func() bool {
		self := w.self.Load()
		n := rx.udp.receive(w.ll.sock.fd)
		for i := range n {
			w.ll.split(i, rx, self, &w.stats)
			if len(rx.in) >= ioBatch || i == n-1 && len(rx.in) > 0 {
				h(rx.in)
				rx.reset()
			}
		}
		return n == udpMsgs
	}, rx.reset)
}

// split puts the packets of the frame in message i into rx.
func (l *llPort) split(i int, rx *rxBatch, self *identity, c *wireCounters) {
	r := rx.udp
	b := r.buf[i*udpBuf:][:r.msgs[i].n]
	from := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&r.names[i]))
	// The kernel has compared the destination MAC with that of the netdev. A
	// socket on a netdev also receives the frames of its VLAN netdevs.
	if from.Pkttype != unix.PACKET_HOST || int(from.Ifindex) != l.index {
		c.dropMAC.Add(1)
		return
	}
	if len(b) < vnetHdrLen || r.msgs[i].hdr.Flags&unix.MSG_TRUNC != 0 {
		c.dropShort.Add(1)
		return
	}
	vnet, b := b[:vnetHdrLen], b[vnetHdrLen:]
	eth, b, err := header.ParseEthernet(b)
	if err != nil {
		c.dropShort.Add(1)
		return
	}
	if eth.Type() != header.EtherTypeIPv6 {
		c.dropFormat.Add(1)
		return
	}
	ip, udp, b, err := header.ParseUDPIPv6(b)
	if err != nil {
		c.parseDrop(err).Add(1)
		return
	}
	size := max(len(b), 1)
	if vnet[1]&^vnetGSOECN == vnetGSOUDP {
		size = max(int(binary.NativeEndian.Uint16(vnet[4:])), 1)
	}
	m := udpMeta{src: ip.Src().As16(), dst: ip.Dst().As16(), srcPort: udp.SrcPort()}
	splitTrain(b, size, udp6, &m, eth.Src(), rx, nil, self, c)
}
