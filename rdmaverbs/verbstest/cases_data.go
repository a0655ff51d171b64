// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"bytes"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// fill writes a pattern that depends on seed.
func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// sge returns an entry for a whole memory region.
func sge(m rdmaverbs.MR) rdmaverbs.SGE { return rdmaverbs.SGE{MR: m, Len: m.Len()} }

// sizes returns message sizes around the limits of segmentation.
func sizes(mtu int) []int {
	return []int{0, 1, 2, 3, 4, 5, 44, 255, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 2*mtu + 3, 5*mtu + 7}
}

func attributes(t *testing.T, open Open) {
	p := open(t)
	for _, e := range []End{p.A, p.B} {
		a := e.Dev.Attr()
		if a.Provider == "" || a.NumPorts < 1 || a.MaxQP < 1 || a.MaxMR < 1 || a.MaxMsg < 1<<20 || a.MaxQPWR < 64 || a.MaxRead < 1 {
			t.Errorf("attributes of %s: %+v", e.Dev.Name(), a)
		}
		if a.MaxSGE < 2 {
			t.Errorf("%s takes %d scatter/gather entries, rdmaverbs.SendWR has 2", e.Dev.Name(), a.MaxSGE)
		}
		port, err := e.Dev.Port(1)
		if err != nil {
			t.Fatal(err)
		}
		if port.State != rdmaverbs.PortActive || port.ActiveMTU.Bytes() == 0 || port.ActiveMTU > port.MaxMTU {
			t.Errorf("port 1 of %s: %+v", e.Dev.Name(), port)
		}
		gids, err := e.Dev.GIDs(1)
		if err != nil || len(gids) == 0 {
			t.Errorf("GID table of %s: %v, %v", e.Dev.Name(), gids, err)
		}
		if _, err := e.Dev.Port(a.NumPorts + 1); err == nil {
			t.Errorf("%s has %d ports and tells about one more", e.Dev.Name(), a.NumPorts)
		}
	}
}

func send(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	src, data := a.MR(4096, rdmaverbs.AccessLocalWrite)
	dst, got := b.MR(8192, rdmaverbs.AccessLocalWrite)
	fill(data, 1)
	b.Recv(
		rdmaverbs.RecvWR{ID: 1, SG: rdmaverbs.SGE{MR: dst, Len: 4096}},
		rdmaverbs.RecvWR{ID: 2, SG: rdmaverbs.SGE{MR: dst, Off: 4096, Len: 4096}},
		rdmaverbs.RecvWR{ID: 3},
	)
	a.Send(
		rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Len: 100}}},
		rdmaverbs.SendWR{ID: 2, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled | rdmaverbs.Solicited, Imm: 0xdeadbeef,
			SG: [2]rdmaverbs.SGE{{MR: src, Off: 1000, Len: 30}, {MR: src, Off: 3000, Len: 3}}},
		rdmaverbs.SendWR{ID: 3, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled},
	)
	for _, wc := range a.OK(1, 3) {
		if wc.Op != rdmaverbs.WCSend {
			t.Errorf("completed operation %d, want a send", wc.Op)
		}
	}
	wcs := b.OKRecv(1, 3)
	for i, want := range []rdmaverbs.WC{
		{ID: 1, Op: rdmaverbs.WCRecv, Len: 100},
		{ID: 2, Op: rdmaverbs.WCRecv, Len: 33, Imm: 0xdeadbeef, HasImm: true},
		{ID: 3, Op: rdmaverbs.WCRecv},
	} {
		want.QPN = b.QP.QPN()
		if wcs[i] != want {
			t.Errorf("receive completion %+v, want %+v", wcs[i], want)
		}
	}
	if !bytes.Equal(got[:100], data[:100]) || !bytes.Equal(got[4096:4126], data[1000:1030]) || !bytes.Equal(got[4126:4129], data[3000:3003]) {
		t.Error("data differs")
	}
}

