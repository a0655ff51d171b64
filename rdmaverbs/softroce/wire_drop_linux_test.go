// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"smcr/internal/retry"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// frameV1 builds a frame as a peer would; edit may change transport packet
// and GRH before the ICRC is computed.
func frameV1(p *path, src net.HardwareAddr, pkt packet, edit func(grh header.GRH, data []byte)) []byte {
	b := make([]byte, header.EthernetLen+header.GRHLen)
	header.Ethernet(b).Encode(&header.EthernetFields{Dst: [6]byte(p.dmac), Src: [6]byte(src), Type: header.EtherTypeRoCE})
	data := flat(pkt)
	grh := header.GRH(b[header.EthernetLen:])
	grh.Encode(&header.GRHFields{HopLimit: 1, PayloadLen: uint16(len(data) + header.ICRCLen), SGID: p.sgid, DGID: p.dgid})
	b = append(b, data...)
	grh, data = header.GRH(b[header.EthernetLen:]), b[header.EthernetLen+header.GRHLen:]
	if edit != nil {
		edit(grh, data)
	}
	var k header.Checker
	crc := k.V1(grh, data).Add(data[header.BTHLen:])
	b = append(b, 0, 0, 0, 0)
	crc.Put(b[len(b)-header.ICRCLen:])
	return b
}

// tagged inserts an 802.1Q tag.
func tagged(frame []byte, vid uint16) []byte {
	h := header.Ethernet(frame)
	b := make([]byte, header.EthernetLen+header.VLANTagLen)
	header.Ethernet(b).Encode(&header.EthernetFields{Dst: h.Dst(), Src: h.Src(), Tagged: true, PCP: 3, VID: vid, Type: h.Type()})
	return append(b, frame[header.EthernetLen:]...)
}

// inject sends a raw frame out of a host's netdev.
func inject(t *testing.T, h *netnstest.Host, frame []byte) {
	t.Helper()
	if err := h.Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: htons(header.EtherTypeRoCE)})
	}); err != nil {
		t.Fatal(err)
	}
}

