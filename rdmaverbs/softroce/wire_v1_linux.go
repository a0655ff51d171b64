// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// The receive ring of a packet socket (TPACKET_V2). Version 3 has larger
// batches, but delays a packet until its block is full or a timeout. A slot has
// room for the largest packet, because the MTU may change: 80 bytes before the
// GRH, the headers, 4096 bytes of payload, ICRC.
const (
	ringSlot   = 4352
	ringBlock  = 64 << 10
	perBlock   = ringBlock / ringSlot
	ringBlocks = 256

	sndBuf = 4 << 20 // bytes of packets that wait in the send buffer
)

// Offsets in a slot: struct tpacket2_hdr, then struct sockaddr_ll.
const (
	slotStatus  = 0
	slotSnapLen = 8
	slotMAC     = 12
	slotLL      = 32
	llIfIndex   = slotLL + 4
	llPktType   = slotLL + 10
)

// packetPort is a pair of packet sockets for frames of one ethertype on one
// netdev. It sends with a separate socket: otherwise the poller would wake the
// reader for each packet that leaves the send buffer.
type packetPort struct {
	sock  *socket
	tx    int // descriptor
	index int
	lo    bool // see loopbackMAC
	ring  []byte
	slots int
	head  int     // slot to read next
	taken int     // slots from head on that take has looked at
	out   *txRing // for large batches, or nil
}

// openPacketPort opens the port for RoCE version 1 in the calling thread's
// network namespace.
func openPacketPort(i *netdevInfo, sendRing bool) (_ *packetPort, err error) {
	p, err := newPacketPort(i)
	if err != nil {
		return nil, err
	}
	if sendRing {
		p.out, err = newTxRing(i.Index)
	}
	if err == nil {
		err = p.listen()
	}
	if err != nil {
		p.close()
		p.unmap()
		return nil, err
	}
	return p, nil
}

// newPacketPort opens the sockets in the calling thread's network namespace.
// They receive nothing before listen.
func newPacketPort(i *netdevInfo) (_ *packetPort, err error) {
	p := &packetPort{index: i.Index, lo: i.loopback, tx: -1}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.tx, err = packetSender(i.Index); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("softroce: packet socket: %w", err)
	}
	if p.sock, err = newSocket(fd, "packet socket"); err != nil {
		return nil, err
	}
	return p, nil
}

// packetSender opens a packet socket that sends on a netdev and receives nothing.
func packetSender(index int) (fd int, err error) {
	// A socket with protocol 0 receives nothing.
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("softroce: packet socket (needs CAP_NET_RAW): %w", err)
	}
	setSendBuffer(fd)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("softroce: bind packet socket: %w", err)
	}
	return fd, nil
}

// listen begins the reception of RoCE version 1 frames in a ring.
func (p *packetPort) listen() (err error) {
	fd := p.sock.fd
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return fmt.Errorf("softroce: select TPACKET_V2: %w", err)
	}
	// A socket for one ethertype should not get outgoing frames. This option
	// makes sure.
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return fmt.Errorf("softroce: ignore outgoing frames: %w", err)
	}
	slots := ringBlocks * perBlock
	req := unix.TpacketReq{Block_size: ringBlock, Block_nr: ringBlocks, Frame_size: ringSlot, Frame_nr: uint32(slots)}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return fmt.Errorf("softroce: allocate receive ring: %w", err)
	}
	p.ring, err = unix.Mmap(fd, 0, ringBlock*ringBlocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("softroce: map receive ring: %w", err)
	}
	p.slots = slots
	ll := unix.SockaddrLinklayer{Protocol: htons(header.EtherTypeRoCE), Ifindex: p.index}
	if err := unix.Bind(fd, &ll); err != nil {
		return fmt.Errorf("softroce: bind packet socket: %w", err)
	}
	return nil
}

// setSendBuffer enlarges the send buffer as far as the process is allowed to.
func setSendBuffer(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sndBuf) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sndBuf)
	}
}

func htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// close closes the sockets and ends the reception. Nobody may be sending.
func (p *packetPort) close() {
	if p.sock != nil {
		p.sock.close()
	}
	if p.tx >= 0 {
		unix.Close(p.tx)
	}
	if p.out != nil {
		p.out.close()
	}
}

// unmap frees the ring. It is called after close, when no goroutine receives
// any more.
func (p *packetPort) unmap() {
	if p.ring != nil {
		_ = unix.Munmap(p.ring)
		p.ring = nil
	}
}

// overruns returns the number of frames lost since the last call because no
// slot was free.
func (p *packetPort) overruns() uint64 {
	st, err := unix.GetsockoptTpacketStats(p.sock.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0
	}
	return uint64(st.Drops)
}

// slot returns slot i. No slot straddles two blocks.
func (p *packetPort) slot(i int) []byte {
	at := i/perBlock*ringBlock + i%perBlock*ringSlot
	return p.ring[at : at+ringSlot : at+ringSlot]
}

func status(slot []byte) *uint32 { return (*uint32)(unsafe.Pointer(&slot[slotStatus])) }

