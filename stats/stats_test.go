// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"smcr/smc"
)

func TestBucket(t *testing.T) {
	for size, want := range map[int]int{
		-1: 0, 0: 0, 1: 0, 8192: 0, 8193: 1, 16384: 1, 16385: 2, 65536: 3, 65537: 4,
		524288: 6, 524289: 7, 1048576: 7, 1048577: 8, 1 << 40: 8,
	} {
		if got := Bucket(size); got != want {
			t.Errorf("Bucket(%d) = %d, want %d", size, got, want)
		}
	}
	for i := range Buckets - 1 {
		if limit := BucketLimit(i); Bucket(limit) != i || Bucket(limit+1) != i+1 {
			t.Errorf("class %d does not end at %d", i, limit)
		}
	}
	if BucketLimit(Buckets-1) != 0 || BucketLimit(-1) != 0 {
		t.Error("the last class has a limit")
	}
}

func TestCollector(t *testing.T) {
	var c Collector
	c.TX(100, 100)
	c.TX(10000, 4000)
	c.TX(5, -1)
	c.RX(70000)
	c.RX(0)
	c.Connection(smc.Client, 1)
	c.Connection(smc.Server, 2)
	c.Connection(smc.Server, 2)
	c.HandshakeError(smc.Server)
	c.BufferSize(TX, 65536)
	c.Buffer(TX, Alloc)
	c.BufferSize(RX, 65536)
	c.BufferSize(RX, 16384)
	c.Buffer(RX, Alloc)
	c.Buffer(RX, Reuse)
	c.Buffer(TX, FullPeer)
	c.Buffer(RX, Full)
	c.Call(NoDelay)
	c.Call(Urgent)
	c.Panic()
	want := Stats{
		SMCR: Tech{
			TXSizes: Histogram{1, 1}, RXSizes: Histogram{4: 1},
			TXBufSizes: Histogram{3: 1}, RXBufSizes: Histogram{1: 1, 3: 1},
			TXBufs: Buffers{Alloc: 1, FullPeer: 1}, RXBufs: Buffers{Alloc: 1, Reuse: 1, Full: 1},
			ClientV1: 1, ServerV2: 2, NoDelay: 1, Urgent: 1,
			TXBytes: 4100, RXBytes: 70000, TXCalls: 3, RXCalls: 2,
			NotCounted: CountOptional &^ (CountTXUsage | CountRXUsage),
		},
		ServerHandshakeErrors: 1,
		Panics:                1,
	}
	if diff := cmp.Diff(want, c.Snapshot()); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

func TestFallbacks(t *testing.T) {
	var c Collector
	c.Fallback(smc.Client, 2)
	c.Fallback(smc.Client, 1)
	c.Fallback(smc.Server, 3)
	c.Fallback(smc.Client, 2)
	first := c.Fallbacks()
	want := Fallbacks{ClientTotal: 3, ServerTotal: 1, Reasons: []Fallback{{smc.Server, 3, 1}, {smc.Client, 1, 1}, {smc.Client, 2, 2}}}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("fallbacks (-want +got):\n%s", diff)
	}
	for i := range uint32(100) {
		c.Fallback(smc.Server, 1000+i)
	}
	all := c.Fallbacks()
	if all.ServerTotal != 101 || len(all.Reasons) != MaxReasons+2 {
		t.Errorf("%d fallbacks for %d reasons", all.ServerTotal, len(all.Reasons))
	}
	c.Fallback(smc.Client, 1)
	want = Fallbacks{ClientTotal: 1, Reasons: []Fallback{{smc.Client, 1, 1}}}
	if diff := cmp.Diff(want, c.Fallbacks().Sub(all)); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
}