// TestWireDropsV1 checks that each kind of bad frame is dropped for its
// reason, and that frames with odd but valid fields pass.
func TestWireDropsV1(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	a, b := openQuiet(t, pair.A, "eth0"), openEnd(t, pair.B, "eth0")
	p := a.pathV1(b)
	pkt := testPacket(header.SendOnly, 5, 44)
	good := func(edit func(header.GRH, []byte)) []byte { return frameV1(p, a.info.HWAddr, pkt, edit) }
	bth := func(edit func(header.BTH)) []byte {
		return good(func(_ header.GRH, data []byte) { edit(header.BTH(data)) })
	}
	damaged := good(nil)
	damaged[len(damaged)-10] ^= 1
	other := *p
	other.dmac = net.HardwareAddr{2, 9, 9, 9, 9, 9}
	small := testPacket(header.SendOnly, 5, 0)

	for _, c := range []struct {
		name  string
		frame []byte
		want  func(*wireStats) *uint64
	}{
		{"good", good(nil), func(s *wireStats) *uint64 { return &s.RxPackets }},
		{"padded by Ethernet", append(frameV1(p, a.info.HWAddr, small, nil), make([]byte, 37)...), func(s *wireStats) *uint64 { return &s.RxPackets }},
		{"other hop limit, traffic class and flow label", good(func(g header.GRH, _ []byte) { g[1], g[2], g[3], g[7] = 0x12, 0x34, 0x56, 200 }), func(s *wireStats) *uint64 { return &s.RxPackets }},
		{"FECN and BECN", bth(func(h header.BTH) { h[4] = 0xc0 }), func(s *wireStats) *uint64 { return &s.RxPackets }},
		{"limited member", bth(func(h header.BTH) { h.SetPKey(0x7fff) }), func(s *wireStats) *uint64 { return &s.RxPackets }},
		{"destination MAC", frameV1(&other, a.info.HWAddr, pkt, nil), func(s *wireStats) *uint64 { return &s.DropMAC }},
		{"priority tag", tagged(good(nil), 0), func(s *wireStats) *uint64 { return &s.RxPackets }},
		{"tag of another VLAN", tagged(good(nil), 7), func(s *wireStats) *uint64 { return &s.DropMAC }},
		{"cut in the GRH", good(nil)[:40], func(s *wireStats) *uint64 { return &s.DropShort }},
		{"cut in the payload", good(nil)[:100], func(s *wireStats) *uint64 { return &s.DropShort }},
		{"next header", good(func(g header.GRH, _ []byte) { g[6] = 17 }), func(s *wireStats) *uint64 { return &s.DropFormat }},
		{"IP version", good(func(g header.GRH, _ []byte) { g[0] = 0x40 }), func(s *wireStats) *uint64 { return &s.DropFormat }},
		{"destination GID", good(func(g header.GRH, _ []byte) { g[39] ^= 1 }), func(s *wireStats) *uint64 { return &s.DropGID }},
		{"destination loopback GID", good(func(g header.GRH, _ []byte) { copy(g[24:], loopbackGID[:]) }), func(s *wireStats) *uint64 { return &s.DropLoopback }},
		{"source loopback GID", good(func(g header.GRH, _ []byte) { copy(g[8:], loopbackGID[:]) }), func(s *wireStats) *uint64 { return &s.DropLoopback }},
		{"ICRC", damaged, func(s *wireStats) *uint64 { return &s.DropICRC }},
		{"transport version", bth(func(h header.BTH) { h[1] |= 1 }), func(s *wireStats) *uint64 { return &s.DropVersion }},
		{"queue pair 0", bth(func(h header.BTH) { h.SetDestQP(0) }), func(s *wireStats) *uint64 { return &s.DropQP }},
		{"queue pair 1", bth(func(h header.BTH) { h.SetDestQP(1) }), func(s *wireStats) *uint64 { return &s.DropQP }},
		{"partition", bth(func(h header.BTH) { h.SetPKey(0x8001) }), func(s *wireStats) *uint64 { return &s.DropPKey }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := b.counters()
			inject(t, pair.A, c.frame)
			expectOne(t, b, before, c.want)
		})
	}
}