// take puts the received packets into rx, up to one batch, and drops those for
// other ports. It reports whether there were any. The kernel does not use their slots
// before free.
func (p *packetPort) take(rx *rxBatch, self *identity, c *wireCounters) (any bool) {
	var bytes uint64
	at := p.head
	for p.taken < ioBatch {
		s := p.slot(at)
		if atomic.LoadUint32(status(s))&unix.TP_STATUS_USER == 0 {
			break
		}
		p.taken++
		if in, drop := p.parseV1(s, rx, self, c); drop != nil {
			drop.Add(1)
		} else {
			rx.in = append(rx.in, in)
			bytes += uint64(len(in.data))
		}
		if at++; at == p.slots {
			at = 0
		}
	}
	if len(rx.in) > 0 {
		c.rxPackets.Add(uint64(len(rx.in)))
		c.rxBytes.Add(bytes)
	}
	return p.taken > 0
}

// free gives the slots of the last take back to the kernel.
func (p *packetPort) free() {
	for ; p.taken > 0; p.taken-- {
		atomic.StoreUint32(status(p.slot(p.head)), unix.TP_STATUS_KERNEL)
		if p.head++; p.head == p.slots {
			p.head = 0
		}
	}
}

// frame checks the link layer of the frame in a slot. It returns the Ethernet
// header and the rest of the frame, or the drop counter.
func (p *packetPort) frame(s []byte, c *wireCounters) (eth header.Ethernet, rest []byte, drop *atomic.Uint64) {
	// The kernel has compared the destination MAC with that of the netdev. A
	// socket on a netdev also receives the frames of its VLAN netdevs.
	if s[llPktType] != unix.PACKET_HOST || int(nativeUint32(s[llIfIndex:])) != p.index {
		return nil, nil, &c.dropMAC
	}
	mac := int(binary.NativeEndian.Uint16(s[slotMAC:]))
	end := mac + int(nativeUint32(s[slotSnapLen:]))
	if mac < slotLL || end > len(s) {
		return nil, nil, &c.dropShort
	}
	eth, rest, err := header.ParseEthernet(s[mac:end])
	if err != nil {
		return nil, nil, &c.dropShort
	}
	return eth, rest, nil
}

// parseV1 checks the frame in a slot. It returns the packet, or the drop
// counter.
func (p *packetPort) parseV1(s []byte, rx *rxBatch, self *identity, c *wireCounters) (in inbound, drop *atomic.Uint64) {
	eth, b, drop := p.frame(s, c)
	if drop != nil {
		return in, drop
	}
	if eth.Type() != header.EtherTypeRoCE {
		return in, &c.dropFormat
	}
	grh, data, icrc, err := header.ParseV1(b)
	if err != nil {
		return in, c.parseDrop(err)
	}
	in = inbound{typ: rdmaverbs.RoCEv1, sgid: grh.SGID(), dgid: grh.DGID(), smac: eth.Src(), data: data}
	if p.lo {
		in.smac = loopbackMAC
	}
	if drop := c.checkGIDs(in.sgid, in.dgid, self.v1); drop != nil {
		return in, drop
	}
	rx.pre.UseV1((*[16]byte)(&in.sgid), (*[16]byte)(&in.dgid))
	if rx.pre.Start(len(data)+header.ICRCLen).AddBTH(data) != header.ReadICRC(icrc) {
		return in, &c.dropICRC
	}
	return in, c.checkBTH(header.BTH(data))
}

// sendV1 sends up to ioBatch packets as RoCE version 1 frames.
func (w *netWire) sendV1(tx *txBatch, dst *path, pkts []packet) error {
	if w.v1 == nil {
		w.stats.txLost.Add(uint64(len(pkts)))
		return nil
	}
	eth := header.EthernetFields{Type: header.EtherTypeRoCE}
	// On lo, source and destination are zero: see loopbackMAC.
	if !w.loopback {
		eth.Src = w.self.Load().mac
		copy(eth.Dst[:], dst.dmac)
	}
	grh := header.GRHFields{HopLimit: dst.hopLimit, SGID: dst.sgid, DGID: dst.dgid}
	if grh.HopLimit == 0 {
		grh.HopLimit = defaultHopLimit
	}
	const headers = header.EthernetLen + header.GRHLen
	var same [headers]byte // the same for all packets, without the length
	header.Ethernet(same[:]).Encode(&eth)
	header.GRH(same[header.EthernetLen:]).Encode(&grh)
	tx.pre.UseV1((*[16]byte)(&dst.sgid), (*[16]byte)(&dst.dgid))
	bytes := 0
	for i := range pkts {
		bytes += transportLen(&pkts[i])
		tx.segs[i] = 1
	}
	w.stats.txBytes.Add(uint64(bytes))
	if w.v1.out != nil && worthRing(pkts) {
		n, err := tx.push(w.v1.out.fd, len(pkts), &w.stats, func(i int) (int, syscall.Errno) {
			return w.v1.out.send(same[:], &tx.pre, pkts[i:])
		})
		if err != nil || n == len(pkts) {
			return err
		}
		pkts = pkts[n:]
	}
	for i := range pkts {
		p := &pkts[i]
		n := transportLen(p)
		head := append(append(tx.head[i][:0], same[:]...), p.hdr...)
		header.GRH(head[header.EthernetLen:]).SetPayloadLen(uint16(n + header.ICRCLen))
		crc := tx.pre.Start(n + header.ICRCLen).AddBTH(p.hdr).Add(p.payload[0]).Add(p.payload[1])
		tx.fill(i, head, p, p.appendTail(tx.last[i][:0], crc))
	}
	err := tx.flush(w.v1.tx, len(pkts), &w.stats)
	tx.clear(len(pkts))
	return err
}