// sendSplit sends into receive requests with two pieces of memory.
func sendSplit(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	src, data := a.MR(1<<14, rdmaverbs.AccessLocalWrite)
	one, head := b.MR(1<<14, rdmaverbs.AccessLocalWrite)
	two, tail := b.MR(1<<14, rdmaverbs.AccessLocalWrite)
	fill(data, 3)
	mtu := a.Path.PathMTU.Bytes()
	id := uint64(0)
	for _, cut := range []int{0, 64, mtu - 1, mtu, mtu + 100} {
		for _, n := range []int{0, 1, cut, cut + 1, 2*mtu + 7, 3 * mtu} {
			id++
			clear(head)
			clear(tail)
			b.Recv(rdmaverbs.RecvWR{ID: id, SG: rdmaverbs.SGE{MR: one, Off: 8, Len: cut}, More: rdmaverbs.SGE{MR: two, Off: 16, Len: 15000}})
			a.Send(rdmaverbs.SendWR{ID: id, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Len: n}}})
			a.OK(id, 1)
			if wc := b.OKRecv(id, 1)[0]; wc.Len != n {
				t.Errorf("%d bytes sent, %d received", n, wc.Len)
			}
			first := min(n, cut)
			checkOnly(t, head, 8, data[:first])
			checkOnly(t, tail, 16, data[first:n])
		}
	}
	// Both are full.
	b.Recv(rdmaverbs.RecvWR{ID: 99, SG: rdmaverbs.SGE{MR: one, Len: 10}, More: rdmaverbs.SGE{MR: two, Len: 10}})
	a.Send(rdmaverbs.SendWR{ID: 99, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Len: 21}}})
	a.Fails(a.SendCQ, 99, rdmaverbs.StatusRemInvReqErr)
	b.Fails(b.RecvCQ, 99, rdmaverbs.StatusLocLenErr)
}

func sendSizes(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	ns := sizes(a.Path.PathMTU.Bytes())
	src, data := a.MR(1<<16, rdmaverbs.AccessLocalWrite)
	dst, got := b.MR(1<<16, rdmaverbs.AccessLocalWrite)
	fill(data, 2)
	for i, n := range ns {
		clear(got)
		b.Recv(rdmaverbs.RecvWR{ID: uint64(i), SG: sge(dst)})
		a.Send(rdmaverbs.SendWR{ID: uint64(i), Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Off: i, Len: n}}})
		a.OK(uint64(i), 1)
		if wc := b.OKRecv(uint64(i), 1)[0]; wc.Len != n {
			t.Errorf("%d bytes sent, %d received", n, wc.Len)
		}
		checkOnly(t, got, 0, data[i:i+n])
	}
}

// checkOnly checks that memory holds data at off, and zeros elsewhere.
func checkOnly(t testing.TB, memory []byte, off int, data []byte) {
	t.Helper()
	want := make([]byte, len(memory))
	copy(want[off:], data)
	if !bytes.Equal(memory, want) {
		t.Fatalf("message of %d bytes at %d: memory differs at %d", len(data), off, firstDiff(memory, want))
	}
}

func writeSizes(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	src, data := a.MR(1<<16, 0)
	dst, got := b.MR(1<<16, All)
	fill(data, 3)
	for i, n := range sizes(a.Path.PathMTU.Bytes()) {
		clear(got)
		a.Send(rdmaverbs.SendWR{ID: uint64(i), Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled,
			SG:         [2]rdmaverbs.SGE{{MR: src, Off: i, Len: n / 3}, {MR: src, Off: i + n/3, Len: n - n/3}},
			RemoteAddr: dst.Addr() + uint64(17+i), RKey: dst.RKey()})
		if wc := a.OK(uint64(i), 1)[0]; wc.Op != rdmaverbs.WCWrite {
			t.Errorf("completed operation %d, want a write", wc.Op)
		}
		checkOnly(t, got, 17+i, data[i:i+n])
	}
	b.None(b.RecvCQ)
}

