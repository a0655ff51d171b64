// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// openRaw is openEnd with a handler of the benchmark's own.
func openRaw(t testing.TB, host *netnstest.Host, netdev string, h handler) *wireEnd {
	t.Helper()
	e := openQuiet(t, host, netdev)
	if err := e.start(h); err != nil {
		t.Fatal(err)
	}
	return e
}

// benchPath returns the path from a to b by the encapsulation named.
func benchPath(a, b *wireEnd, pair *netnstest.Pair, kind string) *path {
	switch kind {
	case "v1":
		return a.pathV1(b)
	case "link-local":
		return &path{typ: rdmaverbs.RoCEv2, sgid: a.self.Load().def, dgid: b.self.Load().def, dmac: b.info.HWAddr}
	}
	return pathV2(pair.A.Links[0].IPv4, pair.B.Links[0].IPv4)
}

// BenchmarkWireTrain sends trains of RDMA WRITE packets with one train's
// worth of credit, as the transport does, and reports payload throughput.
func BenchmarkWireTrain(b *testing.B) {
	for _, mtu := range []int{1500, 9000} {
		for _, kind := range []string{"v1", "v2"} {
			b.Run(fmt.Sprintf("%s/mtu=%d", kind, mtu), func(b *testing.B) {
				pair := netnstest.New(b, netnstest.Options{MTU: mtu})
				var got atomic.Int64
				credit := make(chan struct{}, 1024)
				src := openRaw(b, pair.A, "eth0", func([]inbound) {})
				dst := openRaw(b, pair.B, "eth0", func(in []inbound) {
					n := got.Add(int64(len(in)))
					for i := (n - int64(len(in))) / ioBatch; i < n/ioBatch; i++ {
						credit <- struct{}{}
					}
				})
				p := benchPath(src, dst, pair, kind)
				n := src.info.pathMTU(p.typ).Bytes()
				pkts := make([]packet, ioBatch)
				for i := range pkts {
					pkts[i] = testPacket(header.WriteMiddle, uint32(i), n)
				}
				for range 4 {
					credit <- struct{}{}
				}
				b.SetBytes(int64(n))
				b.ReportAllocs()
				b.ResetTimer()
				for sent := 0; sent < b.N; sent += ioBatch {
					select {
					case <-credit:
					case <-time.After(time.Second):
						b.Fatalf("lost packets: sent %+v received %+v", src.counters(), dst.counters())
					}
					if err := src.send(p, pkts); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkWirePingPong sends one packet with a 44-byte payload there and
// back; an operation is a round trip.
func BenchmarkWirePingPong(b *testing.B) {
	for _, kind := range []string{"v1", "v2"} {
		b.Run(kind, func(b *testing.B) {
			pair := netnstest.New(b, netnstest.Options{})
			pkts := []packet{testPacket(header.SendOnly, 1, 44)}
			back := make(chan struct{}, 1)
			x := openRaw(b, pair.A, "eth0", func([]inbound) { back <- struct{}{} })
			y := openQuiet(b, pair.B, "eth0")
			p := benchPath(x, y, pair, kind)
			rev := &path{typ: p.typ, sgid: p.dgid, dgid: p.sgid, dmac: x.info.HWAddr}
			if err := y.start(func([]inbound) { _ = y.send(rev, pkts) }); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if err := x.send(p, pkts); err != nil {
					b.Fatal(err)
				}
				<-back
			}
		})
	}
}