// TestNoAnswerFromQueuePairZero: a device answers nothing to a packet for queue pair 0 or 1.
func TestNoAnswerFromQueuePairZero(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	a, b := openQuiet(t, pair.A, "eth0"), openIn(t, pair.B, "eth0")
	end := endFor(t, b, b, rdmaverbs.RoCEv1)
	gids, err := b.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	gid, mac := gids[end.SGIDIndex].GID, b.Attr().HWAddr
	toB := a.pathV1(a)
	toB.dmac, toB.dgid = mac, gid
	toA := *toB
	toA.dmac, toA.dgid, toA.sgid = a.info.HWAddr, toB.sgid, gid

	var fd int
	if err := pair.A.Do(func() (err error) {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		// The second socket of the host: what the first one receives arrives here, too.
		return unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: htons(unix.ETH_P_ALL)})
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(testkind.Patience / time.Second)}); err != nil {
		t.Fatal(err)
	}

	w := b.wire.(*netWire)
	before := w.counters().DropQP
	for _, op := range []header.Opcode{header.SendOnly, header.WriteOnly} {
		for qpn := range uint32(2) {
			inject(t, pair.A, frameV1(toB, a.info.HWAddr, testPacket(op, 5, 44), func(_ header.GRH, data []byte) { header.BTH(data).SetDestQP(qpn) }))
		}
	}
	if err := netnstest.Until(testkind.Patience, func() error {
		if n := w.counters().DropQP - before; n != 4 {
			return fmt.Errorf("%d packets dropped, want 4", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	// A frame of the same host that comes after any answer.
	last := frameV1(&toA, mac, testPacket(header.SendOnly, 0x777, 8), nil)
	inject(t, pair.B, last)
	buf := make([]byte, 2048)
	for {
		var n int
		// A socket with a time limit also returns EINTR after a signal of the runtime (signal(7)).
		if err := retry.Interrupted(func() (err error) { n, err = unix.Read(fd, buf); return err }); err != nil {
			t.Fatal(err)
		}
		frame := buf[:n]
		if h := header.Ethernet(frame); n < header.EthernetLen || h.Src() != [6]byte(mac) || h.Type() != header.EtherTypeRoCE {
			continue
		}
		if !bytes.Equal(frame, last) {
			t.Errorf("the device answers: % x", frame)
			continue
		}
		break
	}
	if n := w.counters().TxPackets; n != 0 {
		t.Errorf("the device has sent %d packets", n)
	}
}

// expectOne waits until exactly one packet was counted, by the counter that
// field names.
func expectOne(t *testing.T, e *wireEnd, before wireStats, field func(*wireStats) *uint64) {
	t.Helper()
	if err := netnstest.Until(testkind.Patience, func() error {
		now := e.counters()
		if n := now.RxPackets + now.dropped() - before.RxPackets - before.dropped(); n != 1 || *field(&now)-*field(&before) != 1 {
			return fmt.Errorf("counters %+v after %+v", now, before)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestWireDropsV2 does the same for datagrams.
func TestWireDropsV2(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	b := openEnd(t, pair.B, "eth0")
	src, dst := pair.A.Links[0].IPv4, pair.B.Links[0].IPv4
	var conn *net.UDPConn
	if err := pair.A.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: src.AsSlice()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	port := uint16(conn.LocalAddr().(*net.UDPAddr).Port)
	// The kernel sends identification 0; an ICRC made for another one is what
	// a peer that numbers its packets would send.
	datagram := func(id uint16, edit func(data []byte)) []byte {
		data := flat(testPacket(header.WriteOnly, 9, 30))
		if edit != nil {
			edit(data)
		}
		n := len(data) + header.ICRCLen
		ip, udp := make(header.IPv4, header.IPv4Len), make(header.UDP, header.UDPLen)
		ip.Encode(&header.IPv4Fields{TotalLen: uint16(header.IPv4Len + header.UDPLen + n), ID: id, Src: src.As4(), Dst: dst.As4()})
		udp.Encode(&header.UDPFields{SrcPort: port, DstPort: header.UDPPortRoCE, Len: uint16(header.UDPLen + n)})
		var k header.Checker
		crc := k.V2IPv4(ip, udp, data).Add(data[header.BTHLen:])
		data = append(data, 0, 0, 0, 0)
		crc.Put(data[len(data)-header.ICRCLen:])
		return data
	}
	damaged := datagram(0, nil)
	damaged[50] ^= 4
	for _, c := range []struct {
		name string
		b    []byte
		want func(*wireStats) *uint64
	}{
		{"identification 0", datagram(0, nil), func(s *wireStats) *uint64 { return &s.RxPackets }},
		{"identification 0xbeef", datagram(0xbeef, nil), func(s *wireStats) *uint64 { return &s.RxPackets }},
		{"ICRC", damaged, func(s *wireStats) *uint64 { return &s.DropICRC }},
		{"empty", nil, func(s *wireStats) *uint64 { return &s.DropShort }},
		{"short", make([]byte, 15), func(s *wireStats) *uint64 { return &s.DropShort }},
		{"odd length", make([]byte, 29), func(s *wireStats) *uint64 { return &s.DropFormat }},
		{"queue pair 0", datagram(0, func(d []byte) { header.BTH(d).SetDestQP(0) }), func(s *wireStats) *uint64 { return &s.DropQP }},
		{"partition", datagram(0, func(d []byte) { header.BTH(d).SetPKey(0x1234) }), func(s *wireStats) *uint64 { return &s.DropPKey }},
		{"transport version", datagram(0, func(d []byte) { d[1] |= 8 }), func(s *wireStats) *uint64 { return &s.DropVersion }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := b.counters()
			if _, err := conn.WriteTo(c.b, &net.UDPAddr{IP: dst.AsSlice(), Port: header.UDPPortRoCE}); err != nil {
				t.Fatal(err)
			}
			expectOne(t, b, before, c.want)
		})
	}
}

// TestWireVLAN checks that a VLAN netdev carries packets of its own, which the
// netdev below does not accept.
func TestWireVLAN(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	addr := []netip.Addr{netip.MustParseAddr("10.88.7.1"), netip.MustParseAddr("10.88.7.2")}
	for i, h := range []*netnstest.Host{pair.A, pair.B} {
		addVLAN(t, h, "eth0.7", 7)
		ip(t, h, "addr", "add", addr[i].String()+"/24", "dev", "eth0.7")
	}
	base := openEnd(t, pair.B, "eth0")
	a, b := openEnd(t, pair.A, "eth0.7"), openEnd(t, pair.B, "eth0.7")
	if a.info.VLAN != 7 || base.info.VLAN != 0 {
		t.Errorf("VLAN ids %d and %d, want 7 and 0", a.info.VLAN, base.info.VLAN)
	}
	capture := pair.B.StartCapture(t, netnstest.CaptureOptions{Filter: "not vlan and (ether proto 0x8915 or udp port 4791)"})
	checkCross(t, a, b, a.pathV1(b))
	checkCross(t, a, b, pathV2(addr[0], addr[1]))
	ll := pathV2(netip.AddrFrom16(a.self.Load().def), netip.AddrFrom16(b.self.Load().def))
	ll.dmac = b.info.HWAddr
	checkCross(t, a, b, ll)
	if _, err := capture.Stop(); err != nil {
		t.Fatal(err)
	}
	if tr, err := capture.Count(); err != nil || tr.RoCEv1.Packets+tr.RoCEv2.Packets != 0 {
		t.Errorf("packets without VLAN tag: %+v, %v", tr, err)
	}
	if s := base.counters(); s.RxPackets != 0 {
		t.Errorf("eth0 took packets of eth0.7: %+v", s)
	}
}

func addVLAN(t *testing.T, h *netnstest.Host, name string, id int) {
	t.Helper()
	if err := h.Do(func() error {
		parent, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = name, parent.Attrs().Index
		v := &netlink.Vlan{LinkAttrs: attrs, VlanId: id}
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		return netlink.LinkSetUp(v)
	}); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no VLAN netdevs: run `modprobe 8021q` where the kernel has that module")
	} else if err != nil {
		t.Fatal(err)
	}
}

// TestWireDown takes the netdev down and up, then deletes it.
func TestWireDown(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	a, b := openEnd(t, pair.A, "eth0"), openEnd(t, pair.B, "eth0")
	p := a.pathV1(b)
	pkts := []packet{testPacket(header.SendOnly, 1, 10), testPacket(header.SendOnly, 2, 10)}
	if err := pair.A.SetLink(0, false); err != nil {
		t.Fatal(err)
	}
	if err := a.send(p, pkts); err != nil {
		t.Errorf("send with the netdev down: %v", err)
	}
	if s := a.counters(); s.TxLost != 2 {
		t.Errorf("counters %+v, want 2 lost", s)
	}
	// Both ends work again after their netdev was down.
	for _, host := range []*netnstest.Host{pair.A, pair.B} {
		for _, up := range []bool{false, true} {
			if err := host.SetLink(0, up); err != nil {
				t.Fatal(err)
			}
		}
		before := b.counters().RxPackets
		if err := netnstest.Until(testkind.Patience, func() error {
			if err := a.send(p, pkts); err != nil {
				return netnstest.Stop(err)
			}
			if s := b.counters(); s.RxPackets == before {
				return fmt.Errorf("%s was down and up: nothing received: %+v", host.Name, s)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	deleteLink(t, pair.A, "eth0")
	for _, e := range []*wireEnd{a, b} { // deleting a veth deletes its peer too
		if err := netnstest.Until(testkind.Patience, func() error {
			if err := e.send(p, pkts); !errors.Is(err, errNetdevGone) {
				return fmt.Errorf("send on a deleted netdev: %v, want errNetdevGone", err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// TestWireBusyNetdev fills the queue of a netdev that does not accept packets
// for a while: send must not wait, and must count the lost packets.
func TestWireBusyNetdev(t *testing.T) {
	t.Run("Ring", func(t *testing.T) { testBusyNetdev(t, true) })
	t.Run("NoRing", func(t *testing.T) { testBusyNetdev(t, false) })
}

func testBusyNetdev(t *testing.T, ring bool) {
	netnstest.Require(t, "tc")
	pair := netnstest.New(t, netnstest.Options{})
	a, b := openQuiet(t, pair.A, "eth0"), openEnd(t, pair.B, "eth0")
	if _, err := pair.A.Output(t.Context(), "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "200kbit", "burst", "3000", "limit", "1000000"); err != nil {
		t.Skipf("needs the tbf qdisc: run `modprobe sch_tbf` (%v)", err)
	}
	for _, fd := range []int{a.v1.tx, a.v1.out.fd} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 32<<10); err != nil {
			t.Fatal(err)
		}
	}
	a.v1.out.off = !ring
	pkts := make([]packet, ioBatch)
	for i := range pkts {
		pkts[i] = testPacket(header.WriteMiddle, uint32(i), 1024)
	}
	if err := a.send(a.pathV1(b), pkts); err != nil {
		t.Fatal(err)
	}
	// If it waited for room, nothing would be lost.
	s := a.counters()
	if s.TxLost == 0 || s.TxPackets == 0 || s.TxLost+s.TxPackets != ioBatch {
		t.Errorf("counters %+v, want some packets sent and some lost", s)
	}
	b.wait(t, 1)
}

func deleteLink(t *testing.T, h *netnstest.Host, name string) {
	t.Helper()
	if err := h.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}); err != nil {
		t.Fatal(err)
	}
}

// TestWireClose opens and closes wires under traffic: nothing may be left,
// and no handler may run afterwards.
func TestWireClose(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	b := openQuiet(t, pair.B, "eth0")
	fds, goroutines := socktest.OpenFiles(t), runtime.NumGoroutine()
	for i := range 20 {
		a := openQuiet(t, pair.A, "eth0")
		closed := make(chan struct{})
		if i%4 != 3 { // close without start must work too
			if err := a.start(func([]inbound) {
				select {
				case <-closed:
					t.Error("handler called after close")
				default:
				}
			}); err != nil {
				t.Fatal(err)
			}
			if err := a.start(func([]inbound) {}); err == nil {
				t.Error("started twice")
			}
		}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			pkts := []packet{testPacket(header.SendOnly, 0, 100)}
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = b.send(b.pathV1(a), pkts)
				if err := a.send(a.pathV1(b), pkts); err != nil && !errors.Is(err, errWireClosed) {
					t.Error(err)
					return
				}
			}
		}()
		if err := netnstest.Until(testkind.Patience, func() error {
			if s := a.counters(); s.TxPackets+s.TxLost < 20 {
				return fmt.Errorf("no traffic: %+v", s)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := a.close(); err != nil {
			t.Error(err)
		}
		close(closed)
		if err := a.send(a.pathV1(b), nil); !errors.Is(err, errWireClosed) {
			t.Errorf("send after close: %v", err)
		}
		if err := a.start(nil); !errors.Is(err, errWireClosed) {
			t.Errorf("start after close: %v", err)
		}
		close(stop)
		<-stopped
	}
	if err := netnstest.Until(testkind.Patience, func() error {
		if f, g := socktest.OpenFiles(t), runtime.NumGoroutine(); f > fds || g > goroutines {
			return fmt.Errorf("%d files and %d goroutines, were %d and %d", f, g, fds, goroutines)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestWireSharedPort opens a second wire on one netdev: it has no version 2 and
// reports the reason.
func TestWireSharedPort(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	first, second := openQuiet(t, pair.A, "eth0"), openQuiet(t, pair.A, "eth0")
	count := func(e *wireEnd) (n int) {
		for _, g := range e.info.GIDs {
			if g.Type == rdmaverbs.RoCEv2 {
				n++
			}
		}
		return n
	}
	if count(first) == 0 || count(second) != 0 {
		t.Errorf("version 2 GIDs: %d and %d, want some and none", count(first), count(second))
	}
	ip := pair.A.Links[0].IPv4
	if err := second.send(pathV2(ip, pair.B.Links[0].IPv4), []packet{testPacket(header.SendOnly, 0, 4)}); err != nil {
		t.Error(err)
	}
	if s := second.counters(); s.TxLost != 1 {
		t.Errorf("counters %+v, want one packet lost", s)
	}
}

// TestPortTakenLeavesNothing opens ports that are taken: a socket that could
// not be bound must not stay.
func TestPortTakenLeavesNothing(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	first := openQuiet(t, pair.A, "eth0")
	if err := pair.A.Do(func() error {
		fds := socktest.OpenFiles(t)
		for range 10 {
			if u, err := openUDPPorts(first.info, 1, nil); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("%v, %v, want EADDRINUSE", u, err)
			}
		}
		if n := socktest.OpenFiles(t); n != fds {
			t.Errorf("%d descriptors, %d before", n, fds)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestLacksV2: a provider says why its devices have no RoCE version 2, before and after they are
// opened, and never because of its own sockets.
func TestLacksV2(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	inA := func(f func()) {
		t.Helper()
		if err := pair.A.Do(func() error { f(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	p := New(WithNetdevs("eth0"))
	want := func(when string, taken bool) {
		t.Helper()
		inA(func() {
			err := p.LacksV2()
			if taken != errors.Is(err, unix.EADDRINUSE) || taken == (err == nil) {
				t.Errorf("%s: %v", when, err)
			}
			if taken && !strings.Contains(err.Error(), "sport = :4791") {
				t.Errorf("%s: %v does not say what to do", when, err)
			}
		})
	}
	open := func() (d rdmaverbs.Device) {
		t.Helper()
		inA(func() {
			var err error
			if d, err = p.Open(t.Context(), namePrefix+"eth0"); err != nil {
				t.Fatal(err)
			}
		})
		return d
	}
	want("at first", false)
	d := open()
	want("with a device", false)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	var other int
	inA(func() {
		var err error
		if other, err = openUDP(udp4, "", header.UDPPortRoCE); err != nil {
			t.Fatal(err)
		}
	})
	want("with the port of another", true)
	d = open()
	want("with a device of version 1", true)
	if err := unix.Close(other); err != nil {
		t.Fatal(err)
	}
	want("with a device that was opened before", true)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	want("at the end", false)
	inA(func() {
		other, err := openUDP(udp4, "", header.UDPPortRoCE)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(other)
		if err := New(WithGIDTypes(rdmaverbs.RoCEv1)).LacksV2(); err != nil {
			t.Errorf("version 1 alone: %v", err)
		}
	})
}

// TestWireNoAllocs checks that neither direction allocates per packet.
func TestWireNoAllocs(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	got := make(chan int, 1024)
	a := openQuiet(t, pair.A, "eth0")
	b := openRaw(t, pair.B, "eth0", func(batch []inbound) { got <- len(batch) })
	timeout := time.After(testkind.Patience)
	pkts := make([]packet, ioBatch)
	for i := range pkts {
		pkts[i] = testPacket(header.WriteMiddle, uint32(i), 1024)
	}
	for _, kind := range []string{"v1", "v2", "link-local"} {
		p := benchPath(a, b, pair, kind)
		exchange := func() {
			if err := a.send(p, pkts); err != nil {
				t.Fatal(err)
			}
			for left := len(pkts); left > 0; {
				select {
				case k := <-got:
					left -= k
				case <-timeout:
					t.Fatalf("%s: lost packets: %+v", kind, b.counters())
				}
			}
		}
		// The runtime empties the pool of batches sometimes, more often on a
		// busy machine. So one run without allocations is enough: an allocation
		// for each packet would be in every run.
		n := testing.AllocsPerRun(100, exchange)
		for range 4 {
			if n == 0 {
				break
			}
			n = min(n, testing.AllocsPerRun(100, exchange))
		}
		if n > 0 {
			t.Errorf("%s: %v allocations for %d packets", kind, n, len(pkts))
		}
	}
}
