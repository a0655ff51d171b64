// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// TestRetryExhausted measures how long a queue pair tries to reach a peer
// that is gone: 1 + RetryCnt times the local ACK timeout, to the nanosecond.
func TestRetryExhausted(t *testing.T) {
	testkind.System(t)
	synctest.Test(t, func(t *testing.T) {
		f := newSimNetwork(1, simFaults{delay: time.Microsecond})
		a, b := verbstest.Connect(t, f.pair(t), verbstest.Config{Timeout: 15, RetryCnt: 7})
		dst, _ := b.MR(4096, verbstest.All)
		f.wires[a.Path.DGID].setDown(true)
		start := time.Now()
		a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Inline, InlineData: []byte{1}, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		a.Fails(a.SendCQ, 1, rdmaverbs.StatusRetryExcErr)
		if d, want := time.Since(start), 8*134217728*time.Nanosecond; d != want {
			t.Errorf("gave up after %v, want %v", d, want)
		}
		if ev := <-a.Dev.Events(); ev.Type != rdmaverbs.EventQPFatal || ev.QPN != a.QP.QPN() {
			t.Errorf("event %+v", ev)
		}
		c := a.Dev.(*Device).Counters()
		if c.Timeouts != 8 || c.Retransmits < 7 || a.Dev.(*Device).Resent().Packets != c.Retransmits {
			t.Errorf("counters %+v", c)
		}
		if got, want := a.QP.(rdmaverbs.QPResentCounter).Resent(), (rdmaverbs.Resent{Packets: c.Retransmits, Timeouts: 8}); got != want {
			t.Errorf("the queue pair counts %+v, want %+v as the device", got, want)
		}
		if got := b.QP.(rdmaverbs.QPResentCounter).Resent(); got != (rdmaverbs.Resent{}) {
			t.Errorf("the peer's queue pair, which sent nothing, counts %+v", got)
		}
	})
}

// TestRNRExhausted measures the delays of an RNR NAK.
func TestRNRExhausted(t *testing.T) {
	testkind.System(t)
	synctest.Test(t, func(t *testing.T) {
		f := newSimNetwork(1, simFaults{delay: time.Microsecond})
		a, _ := verbstest.Connect(t, f.pair(t), verbstest.Config{RNRRetry: 6, MinRNR: 15})
		start := time.Now()
		a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm})
		a.Fails(a.SendCQ, 1, rdmaverbs.StatusRNRRetryExcErr)
		// Six waits of 1.92 ms, seven round trips of 2 us.
		if d, want := time.Since(start), 6*1920*time.Microsecond+7*2*time.Microsecond; d != want {
			t.Errorf("gave up after %v, want %v", d, want)
		}
	})
}

// TestInterruption cuts the network for less than the retries last.
func TestInterruption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimNetwork(1, simFaults{delay: 10 * time.Microsecond})
		a, b := verbstest.Connect(t, f.pair(t), verbstest.Config{Timeout: 15})
		w := f.wires[a.Path.DGID]
		time.AfterFunc(5*time.Millisecond, func() { w.setDown(true) })
		time.AfterFunc(900*time.Millisecond, func() { w.setDown(false) })
		verbstest.Stress(t, a, b, verbstest.StressConfig{Seed: 3, Ops: 3000, MaxSize: 20000})
		if f.count.sent == 0 || a.Dev.(*Device).Counters().Timeouts == 0 {
			t.Error("the interruption was not noticed")
		}
	})
}

// TestOnlyPeer sends valid packets to a queue pair from other addresses.
func TestOnlyPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimNetwork(1, simFaults{})
		pair := f.pair(t)
		a, b := verbstest.Connect(t, pair, verbstest.Config{})
		third, other := f.simDevice(t, 3)
		defer third.Close()
		b.Recv(rdmaverbs.RecvWR{ID: 1})
		hdr := make([]byte, header.BTHLen)
		header.BTH(hdr).Encode(&header.BTHFields{Opcode: header.SendOnly, PKey: header.DefaultPKey, DestQP: b.QP.QPN(), PSN: b.Path.RQPSN})
		pkts := []packet{{hdr: hdr}}
		right := b.QP.(*qp).path
		wrong := map[string]path{
			"source":  {typ: right.typ, sgid: other.gid, dgid: right.sgid},
			"version": {typ: rdmaverbs.RoCEv2, sgid: right.dgid, dgid: right.sgid},
		}
		for name, p := range wrong {
			if err := other.send(&p, pkts); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			t.Log(name)
			b.None(b.RecvCQ)
		}
		dev := pair.B.Dev.(*Device)
		if n := dev.Counters().WrongPeer; n != 2 {
			t.Errorf("%d packets of unknown senders counted, want 2", n)
		}
		// A queue pair number that is not in use, and an invalid packet.
		header.BTH(hdr).SetDestQP(b.QP.QPN() ^ 1)
		p := path{typ: right.typ, sgid: right.dgid, dgid: right.sgid}
		if err := errors.Join(other.send(&p, pkts), other.send(&p, []packet{{hdr: hdr[:7]}})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if c := dev.Counters(); c.UnknownQP != 1 || c.Malformed != 1 {
			t.Errorf("counters %+v", c)
		}
		a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled})
		a.OK(1, 1)
		b.OKRecv(1, 1)
	})
}

