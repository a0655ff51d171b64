// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"

	"golang.org/x/sys/unix"
)

// llPair returns a function that opens a device in each namespace, both with
// their default GID as version 2 and without word of the peer's MAC.
func llPair(p *netnstest.Pair, opts ...Option) verbstest.Open {
	return func(t testing.TB) verbstest.Pair {
		end := func(h *netnstest.Host) verbstest.End {
			d := openIn(t, h, "eth0", opts...)
			gids, err := d.GIDs(1)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.Index(gids, rdmaverbs.GIDEntry{GID: defaultGID([6]byte(d.Attr().HWAddr)), Type: rdmaverbs.RoCEv2, NetDev: "eth0"})
			if i != 1 {
				t.Fatalf("the default GID of version 2 is entry %d", i)
			}
			return verbstest.End{Dev: d, SGIDIndex: i}
		}
		return verbstest.Pair{A: end(p.A), B: end(p.B)}
	}
}

// TestLinkLocal: RoCE version 2 between default GIDs goes on whether or not
// the netdevs have these addresses, and while they come and go.
func TestLinkLocal(t *testing.T) {
	netnstest.Require(t, "ethtool", "sysctl")
	noIPv6 := func(t *testing.T, h *netnstest.Host, off string) {
		t.Helper()
		if out, err := h.Command(t.Context(), "sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6="+off).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	// The kernel must compute the checksums, which veth would leave out.
	for _, h := range []*netnstest.Host{p.A, p.B} {
		if out, err := h.Command(t.Context(), "ethtool", "-K", "eth0", "tx", "off").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, tt := range []struct{ name, a, b string }{{"Both", "0", "0"}, {"One", "1", "0"}, {"None", "1", "1"}} {
		t.Run(tt.name, func(t *testing.T) {
			noIPv6(t, p.A, tt.a)
			noIPv6(t, p.B, tt.b)
			t.Run("Verbs", func(t *testing.T) { verbstest.Run(t, llPair(p)) })
			t.Run("Trains", func(t *testing.T) { llBulk(t, llPair(p, WithWriteOnly()), true) })
			t.Run("NoTrains", func(t *testing.T) { llBulk(t, llPair(p, WithWriteOnly(), WithoutSegmentation()), false) })
		})
	}
	t.Run("Changing", func(t *testing.T) {
		noIPv6(t, p.A, "0")
		pair := llPair(p)(t)
		a, b := verbstest.Connect(t, pair, verbstest.Config{MTU: smc.MTU1024, Reads: 4})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 10 {
				ip := []string{"addr", "del", "dev", "eth0", netip.AddrFrom16(defaultGID([6]byte(p.A.Links[0].MAC))).String() + "/64"}
				if i%2 == 1 {
					ip[1] = "add"
					ip = append(ip, "nodad")
				}
				_ = p.A.Command(t.Context(), "ip", ip...).Run()
			}
		}()
		verbstest.Stress(t, a, b, verbstest.StressConfig{Seed: 1, Ops: 400, MaxSize: 20000})
		<-done
		if c := pair.A.Dev.(*Device).Counters(); c.WrongICRC != 0 || c.Overruns != 0 {
			t.Errorf("%+v", c)
		}
	})
}

// llBulk checks that a WRITE of many packets arrives completely. trains says
// that the kernel of the sender splits the trains (Linux 6.2).
func llBulk(t *testing.T, open verbstest.Open, trains bool) {
	t.Helper()
	p := open(t)
	a, b := verbstest.Connect(t, p, verbstest.Config{MTU: smc.MTU1024})
	const size = 1 << 20
	src, from := a.MR(size, 0)
	dst, to := b.MR(size, verbstest.All)
	for i := range from {
		from[i] = byte(i ^ i>>8 ^ i>>16)
	}
	a.Send(rdmaverbs.SendWR{
		ID: 1, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Len: size}},
		RemoteAddr: dst.Addr(), RKey: dst.RKey(),
	})
	a.OK(1, 1)
	if !bytes.Equal(from, to) {
		t.Error("the memory differs")
	}
	if cuts := !p.A.Dev.(*Device).wire.(*netWire).ll.noGSO.Load(); cuts != trains && (cuts || kernelAtLeast(t, 6, 2)) {
		t.Errorf("the kernel cuts trains: %v, want %v", cuts, trains)
	}
	for _, e := range []verbstest.End{p.A, p.B} {
		if c := e.Dev.(*Device).Counters(); c.WrongICRC != 0 || c.Malformed != 0 || c.Overruns != 0 || c.TxLost != 0 {
			t.Errorf("%+v", c)
		}
	}
}

func kernelAtLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var x, y int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &x, &y); err != nil {
		t.Fatal(err)
	}
	return x > major || x == major && y >= minor
}

// TestLinkLocalFrames checks received frames with one packet and with several
// that the kernel has not split, and that damaged ones are dropped.
func TestLinkLocalFrames(t *testing.T) {
	src, dst := defaultGID([6]byte{2, 0, 0, 0, 0, 1}), defaultGID([6]byte{2, 0, 0, 0, 0, 2})
	l := &llPort{packetPort: &packetPort{index: 7}}
	self := &identity{v2: []smc.GID{dst}}
	for _, n := range []int{1, 3} {
		pkts := []packet{testPacket(header.WriteOnly, 1, 1021), testPacket(header.WriteOnly, 2, 1021), testPacket(header.SendOnly, 3, 43)}[:n]
		w, tx := new(netWire), new(txBatch)
		var same [llAtBTH]byte
		w.llHeaders(&same, self, 61000, &path{sgid: src, dgid: dst, dmac: []byte{2, 0, 0, 0, 0, 2}})
		tx.pre.UseIPv6((*[16]byte)(&src), (*[16]byte)(&dst), 61000)
		tx.frame(0, 0, pkts, &same)
		var frame []byte
		for _, v := range unsafe.Slice(tx.msgs[0].hdr.Iov, tx.msgs[0].hdr.Iovlen) {
			frame = append(frame, unsafe.Slice(v.Base, v.Len)...)
		}
		for name, tt := range map[string]struct {
			damage func(frame []byte) []byte
			ll     func(from *unix.RawSockaddrLinklayer)
			want   func(c *wireCounters) *atomic.Uint64
		}{
			"whole":     {want: func(c *wireCounters) *atomic.Uint64 { return &c.rxPackets }},
			"bit":       {damage: func(f []byte) []byte { f[len(f)-20] ^= 1; return f }, want: func(c *wireCounters) *atomic.Uint64 { return &c.dropICRC }},
			"no header": {damage: func(f []byte) []byte { return f[:5] }, want: func(c *wireCounters) *atomic.Uint64 { return &c.dropShort }},
			"cut":       {damage: func(f []byte) []byte { return f[:len(f)-4] }, want: func(c *wireCounters) *atomic.Uint64 { return &c.dropShort }},
			"pieces of no length": {
				damage: func(f []byte) []byte { f[1], f[4], f[5] = vnetGSOUDP, 0, 0; return f },
				want:   func(c *wireCounters) *atomic.Uint64 { return &c.dropShort },
			},
			"IPv4": {damage: func(f []byte) []byte { f[vnetHdrLen+12] = 8; return f }, want: func(c *wireCounters) *atomic.Uint64 { return &c.dropFormat }},
			"VLAN": {ll: func(from *unix.RawSockaddrLinklayer) { from.Ifindex = 8 }, want: func(c *wireCounters) *atomic.Uint64 { return &c.dropMAC }},
			"other host": {
				ll:   func(from *unix.RawSockaddrLinklayer) { from.Pkttype = unix.PACKET_OTHERHOST },
				want: func(c *wireCounters) *atomic.Uint64 { return &c.dropMAC },
			},
		} {
			rx := newRxBatch()
			rx.udp = newUDPRx()
			b := bytes.Clone(frame)
			if tt.damage != nil {
				b = tt.damage(b)
			}
			rx.udp.msgs[0].n = uint32(copy(rx.udp.buf, b))
			from := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&rx.udp.names[0]))
			*from = unix.RawSockaddrLinklayer{Ifindex: 7, Pkttype: unix.PACKET_HOST}
			if tt.ll != nil {
				tt.ll(from)
			}
			var c wireCounters
			l.split(0, rx, self, &c)
			if tt.want(&c).Load() == 0 {
				t.Errorf("%d packets, %s: %+v", n, name, c.snapshot())
			}
			if name != "whole" {
				continue
			}
			if len(rx.in) != n {
				t.Fatalf("%d packets arrive, want %d", len(rx.in), n)
			}
			for i, p := range pkts {
				if !bytes.Equal(rx.in[i].data, flat(p)) || rx.in[i].sgid != src || rx.in[i].smac != self.mac {
					t.Errorf("packet %d of %d arrives as %+v", i, n, rx.in[i])
				}
			}
		}
	}
}
