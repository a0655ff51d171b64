// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// listenRoCE takes the UDP port of RoCE version 2 in a namespace, where no
// device may be open.
func listenRoCE(t *testing.T, h *netnstest.Host, network string) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	if err := h.Do(func() (err error) {
		c, err = net.ListenUDP(network, &net.UDPAddr{Port: header.UDPPortRoCE})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// sourceOf sends a packet on a path and returns the UDP port that it comes from.
func (e *wireEnd) sourceOf(t *testing.T, to *net.UDPConn, p *path) uint16 {
	t.Helper()
	if err := e.send(p, []packet{testPacket(header.SendOnly, 0, 8)}); err != nil {
		t.Fatal(err)
	}
	if err := to.SetReadDeadline(time.Now().Add(testkind.Patience)); err != nil {
		t.Fatal(err)
	}
	_, from, err := to.ReadFromUDPAddrPort(make([]byte, 2048))
	if err != nil {
		t.Fatal(err)
	}
	return from.Port()
}

// TestSourcePorts: packets of one path have one UDP source port, a dynamic one,
// and paths that ask for others have others, so that a network with parallel
// links spreads them (annex A17).
func TestSourcePorts(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	la, lb := pair.A.Links[0], pair.B.Links[0]
	a := openQuiet(t, pair.A, la.Name)
	for _, c := range []struct {
		network  string
		from, to netip.Addr
	}{
		{"udp4", la.IPv4, lb.IPv4},
		{"udp6", la.IPv6, lb.IPv6},
	} {
		t.Run(c.network, func(t *testing.T) {
			conn := listenRoCE(t, pair.B, c.network)
			var ports []uint16
			for i := range uint16(2 * srcPorts) {
				p := pathV2(c.from, c.to)
				p.flow = i
				port := a.sourceOf(t, conn, p)
				if again := a.sourceOf(t, conn, p); again != port {
					t.Errorf("path %d: source ports %d and %d", i, port, again)
				}
				if port < minSourcePort {
					t.Errorf("source port %d is not a dynamic one", port)
				}
				ports = append(ports, port)
			}
			slices.Sort(ports)
			if n := len(slices.Compact(ports)); n != srcPorts {
				t.Errorf("%d source ports, want %d", n, srcPorts)
			}
		})
	}
}

// TestSourcePortOfQueuePair: the queue pairs of one device do not all have the same
// source port.
func TestSourcePortOfQueuePair(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	a, b := openIn(t, pair.A, "eth0"), openIn(t, pair.B, "eth0")
	sources := map[uint16]bool{}
	for range 16 {
		x, _ := verbstest.Connect(t, verbstest.Pair{A: endFor(t, a, b, rdmaverbs.RoCEv2), B: endFor(t, b, a, rdmaverbs.RoCEv2)}, verbstest.Config{})
		q := x.QP.(*qp)
		p := a.wire.(*netWire).sources().port(&q.path)
		if p < minSourcePort {
			t.Errorf("source port %d is not a dynamic one", p)
		}
		sources[p] = true
	}
	if len(sources) < 2 {
		t.Error("16 queue pairs have one source port")
	}
}

// TestHeaders: packets leave with the hop limit of the path; those of version 2
// with a UDP checksum, with Don't Fragment over IPv4 (annex A17, A17.3.1.2), and
// from the GID of the path where the netdev has several addresses.
func TestHeaders(t *testing.T) {
	netnstest.Require(t, "tshark", "ethtool")
	pair := netnstest.New(t, netnstest.Options{})
	cutInSoftware(t, pair.A)
	second := netip.MustParseAddr("10.77.0.91")
	ip(t, pair.A, "addr", "add", second.String()+"/24", "dev", "eth0")
	la, lb := pair.A.Links[0], pair.B.Links[0]
	a, b := openQuiet(t, pair.A, la.Name), openEnd(t, pair.B, lb.Name)
	capture := pair.B.StartCapture(t, netnstest.CaptureOptions{Filter: "ether proto 0x8915 or udp port 4791"})
	var paths []*path
	for _, p := range []*path{
		pathV2(la.IPv4, lb.IPv4), pathV2(second, lb.IPv4), pathV2(la.IPv6, lb.IPv6), pathV2(a.linkLocal(t), b.linkLocal(t)), a.pathV1(b),
	} {
		for _, hops := range []uint8{1, 64} {
			p := *p
			p.dmac, p.hopLimit = lb.MAC, hops
			paths = append(paths, &p)
			if err := a.send(&p, []packet{testPacket(header.SendOnly, 0, 8)}); err != nil {
				t.Fatal(err)
			}
			b.wait(t, len(paths))
		}
	}
	if _, err := capture.Stop(); err != nil {
		t.Fatal(err)
	}
	args := []string{"-r", capture.File, "-o", "udp.check_checksum:TRUE", "-T", "fields", "-E", "separator=,"}
	for _, f := range []string{"ip.src", "ip.flags.df", "ip.ttl", "ipv6.src", "ipv6.hlim", "infiniband.grh.hoplmt", "udp.checksum.status"} {
		args = append(args, "-e", f)
	}
	got := toolOutput(t, "tshark", args...)
	if len(got) != len(paths) {
		t.Fatalf("captured %d packets, want %d", len(got), len(paths))
	}
	for i, p := range paths {
		const good = 1 // of a checksum
		src := p.sgid.Addr()
		want := fmt.Sprintf("%s,1,%d,,,,%d", src, p.hopLimit, good)
		switch {
		case p.typ == rdmaverbs.RoCEv1:
			want = fmt.Sprintf(",,,,,%d,", p.hopLimit)
		case src.Is6():
			want = fmt.Sprintf(",,,%s,%d,,%d", src, p.hopLimit, good)
		}
		if got[i] != want {
			t.Errorf("packet %d: %s, want %s", i, got[i], want)
		}
	}
}

// TestNoFragments: a packet that exceeds the MTU of the netdev is not
// fragmented.
func TestNoFragments(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	la, lb := pair.A.Links[0], pair.B.Links[0]
	a, b := openEnd(t, pair.A, la.Name), openEnd(t, pair.B, lb.Name)
	for i, p := range []*path{pathV2(la.IPv4, lb.IPv4), pathV2(la.IPv6, lb.IPv6)} {
		for psn, size := range []int{2048, 1024} { // not as one message
			if err := a.send(p, []packet{testPacket(header.WriteMiddle, uint32(psn+1), size)}); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.wait(t, i+1)[i]; header.BTH(got.data).PSN() != 2 {
			t.Errorf("packet %d of 2048 bytes arrived", header.BTH(got.data).PSN())
		}
		if s := a.counters(); s.TxLost != uint64(i+1) {
			t.Errorf("%d packets lost, want %d", s.TxLost, i+1)
		}
	}
}

// TestAddressesChange: a wire accepts packets for an address that was added to
// its netdev later, and none for an address that was removed. With a new MAC
// address it has the default GID of that address.
func TestAddressesChange(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	la := pair.A.Links[0]
	a, b := openEnd(t, pair.A, la.Name), openEnd(t, pair.B, "eth0")
	added := netip.MustParseAddr("10.77.0.55")
	has := func(g smc.GID, want bool) {
		t.Helper()
		if err := netnstest.Until(testkind.Patience, func() error {
			if self := b.self.Load(); slices.Contains(self.v1, g) != want || slices.Contains(self.v2, g) != want {
				return fmt.Errorf("GID %v is ours: not %v", g, want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	v1To := func(g smc.GID, mac net.HardwareAddr) *path {
		return &path{typ: rdmaverbs.RoCEv1, sgid: a.info.GIDs[0].GID, dgid: g, dmac: mac}
	}
	ip(t, pair.B, "addr", "add", added.String()+"/24", "dev", "eth0")
	has(gidOf(added), true)
	checkCross(t, a, b, pathV2(la.IPv4, added))
	checkCross(t, a, b, v1To(gidOf(added), b.info.HWAddr))

	ip(t, pair.B, "addr", "del", added.String()+"/24", "dev", "eth0")
	has(gidOf(added), false)
	before := b.counters()
	if err := a.send(v1To(gidOf(added), b.info.HWAddr), []packet{testPacket(header.SendOnly, 0, 8)}); err != nil {
		t.Fatal(err)
	}
	expectOne(t, b, before, func(s *wireStats) *uint64 { return &s.DropGID })

	was := defaultGID([6]byte(b.info.HWAddr))
	mac := net.HardwareAddr{2, 0, 0, 0, 0x33, 0x44}
	ip(t, pair.B, "-6", "addr", "flush", "dev", "eth0", "scope", "link") // else the old default GID stays as an address
	ip(t, pair.B, "link", "set", "eth0", "address", mac.String())
	now := defaultGID([6]byte(mac))
	has(now, true)
	has(was, false)
	checkCross(t, a, b, v1To(now, mac))
	b.info.HWAddr = mac // what checkCross wants as the source
	checkCross(t, b, a, &path{typ: rdmaverbs.RoCEv1, sgid: now, dgid: a.info.GIDs[0].GID, dmac: a.info.HWAddr})
}

// TestSourceMAC: packets between link-local GIDs that bypass the IP stack have
// the MAC address of the netdev as source.
func TestSourceMAC(t *testing.T) {
	netnstest.Require(t, "sysctl")
	pair := netnstest.New(t, netnstest.Options{})
	// So the packets also bypass the IP stack at the receiver, with their MAC
	// addresses.
	if out, err := pair.B.Command(t.Context(), "sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a, b := openEnd(t, pair.A, "eth0"), openEnd(t, pair.B, "eth0")
	p := pathV2(netip.AddrFrom16(a.self.Load().def), netip.AddrFrom16(b.self.Load().def))
	p.dmac = b.info.HWAddr
	var got []inbound
	if err := netnstest.Until(testkind.Patience, func() error { // the reception begins with the first report
		if err := a.send(p, []packet{testPacket(header.SendOnly, 0, 8)}); err != nil {
			return netnstest.Stop(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if got = b.got; len(got) == 0 {
			return fmt.Errorf("nothing received: %+v", b.counters())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if mac := net.HardwareAddr(got[0].smac[:]); mac.String() != a.info.HWAddr.String() {
		t.Errorf("from %v, want %v", mac, a.info.HWAddr)
	}
}

// TestOnlyOwnGID: a queue pair accepts packets from its peer only for the GID
// that it is connected with, not for another GID of its device.
func TestOnlyOwnGID(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	ip(t, pair.B, "addr", "add", "10.77.0.66/24", "dev", "eth0")
	a, b := openIn(t, pair.A, "eth0"), openIn(t, pair.B, "eth0")
	x, y := verbstest.Connect(t, verbstest.Pair{A: endFor(t, a, b, rdmaverbs.RoCEv2), B: endFor(t, b, a, rdmaverbs.RoCEv2)}, verbstest.Config{})
	y.Recv(rdmaverbs.RecvWR{ID: 1})
	p := x.QP.(*qp).path
	p.dgid = gidOf(netip.MustParseAddr("10.77.0.66"))
	hdr := make([]byte, header.BTHLen)
	header.BTH(hdr).Encode(&header.BTHFields{Opcode: header.SendOnly, PKey: header.DefaultPKey, DestQP: y.QP.QPN(), PSN: y.Path.RQPSN})
	if err := a.wire.send(&p, []packet{{hdr: hdr}}); err != nil {
		t.Fatal(err)
	}
	if err := netnstest.Until(testkind.Patience, func() error {
		if c := b.Counters(); c.WrongPeer != 1 {
			return fmt.Errorf("counters %+v", c)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	y.None(y.RecvCQ)
	x.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled})
	x.OK(1, 1)
	y.OKRecv(1, 1)
}

// TestMTUOfNetdev: a queue pair rejects a path MTU that its netdev does not
// carry; 4096 bytes is the largest.
func TestMTUOfNetdev(t *testing.T) {
	for mtu, want := range map[int]smc.MTU{1500: smc.MTU1024, 9000: smc.MTU4096} {
		pair := netnstest.New(t, netnstest.Options{MTU: mtu})
		a, b := openIn(t, pair.A, "eth0"), openIn(t, pair.B, "eth0")
		x, _ := verbstest.Create(t, verbstest.Pair{A: endFor(t, a, b, rdmaverbs.RoCEv2), B: endFor(t, b, a, rdmaverbs.RoCEv2)}, verbstest.Config{})
		if p, err := a.Port(1); err != nil || p.ActiveMTU != want {
			t.Errorf("netdev of %d bytes: MTU code %d, %v, want %d", mtu, p.ActiveMTU, err, want)
		}
		x.Path.PathMTU = want + 1
		if err := x.QP.ToRTR(x.Path); !errors.Is(err, rdmaverbs.ErrInvalid) {
			t.Errorf("netdev of %d bytes, MTU code %d: %v", mtu, x.Path.PathMTU, err)
		}
		x.Path.PathMTU = want
		x.ToRTS()
	}
}

// TestTentativeAddress: an address that another host has does not become a GID.
func TestTentativeAddress(t *testing.T) {
	netnstest.Require(t, "sysctl")
	pair := netnstest.New(t, netnstest.Options{})
	for _, set := range []string{"all.accept_dad=1", "eth0.accept_dad=1", "eth0.dad_transmits=1"} {
		if out, err := pair.A.Command(t.Context(), "sysctl", "-qw", "net.ipv6.conf."+set).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	ip(t, pair.B, "addr", "add", "fd09::9/64", "dev", "eth0", "nodad")
	ip(t, pair.A, "addr", "add", "fd09::9/64", "dev", "eth0")
	ip(t, pair.A, "addr", "add", "fd09::8/64", "dev", "eth0")
	gid := func(s string) smc.GID { return gidOf(netip.MustParseAddr(s)) }
	if err := pair.A.Do(func() error {
		f, err := newFacts()
		if err != nil {
			return err
		}
		defer f.close()
		has := func(g smc.GID) bool {
			i, err := f.byName("eth0")
			return err == nil && slices.ContainsFunc(i.GIDs, func(e rdmaverbs.GIDEntry) bool { return e.GID == g })
		}
		return netnstest.Until(testkind.Patience, func() error {
			out, err := pair.A.Output(t.Context(), "ip", "-6", "addr", "show", "dev", "eth0")
			if err != nil {
				return netnstest.Stop(err)
			}
			if has(gid("fd09::9")) {
				return netnstest.Stop(fmt.Errorf("another host's address is a GID:\n%s", out))
			}
			if !strings.Contains(string(out), "dadfailed") || !has(gid("fd09::8")) {
				return fmt.Errorf("not there yet:\n%s", out)
			}
			return nil
		})
	}); err != nil {
		t.Error(err)
	}
}