// TestFairness makes one queue pair send a long message, some 32 windows, while
// another one of the same device sends small ones: each takes a round trip.
func TestFairness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 32 << 20
		f := newSimNetwork(1, simFaults{delay: time.Microsecond})
		pair := f.pair(t)
		big, bigPeer := verbstest.Connect(t, pair, verbstest.Config{MTU: smc.MTU4096})
		small, smallPeer := verbstest.Connect(t, pair, verbstest.Config{})
		src, _ := big.MR(size, 0)
		dst, _ := bigPeer.MR(size, verbstest.All)
		big.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Len: size}}, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		for i := range 10 {
			smallPeer.Recv(rdmaverbs.RecvWR{ID: uint64(i)})
			small.Send(rdmaverbs.SendWR{ID: uint64(i), Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled})
			small.OK(uint64(i), 1)
		}
		big.None(big.SendCQ)
		big.OK(1, 1)
	})
}

// TestNetdevReports checks the events after reports of a netdev watch.
func TestNetdevReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimNetwork(1, simFaults{})
		pair := f.pair(t)
		d := pair.A.Dev.(*Device)
		a, _ := verbstest.Connect(t, pair, verbstest.Config{})
		next := func(want rdmaverbs.AsyncEventType) {
			t.Helper()
			select {
			case ev := <-d.Events():
				if ev.Type != want {
					t.Errorf("event %+v, want type %d", ev, want)
				}
			default:
				t.Errorf("no event, want type %d", want)
			}
		}
		info := d.port.info
		d.netdevChanged(netdevChange{Info: info}) // nothing changed
		if len(d.Events()) != 0 {
			t.Error("event for nothing")
		}
		info.Up = false
		d.netdevChanged(netdevChange{Info: info})
		next(rdmaverbs.EventPortErr)
		info.Up, info.MTU = true, 1500
		d.netdevChanged(netdevChange{Info: info})
		next(rdmaverbs.EventPortActive)
		next(rdmaverbs.EventMTUChange)
		info.GIDs = info.GIDs[:0:0]
		d.netdevChanged(netdevChange{Info: info})
		next(rdmaverbs.EventGIDChange)
		// A slow reader does not block the device.
		for i := range 3 * numEvents {
			info.Up = i%2 == 1
			d.netdevChanged(netdevChange{Info: info})
		}
		for range numEvents {
			<-d.Events()
		}
		a.Recv(rdmaverbs.RecvWR{ID: 1})
		d.netdevChanged(netdevChange{Gone: true})
		next(rdmaverbs.EventPortErr)
		next(rdmaverbs.EventDeviceFatal)
		next(rdmaverbs.EventQPFatal)
		a.Fails(a.RecvCQ, 1, rdmaverbs.StatusFlushErr)
		_, err := d.AllocPD()
		if !errors.Is(err, rdmaverbs.ErrNoDevice) {
			t.Errorf("AllocPD: %v", err)
		}
		d.netdevChanged(netdevChange{Info: info}) // too late
	})
}

// TestWireLost closes the wire under a device.
func TestWireLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimNetwork(1, simFaults{})
		pair := f.pair(t)
		a, _ := verbstest.Connect(t, pair, verbstest.Config{})
		w := f.wires[defaultGID([6]byte(pair.A.Dev.Attr().HWAddr))]
		w.mu.Lock()
		w.closed = true
		w.mu.Unlock()
		a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend})
		a.Fails(a.SendCQ, 1, rdmaverbs.StatusFlushErr)
		if p, _ := pair.A.Dev.Port(1); p.State != rdmaverbs.PortDown {
			t.Errorf("port state %d", p.State)
		}
	})
}

// TestManyDevicesClose closes devices while their queue pairs are busy.
func TestManyDevicesClose(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			f := newSimNetwork(seed, simFaults{delay: 10 * time.Microsecond, loss: 0.1})
			pair := f.pair(t)
			a, b := verbstest.Connect(t, pair, verbstest.Config{})
			src, _ := a.MR(1<<20, 0)
			dst, _ := b.MR(1<<20, verbstest.All)
			for i := range 32 {
				a.Send(rdmaverbs.SendWR{ID: uint64(i), Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Len: 1 << 20}}, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
			}
			time.Sleep(time.Duration(seed) * 300 * time.Microsecond)
			if err := pair.A.Dev.Close(); err != nil {
				t.Fatal(err)
			}
			flushed := false
			for i, wc := range a.Wait(a.SendCQ, 32) {
				if wc.ID != uint64(i) || wc.Status != rdmaverbs.StatusSuccess && wc.Status != rdmaverbs.StatusFlushErr ||
					flushed && wc.Status == rdmaverbs.StatusSuccess {
					t.Fatalf("completion %d: %+v", i, wc)
				}
				flushed = flushed || wc.Status == rdmaverbs.StatusFlushErr
			}
		})
	}
}
