// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"
)

// Port sends packets of RoCE version 2 from an ordinary UDP socket, and receives those for
// its queue pairs. It needs no privilege. It is safe for concurrent use.
type Port struct {
	conn *net.UDPConn
	addr netip.AddrPort // of the socket

	mu   sync.Mutex
	pre  header.Prefix
	qps  map[uint32]*QP
	next uint32 // queue pair number
	done chan struct{}
}

// OpenPort opens a socket on a host, bound to the host's first IPv4 address and the given
// UDP port; 0 lets the kernel choose one. Peers send to [header.UDPPortRoCE], so only a
// Port there receives anything.
func OpenPort(h *netnstest.Host, port uint16) (*Port, error) {
	p := &Port{qps: map[uint32]*QP{}, next: 0x100, done: make(chan struct{})}
	err := h.Do(func() (err error) {
		p.conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Links[0].IPv4, port)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("adversary: %w", err)
	}
	p.addr = p.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	rc, err := p.conn.SyscallConn()
	if err == nil {
		// Don't Fragment: the kernel then sets the identification of IPv4 to 0, which
		// the ICRC covers.
		err = errors.Join(rc.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		}), err)
	}
	if err == nil {
		err = p.conn.SetReadBuffer(4 << 20)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("adversary: %w", err), p.conn.Close())
	}
	go p.receive()
	return p, nil
}

// Close closes the socket, and ends what waits on the queue pairs.
func (p *Port) Close() error {
	err := p.conn.Close()
	<-p.done
	return err
}

// Packet is a transport packet to be sent: what the headers say, and the payload.
type Packet struct {
	Op      header.Opcode
	PSN     uint32 // 24 bits
	DestQP  uint32 // 24 bits
	NoAck   bool   // do not ask for an acknowledgement
	PKey    uint16 // 0 means header.DefaultPKey
	RETH    *header.RETHFields
	AETH    *Answer
	Payload []byte
}

// Answer is what an acknowledgement says.
type Answer struct {
	Syndrome header.Syndrome
	MSN      uint32 // 24 bits
}

// append appends the packet to b, from the BTH to the end of the pad.
func (p *Packet) append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, header.BTHLen)...)
	key := p.PKey
	if key == 0 {
		key = header.DefaultPKey
	}
	header.BTH(b[at:]).Encode(&header.BTHFields{
		Opcode: p.Op, Solicited: true, MigReq: true, PadCount: uint8(-len(p.Payload) & 3), PKey: key,
		DestQP: p.DestQP, AckReq: !p.NoAck && !p.Op.IsResponse(), PSN: p.PSN,
	})
	if p.RETH != nil {
		b = append(b, make([]byte, header.RETHLen)...)
		header.RETH(b[at+header.BTHLen:]).Encode(p.RETH)
	}
	if p.AETH != nil {
		b = append(b, make([]byte, header.AETHLen)...)
		header.AETH(b[at+header.BTHLen:]).Encode(p.AETH.Syndrome, p.AETH.MSN)
	}
	b = append(b, p.Payload...)
	return append(b, make([]byte, -len(p.Payload)&3)...)
}

// datagram returns the packet with its ICRC, as UDP payload between two addresses. pre is
// reused memory.
func (p *Packet) datagram(pre *header.Prefix, from netip.AddrPort, to netip.Addr) []byte {
	b := p.append(nil)
	src, dst := from.Addr().As16(), to.As16()
	pre.UseIPv4(&src, &dst, from.Port())
	crc := pre.Start(len(b) + header.ICRCLen).AddBTH(b)
	return crc.Append(b)
}

// Send sends a packet to a host. An error means that the socket is closed or that the
// kernel does not reach the host.
func (p *Port) Send(to netip.Addr, pkt *Packet) error {
	p.mu.Lock()
	b := pkt.datagram(&p.pre, p.addr, to)
	p.mu.Unlock()
	if _, err := p.conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, header.UDPPortRoCE)); err != nil {
		return fmt.Errorf("adversary: %w", err)
	}
	return nil
}

// receive hands the packets that arrive to their queue pairs. It does not look at the ICRC.
func (p *Port) receive() {
	defer close(p.done)
	b := make([]byte, 64<<10)
	for {
		n, from, err := p.conn.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			p.mu.Lock()
			all := slices.Collect(maps.Values(p.qps))
			p.mu.Unlock()
			for _, q := range all { // not with the lock: a queue pair that sends takes it
				q.close()
			}
			return
		}
		if err != nil {
			continue // an ICMP error of a packet that was sent before
		}
		data, _, err := header.ParseV2(b[:n])
		if err != nil {
			continue
		}
		t, err := header.ParseTransport(data)
		if err != nil {
			continue
		}
		p.mu.Lock()
		q := p.qps[t.BTH.DestQP()]
		p.mu.Unlock()
		if q != nil {
			q.handle(from.Addr(), &t)
		}
	}
}