// TestPeerDeclined: the codes of peers are counted, and those that are made up have one counter.
func TestPeerDeclined(t *testing.T) {
	var c Collector
	mem, vlan := uint32(smc.DiagMem), uint32(smc.DiagVLAN)
	c.PeerDeclined(smc.Client, vlan)
	before := c.Fallbacks()
	c.PeerDeclined(smc.Client, vlan)
	c.PeerDeclined(smc.Server, mem)
	c.Fallback(smc.Server, mem)
	for i := range uint32(1000) {
		c.PeerDeclined(smc.Server, 1000+i)
	}
	declined := uint32(smc.DiagPeerDeclined)
	want := Fallbacks{
		ClientTotal: 2, ServerTotal: 1002,
		Reasons:     []Fallback{{smc.Server, mem, 1}, {smc.Server, declined, 1001}, {smc.Client, declined, 2}},
		PeerReasons: []Fallback{{smc.Server, 0, 1000}, {smc.Server, mem, 1}, {smc.Client, vlan, 2}},
	}
	if diff := cmp.Diff(want, c.Fallbacks()); diff != "" {
		t.Errorf("fallbacks (-want +got):\n%s", diff)
	}
	since := c.Fallbacks().Sub(before)
	if diff := cmp.Diff([]Fallback{{smc.Server, 0, 1000}, {smc.Server, mem, 1}, {smc.Client, vlan, 1}}, since.PeerReasons); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
	sum := before.Add(since)
	if diff := cmp.Diff([]Fallback{{smc.Client, vlan, 2}, {smc.Server, 0, 1000}, {smc.Server, mem, 1}}, sum.PeerReasons); diff != "" {
		t.Errorf("sum (-want +got):\n%s", diff)
	}
}

// TestSub fills every number of two snapshots, so that a field forgotten shows.
func TestSub(t *testing.T) {
	fill := func(factor uint64) Stats {
		var s Stats
		n := uint64(0)
		var walk func(reflect.Value)
		walk = func(v reflect.Value) {
			switch v.Kind() {
			case reflect.Struct:
				for i := range v.NumField() {
					walk(v.Field(i))
				}
			case reflect.Array:
				for i := range v.Len() {
					walk(v.Index(i))
				}
			case reflect.Uint64:
				n++
				v.SetUint(n * factor)
			}
		}
		walk(reflect.ValueOf(&s).Elem())
		return s
	}
	before, now := fill(1), fill(3)
	want := fill(2)
	want.SMCD.RXUsage, want.SMCD.TXUsage = now.SMCD.RXUsage, now.SMCD.TXUsage
	want.SMCR.RXUsage, want.SMCR.TXUsage = now.SMCR.RXUsage, now.SMCR.TXUsage
	want.Engine.Threads = now.Engine.Threads
	if diff := cmp.Diff(want, now.Sub(before)); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, before.Sub(now)); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
}

func TestRate(t *testing.T) {
	d := Tech{RXBytes: 3000, TXBytes: 500, RXCalls: 4, TXCalls: 6, ServerV1: 2}
	want := Rate{RXBytes: 1500, TXBytes: 250, RXCalls: 2, TXCalls: 3, Connections: 1}
	if got := d.Rate(2 * time.Second); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := d.Rate(0); got != (Rate{}) {
		t.Errorf("without time: %+v", got)
	}
}

func TestConcurrent(t *testing.T) {
	var c Collector
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				c.TX(10, 10)
				c.RX(10)
				c.Fallback(smc.Client, 7)
				c.Snapshot()
			}
		})
	}
	wg.Wait()
	s, f := c.Snapshot(), c.Fallbacks()
	if s.SMCR.TXBytes != 80000 || s.SMCR.RXCalls != 8000 || f.ClientTotal != 8000 {
		t.Errorf("%+v %+v", s.SMCR, f)
	}
}

func TestNoAllocation(t *testing.T) {
	var c Collector
	if n := testing.AllocsPerRun(100, func() {
		c.TX(100, 100)
		c.RX(100)
		c.BufferSize(RX, 65536)
		c.Buffer(RX, Reuse)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTX(b *testing.B) {
	var c Collector
	b.ReportAllocs()
	for b.Loop() {
		c.TX(65536, 65536)
	}
}
