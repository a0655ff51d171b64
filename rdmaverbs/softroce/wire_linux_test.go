// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"

	"github.com/google/go-cmp/cmp"
)

// wireEnd is a wire under test with what it received.
type wireEnd struct {
	*netWire
	info *netdevInfo

	mu  sync.Mutex
	got []inbound // data copied
}

// openEnd opens a wire in a namespace, or in ours if host is nil, and
// collects what it receives.
func openEnd(t testing.TB, host *netnstest.Host, netdev string) *wireEnd {
	t.Helper()
	e := openQuiet(t, host, netdev)
	if err := e.start(func(batch []inbound) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, in := range batch {
			in.data = bytes.Clone(in.data)
			e.got = append(e.got, in)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return e
}

// openQuiet is openEnd without start.
func openQuiet(t testing.TB, host *netnstest.Host, netdev string, opts ...Option) *wireEnd {
	t.Helper()
	e := new(wireEnd)
	open := func() error {
		w, info, _, err := openWire(netdev, New(opts...).c)
		if err == nil {
			e.netWire, e.info = w.(*netWire), info
		}
		return err
	}
	var err error
	if host == nil {
		err = open()
	} else {
		err = host.Do(open)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// wait waits until n packets were received, and returns all.
func (e *wireEnd) wait(t testing.TB, n int) []inbound {
	t.Helper()
	if err := netnstest.Until(testkind.Patience, func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.got) < n {
			return fmt.Errorf("received %d packets, want %d; counters %+v", len(e.got), n, e.counters())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got
}

// testPacket is a packet with opcode op and n payload bytes, in two pieces.
func testPacket(op header.Opcode, psn uint32, n int) packet {
	hdr := make([]byte, op.HeaderLen())
	header.BTH(hdr).Encode(&header.BTHFields{
		Opcode: op, PadCount: uint8(-n & 3), PKey: header.DefaultPKey, DestQP: 0x112233, AckReq: true, PSN: psn,
	})
	at := header.BTHLen
	if op.HasRETH() {
		header.RETH(hdr[at:]).Encode(&header.RETHFields{VA: 0x0102030405060708, RKey: 0xa0b0c0d0, DMALen: uint32(n)})
		at += header.RETHLen
	}
	if op.HasAETH() {
		header.AETH(hdr[at:]).Encode(header.ACKNoCredits, 7)
		at += header.AETHLen
	}
	if op.HasImmDt() {
		header.ImmDt(hdr[at:]).SetImm(0xcafef00d)
	}
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i + int(psn))
	}
	cut := n / 3
	return packet{hdr: hdr, payload: [2][]byte{p[:cut], p[cut:]}}
}

// flat returns the bytes of p as a receiver gets them.
func flat(p packet) []byte {
	b := bytes.Join([][]byte{p.hdr, p.payload[0], p.payload[1]}, nil)
	return append(b, make([]byte, header.BTH(p.hdr).PadCount())...)
}

func gidOf(ip netip.Addr) smc.GID { return ip.As16() }

// pathV1 leads from e to peer.
func (e *wireEnd) pathV1(peer *wireEnd) *path {
	return &path{typ: rdmaverbs.RoCEv1, sgid: e.info.GIDs[0].GID, dgid: peer.info.GIDs[0].GID, dmac: peer.info.HWAddr}
}

func pathV2(from, to netip.Addr) *path {
	return &path{typ: rdmaverbs.RoCEv2, sgid: gidOf(from), dgid: gidOf(to)}
}

// linkLocal returns the link-local IPv6 address of an end's netdev, waiting
// for the kernel to assign it.
func (e *wireEnd) linkLocal(t testing.TB) netip.Addr {
	t.Helper()
	want := defaultGID([6]byte(e.info.HWAddr))
	if err := netnstest.Until(testkind.Patience, func() error {
		for _, g := range e.self.Load().v2 {
			if g == want {
				return nil
			}
		}
		return fmt.Errorf("%v is not assigned: %v", want, e.self.Load().v2)
	}); err != nil {
		t.Fatal(err)
	}
	return netip.AddrFrom16(want)
}

// TestWireCross sends every opcode both ways between two hosts, over each
// encapsulation.
func TestWireCross(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprintf("mtu=%d", mtu), func(t *testing.T) {
			t.Parallel()
			pair := netnstest.New(t, netnstest.Options{MTU: mtu})
			la, lb := pair.A.Links[0], pair.B.Links[0]
			a, b := openEnd(t, pair.A, la.Name), openEnd(t, pair.B, lb.Name)
			if a.info.MTU != mtu {
				t.Errorf("MTU %d, want %d", a.info.MTU, mtu)
			}
			for _, c := range []struct {
				name       string
				there, rev *path
			}{
				{"v1", a.pathV1(b), b.pathV1(a)},
				{"v2 IPv4", pathV2(la.IPv4, lb.IPv4), pathV2(lb.IPv4, la.IPv4)},
				{"v2 IPv6", pathV2(la.IPv6, lb.IPv6), pathV2(lb.IPv6, la.IPv6)},
				{"v2 link-local", pathV2(a.linkLocal(t), b.linkLocal(t)), pathV2(b.linkLocal(t), a.linkLocal(t))},
			} {
				t.Run(c.name, func(t *testing.T) {
					checkCross(t, a, b, c.there)
					checkCross(t, b, a, c.rev)
				})
			}
			t.Run("v2 without UDP_SEGMENT", func(t *testing.T) {
				a.v2.noGSO.Store(true)
				checkCross(t, a, b, pathV2(la.IPv4, lb.IPv4))
			})
			for _, e := range []*wireEnd{a, b} {
				if s := e.counters(); s.dropped() != 0 || s.TxLost != 0 || s.Overruns != 0 {
					t.Errorf("counters %+v, want no loss", s)
				}
			}
		})
	}
}

// dropped adds up what reception dropped.
func (s wireStats) dropped() uint64 {
	return s.DropMAC + s.DropShort + s.DropFormat + s.DropGID + s.DropLoopback + s.DropICRC + s.DropVersion + s.DropQP + s.DropPKey
}

// TestSegments checks what goes into one UDP_SEGMENT message.
func TestSegments(t *testing.T) {
	for _, c := range []struct {
		name    string
		lengths []int
		want    []int
	}{
		{"one", []int{8}, []int{1}},
		{"equal", []int{8, 8, 8}, []int{3}},
		{"shorter end", []int{8, 8, 4}, []int{3}},
		{"longer end", []int{8, 8, 12}, []int{2, 1}},
		{"first is longer than the middle ones", []int{24, 8, 8, 8, 4}, []int{1, 4}},
		{"two messages", []int{8, 8, 4, 8, 8, 4}, []int{3, 3}},
		{"falling", []int{12, 8, 4}, []int{2, 1}},
		{"bytes", []int{16000, 16000, 16000, 16000, 16000}, []int{4, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var pkts []packet
			for _, n := range c.lengths {
				pkts = append(pkts, testPacket(header.WriteMiddle, 0, n))
			}
			var got []int
			for len(pkts) > 0 {
				n := segments(pkts, maxSegBytes)
				got = append(got, n)
				pkts = pkts[n:]
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// checkCross sends one packet of each opcode, with various lengths, from a
// to b and compares what arrives.
func checkCross(t *testing.T, a, b *wireEnd, p *path) {
	t.Helper()
	full := min(a.info.pathMTU(p.typ).Bytes(), 4096)
	var pkts []packet
	for op := header.SendFirst; op <= header.Acknowledge; op++ {
		if !op.HasPayload() {
			pkts = append(pkts, testPacket(op, uint32(len(pkts)), 0))
			continue
		}
		for _, n := range []int{0, 1, 2, 3, 4, 255, full} {
			pkts = append(pkts, testPacket(op, uint32(len(pkts)), n))
		}
	}
	b.mu.Lock()
	b.got = nil
	b.mu.Unlock()
	if err := a.send(p, pkts); err != nil {
		t.Fatal(err)
	}
	got := b.wait(t, len(pkts))
	for i, in := range got[:len(pkts)] {
		if !bytes.Equal(in.data, flat(pkts[i])) {
			t.Fatalf("packet %d (%v): data differ\n got %x\nwant %x", i, header.BTH(pkts[i].hdr).Opcode(), in.data, flat(pkts[i]))
		}
		if in.sgid != p.sgid || in.dgid != p.dgid || in.typ != p.typ {
			t.Fatalf("packet %d: %v from %v to %v, want %v from %v to %v", i, in.typ, in.sgid, in.dgid, p.typ, p.sgid, p.dgid)
		}
		if p.typ == rdmaverbs.RoCEv1 && !bytes.Equal(in.smac[:], a.info.HWAddr) {
			t.Fatalf("packet %d: source MAC %v, want %v", i, net.HardwareAddr(in.smac[:]), a.info.HWAddr)
		}
	}
	if len(got) != len(pkts) {
		t.Errorf("received %d packets, want %d", len(got), len(pkts))
	}
}

// TestWireLo sends over lo, where both ends are one netdev: each packet is
// received exactly once.
func TestWireLo(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	e := openEnd(t, pair.A, "lo")
	if !bytes.Equal(e.info.HWAddr, loopbackMAC[:]) || !e.info.Up {
		t.Errorf("lo is %+v", e.info)
	}
	home := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, p := range []*path{e.pathV1(e), pathV2(home, home)} {
		t.Run(fmt.Sprintf("v%d", p.typ), func(t *testing.T) {
			checkCross(t, e, e, p)
			sent := e.counters().TxPackets
			// Real time: no second copy of a packet comes meanwhile.
			time.Sleep(20 * time.Millisecond)
			if got := e.counters().RxPackets; got != sent {
				t.Errorf("received %d packets, sent %d", got, sent)
			}
		})
	}
}

// TestWireSelf sends to the port itself (RoCE annex, A16.7.2); no packet leaves
// the host.
func TestWireSelf(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	a, b := openEnd(t, pair.A, "eth0"), openEnd(t, pair.B, "eth0")
	ip := pair.A.Links[0].IPv4
	for _, p := range []*path{a.pathV1(a), pathV2(ip, ip)} {
		t.Run(fmt.Sprintf("v%d", p.typ), func(t *testing.T) { checkCross(t, a, a, p) })
	}
	if s := b.counters(); s.RxPackets != 0 || s.dropped() != 0 {
		t.Errorf("the peer saw self-addressed packets: %+v", s)
	}
	// A queue without a reader has a limit.
	q := openQuiet(t, pair.B, "lo")
	q.loopback = false
	pkts := []packet{testPacket(header.SendOnly, 0, 4096)}
	for range maxLooped/4096 + 5 {
		if err := q.send(q.pathV1(q), pkts); err != nil {
			t.Fatal(err)
		}
	}
	if s := q.counters(); s.Overruns == 0 {
		t.Errorf("counters %+v, want overruns", s)
	}
}

// TestWireBurst sends trains with the credit that a transport would give and
// expects no loss at all, also by a receiver that is now and then late.
func TestWireBurst(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{MTU: 9000})
	for _, kind := range []string{"v1", "v2"} {
		t.Run(kind, func(t *testing.T) {
			const total, window = 20000, 512
			var got, wrong int
			credit := make(chan struct{}, total)
			src := openRaw(t, pair.A, "eth0", func([]inbound) {})
			dst := openRaw(t, pair.B, "eth0", func(batch []inbound) {
				for _, in := range batch {
					if header.BTH(in.data).PSN() != uint32(got) {
						wrong++
					}
					if got++; got%5000 == 0 {
						// Real time: a receiver that is late.
						time.Sleep(5 * time.Millisecond)
					}
					credit <- struct{}{}
				}
			})
			p := benchPath(src, dst, pair, kind)
			deadline := time.After(testkind.Patience)
			for range window {
				credit <- struct{}{}
			}
			pkts := make([]packet, ioBatch)
			for psn := 0; psn < total; psn += len(pkts) {
				pkts = pkts[:min(ioBatch, total-psn)]
				for i := range pkts {
					pkts[i] = testPacket(header.WriteMiddle, uint32(psn+i), 4096)
					select {
					case <-credit:
					case <-deadline:
						t.Fatalf("stalled: src %+v dst %+v", src.counters(), dst.counters())
					}
				}
				if err := src.send(p, pkts); err != nil {
					t.Fatal(err)
				}
			}
			if err := netnstest.Until(testkind.Patience, func() error {
				if s := dst.counters(); s.RxPackets != total {
					return fmt.Errorf("received %d of %d: %+v", s.RxPackets, total, s)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			if err := dst.close(); err != nil {
				t.Error(err)
			}
			if wrong != 0 {
				t.Errorf("%d packets out of order", wrong)
			}
			src.close()
		})
	}
}