func readSizes(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	local, got := a.MR(1<<16, rdmaverbs.AccessLocalWrite)
	remote, data := b.MR(1<<16, rdmaverbs.AccessRemoteRead)
	fill(data, 4)
	for i, n := range sizes(a.Path.PathMTU.Bytes()) {
		clear(got)
		a.Send(rdmaverbs.SendWR{ID: uint64(i), Op: rdmaverbs.OpRead, Flags: rdmaverbs.Signaled,
			SG:         [2]rdmaverbs.SGE{{MR: local, Off: 5, Len: n / 2}, {MR: local, Off: 5 + n/2, Len: n - n/2}},
			RemoteAddr: remote.Addr() + uint64(i), RKey: remote.RKey()})
		if wc := a.OK(uint64(i), 1)[0]; wc.Op != rdmaverbs.WCRead {
			t.Errorf("completed operation %d, want a read", wc.Op)
		}
		checkOnly(t, got, 5, data[i:i+n])
	}
}

func largeMessages(t *testing.T, open Open) {
	const size = 3<<20 + 5
	a, b := Connect(t, open(t), Config{})
	src, data := a.MR(size, All)
	dst, got := b.MR(size, All)
	fill(data, 5)
	b.Recv(rdmaverbs.RecvWR{ID: 1, SG: sge(dst)})
	sg := [2]rdmaverbs.SGE{sge(src)}
	a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled, SG: sg})
	a.OK(1, 1)
	b.OKRecv(1, 1)
	if !bytes.Equal(got, data) {
		t.Fatal("SEND differs")
	}
	clear(got)
	a.Send(rdmaverbs.SendWR{ID: 2, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: sg, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	a.OK(2, 1)
	if !bytes.Equal(got, data) {
		t.Fatal("WRITE differs")
	}
	clear(data)
	a.Send(rdmaverbs.SendWR{ID: 3, Op: rdmaverbs.OpRead, Flags: rdmaverbs.Signaled, SG: sg, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	a.OK(3, 1)
	if !bytes.Equal(got, data) {
		t.Fatal("READ differs")
	}
}

func writeImm(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	src, data := a.MR(20000, 0)
	dst, got := b.MR(20000, All)
	fill(data, 6)
	for i, n := range []int{0, 7, 20000} {
		id := uint64(i)
		clear(got)
		b.Recv(rdmaverbs.RecvWR{ID: id})
		a.Send(rdmaverbs.SendWR{ID: id, Op: rdmaverbs.OpWriteImm, Flags: rdmaverbs.Signaled, Imm: uint32(100 + i),
			SG: [2]rdmaverbs.SGE{{MR: src, Len: n}}, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		a.OK(id, 1)
		wc := b.OKRecv(id, 1)[0]
		want := rdmaverbs.WC{ID: id, Op: rdmaverbs.WCRecvWriteImm, QPN: b.QP.QPN(), Len: n, Imm: uint32(100 + i), HasImm: true}
		if wc != want {
			t.Errorf("receive completion %+v, want %+v", wc, want)
		}
		checkOnly(t, got, 0, data[:n])
	}
}

func inline(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{MTU: smc.MTU256})
	dst, got := b.MR(4096, All)
	data := make([]byte, 256)
	for i, n := range []int{0, 1, 44, 256} {
		fill(data, uint64(n))
		want := bytes.Clone(data[:n])
		clear(got)
		a.Send(rdmaverbs.SendWR{ID: uint64(i), Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled | rdmaverbs.Inline,
			InlineData: data[:n], RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		clear(data) // inline data was copied
		a.OK(uint64(i), 1)
		checkOnly(t, got, 0, want)
	}
}

func unsignaled(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{MaxSend: 8})
	dst, got := b.MR(64, All)
	// The slots of unsignaled requests are free when a later request completes.
	for i := range 64 {
		wr := rdmaverbs.SendWR{ID: uint64(i), Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Inline, InlineData: []byte{byte(i + 1)},
			RemoteAddr: dst.Addr() + uint64(i), RKey: dst.RKey()}
		if i%8 == 7 {
			wr.Flags |= rdmaverbs.Signaled
		}
		a.Send(wr)
		if i%8 == 7 {
			a.OK(uint64(i), 1)
			a.None(a.SendCQ)
		}
	}
	for i, c := range got {
		if c != byte(i+1) {
			t.Fatalf("byte %d is %d", i, c)
		}
	}
}

// postFromNotify makes B answer each message from its notify function.
func postFromNotify(t *testing.T, open Open) {
	const rounds = 500
	var b *Conn
	var failed atomic.Value
	ready := make(chan struct{})
	var dst rdmaverbs.MR
	a, b := Connect(t, open(t), Config{Notify: func() {
		<-ready
		var wcs [4]rdmaverbs.WC
		for {
			n := b.RecvCQ.Poll(wcs[:])
			if n == 0 {
				return
			}
			for _, wc := range wcs[:n] {
				if wc.Status != rdmaverbs.StatusSuccess {
					return // flushed at the end
				}
				if _, err := b.QP.PostRecv(rdmaverbs.RecvWR{ID: wc.ID + 8, SG: sge(dst)}); err != nil {
					failed.Store(err)
				}
				if _, err := b.QP.PostSend(rdmaverbs.SendWR{ID: wc.ID, Op: rdmaverbs.OpSendImm, Imm: wc.Imm + 1}); err != nil {
					failed.Store(err)
				}
			}
		}
	}})
	dst, _ = b.MR(64, rdmaverbs.AccessLocalWrite)
	for i := range 8 {
		b.Recv(rdmaverbs.RecvWR{ID: uint64(i), SG: sge(dst)})
	}
	close(ready)
	for i := range rounds {
		a.Recv(rdmaverbs.RecvWR{ID: uint64(i)})
		a.Send(rdmaverbs.SendWR{ID: uint64(i), Op: rdmaverbs.OpSendImm, Imm: uint32(i), Flags: rdmaverbs.Inline | rdmaverbs.Signaled, InlineData: make([]byte, 44)})
		a.OK(uint64(i), 1)
		if wc := a.OKRecv(uint64(i), 1)[0]; wc.Imm != uint32(i+1) {
			t.Fatalf("round %d: answer %d", i, wc.Imm)
		}
		if err := failed.Load(); err != nil {
			t.Fatal(err)
		}
	}
}

// manyQueuePairs uses many connections at the same time.
func manyQueuePairs(t *testing.T, open Open) {
	const conns, msgs, size = 24, 20, 9000
	p := open(t)
	type pairOf struct {
		a, b      *Conn
		src, dst  rdmaverbs.MR
		data, got []byte
	}
	var ps []pairOf
	for i := range conns {
		// So many connections overrun a receiver that the race detector slows
		// down, so the timeout is longer.
		a, b := Connect(t, p, Config{Timeout: 18})
		c := pairOf{a: a, b: b}
		c.src, c.data = a.MR(msgs*size, 0)
		c.dst, c.got = b.MR(msgs*size, All)
		fill(c.data, uint64(i))
		ps = append(ps, c)
	}
	for m := range msgs {
		for _, c := range ps {
			c.a.Send(rdmaverbs.SendWR{ID: uint64(m), Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled,
				SG: [2]rdmaverbs.SGE{{MR: c.src, Off: m * size, Len: size}}, RemoteAddr: c.dst.Addr() + uint64(m*size), RKey: c.dst.RKey()})
		}
	}
	for i, c := range ps {
		c.a.OK(0, msgs)
		if !bytes.Equal(c.data, c.got) {
			t.Errorf("connection %d: data differs", i)
		}
	}
}

func stressMixed(t *testing.T, open Open) {
	p := open(t)
	for seed := range uint64(2) {
		a, b := Connect(t, p, Config{PSN: 0xffffff - 100, Reads: uint8(1 + seed*3)})
		ops := 600
		if testing.Short() {
			ops = 100
		}
		Stress(t, a, b, StressConfig{Seed: seed, Ops: ops, MaxSize: 20000})
	}
}
