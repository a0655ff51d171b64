// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// oneByte is a write of one byte.
func oneByte(id uint64, dst rdmaverbs.MR) rdmaverbs.SendWR {
	return rdmaverbs.SendWR{ID: id, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Inline | rdmaverbs.Signaled, InlineData: []byte{1}, RemoteAddr: dst.Addr(), RKey: dst.RKey()}
}

// TestClosedQP: a peer that sends to a closed queue pair gets a NAK at once.
// The NAK does not acknowledge requests that were not acknowledged before.
func TestClosedQP(t *testing.T) {
	testkind.System(t)
	for _, confirmed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newSimNetwork(1, simFaults{delay: time.Microsecond})
			a, b := verbstest.Connect(t, f.pair(t), verbstest.Config{Timeout: 15, RetryCnt: 7})
			dst, mem := b.MR(64, verbstest.All)
			f.tap = func(_, _ smc.GID, data []byte) bool {
				return !confirmed && header.BTH(data).Opcode().IsResponse() && mem[0] == 1
			}
			a.Send(oneByte(1, dst))
			if confirmed {
				a.OK(1, 1)
			} else {
				synctest.Wait()
				time.Sleep(10 * time.Microsecond)
			}
			if mem[0] != 1 {
				t.Fatal("the write was not executed")
			}
			if err := b.QP.Close(); err != nil {
				t.Fatal(err)
			}
			f.mu.Lock()
			f.tap = nil
			f.mu.Unlock()
			start := time.Now()
			first := uint64(1)
			if confirmed {
				first = 2
				a.Send(oneByte(2, dst))
			}
			a.Fails(a.SendCQ, first, rdmaverbs.StatusRemOpErr)
			if d := time.Since(start); d > 200*time.Millisecond {
				t.Errorf("confirmed %v: it took %v", confirmed, d)
			}
			if c := b.Dev.(*Device).Counters(); c.NAKSent == 0 || c.UnknownQP == 0 {
				t.Errorf("counters %+v", c)
			}
			if f.count.aside != 0 {
				t.Errorf("%d packets through another netdev although this one works", f.count.aside)
			}
		})
	}
}

// TestClosedQPAnswers: only requests to a closed queue pair get a NAK. It has the PSN of the
// request, but not one beyond the oldest that is not acknowledged.
func TestClosedQPAnswers(t *testing.T) {
	inSim(t, verbstest.Config{}, func(t *testing.T, n *simNetwork, a, b *verbstest.Conn) {
		dst, _ := b.MR(64, verbstest.All)
		a.Send(oneByte(1, dst))
		a.OK(1, 1)
		acked := psn(b.Path.RQPSN).add(1)
		f := newForger(b)
		f.in.srcPort = simPort(&a.QP.(*qp).path)
		answers, other := f.ack(), newForger(b)
		other.in.srcPort = f.in.srcPort
		header.BTH(other.in.data).SetOpcode(0x64) // a datagram
		if err := b.QP.Close(); err != nil {
			t.Fatal(err)
		}
		var got []psn
		n.tap = func(_, _ smc.GID, data []byte) bool {
			got = append(got, psn(header.BTH(data).PSN()))
			return true
		}
		for _, tt := range []struct {
			f        *forger
			at, want psn // want is psnMask+1 for no answer
		}{
			{f, acked, acked}, {f, acked.add(5), acked}, {f, acked.add(-1), acked.add(-1)},
			{answers, acked, psnMask + 1}, {other, acked, psnMask + 1},
		} {
			got = nil
			time.Sleep(2 * closedInterval)
			tt.f.sends(tt.at)
			synctest.Wait()
			if ok := len(got) == 1 && got[0] == tt.want || len(got) == 0 && tt.want > psnMask; !ok {
				t.Errorf("opcode %v, PSN %#x: answers %#x, want %#x", header.BTH(tt.f.in.data).Opcode(), tt.at, got, tt.want)
			}
		}
	})
}

// TestClosedQPUnreachable: a peer that cannot reach the device gets the close
// notice through another netdev, a limited number of times. This also works if
// it begins to send later.
func TestClosedQPUnreachable(t *testing.T) {
	testkind.System(t)
	for _, late := range []time.Duration{0, 30 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			f := newSimNetwork(1, simFaults{delay: time.Microsecond})
			a, b := verbstest.Connect(t, f.pair(t), verbstest.Config{Timeout: 22, RetryCnt: 7})
			dst, _ := b.MR(64, verbstest.All)
			a.Send(oneByte(1, dst))
			a.OK(1, 1)
			d := b.Dev.(*Device)
			f.wires[a.Path.DGID].setDown(true)
			info := d.port.info
			info.Up = false
			d.netdevChanged(netdevChange{Info: info})
			if late == 0 {
				a.Send(oneByte(2, dst))
			}
			start := time.Now()
			if err := b.QP.Close(); err != nil {
				t.Fatal(err)
			}
			if late > 0 {
				time.Sleep(late)
				a.Send(oneByte(2, dst))
			}
			a.Fails(a.SendCQ, 2, rdmaverbs.StatusRemOpErr)
			if took := time.Since(start) - late; took > 3*time.Second {
				t.Errorf("%v after the close: it took %v", late, took)
			}
			time.Sleep(time.Minute)
			if n := d.Counters().NAKSent; n != 1+closeNotices {
				t.Errorf("told %d times", n)
			}
		})
	}
}

// TestClosedQPUnacknowledged: if the last ACKs were lost, the close notice does
// not acknowledge the requests.
func TestClosedQPUnacknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimNetwork(1, simFaults{delay: time.Microsecond})
		a, b := verbstest.Connect(t, f.pair(t), verbstest.Config{Timeout: 22, RetryCnt: 7})
		dst, _ := b.MR(64, verbstest.All)
		for id := range uint64(200) {
			a.Send(oneByte(1+id, dst))
			a.OK(1+id, 1)
		}
		f.tap = func(_, _ smc.GID, data []byte) bool { return header.BTH(data).Opcode().IsResponse() }
		for id := range uint64(20) {
			a.Send(oneByte(201+id, dst))
			time.Sleep(10 * time.Microsecond)
		}
		f.mu.Lock()
		f.tap = nil
		f.mu.Unlock()
		d := b.Dev.(*Device)
		f.wires[a.Path.DGID].setDown(true)
		info := d.port.info
		info.Up = false
		d.netdevChanged(netdevChange{Info: info})
		if err := b.QP.Close(); err != nil {
			t.Fatal(err)
		}
		a.Fails(a.SendCQ, 201, rdmaverbs.StatusRemOpErr)
		for id := range uint64(19) {
			a.Fails(a.SendCQ, 202+id, rdmaverbs.StatusFlushErr)
		}
	})
}

// TestClosedQPLimit: a device remembers at most maxClosedQPs closed queue
// pairs, and none that had no peer. One peer does not have those of others forgotten.
func TestClosedQPLimit(t *testing.T) {
	var c closedQPs
	if p := c.remember(&qp{}); p != nil {
		t.Errorf("%+v", p)
	}
	remember := func(peer byte, qpn uint32) {
		q := &qp{path: path{dgid: smc.GID{peer}}}
		q.ep.qpn = qpn
		c.remember(q)
	}
	for n := range uint32(maxClosedQPs + 10) {
		remember(1, n)
	}
	if len(c.list) != maxClosedQPs || c.list[0].qpn != 10 {
		t.Errorf("%d remembered, the first %d", len(c.list), c.list[0].qpn)
	}
	// Those of another peer stay.
	remember(2, 1000)
	for n := range uint32(2 * maxClosedQPs) {
		remember(1, 2000+n)
	}
	if len(c.list) != maxClosedQPs || c.find(1000) == nil || c.find(2000) != nil || c.find(2000+2*maxClosedQPs-1) == nil {
		t.Errorf("%d remembered; of the other peer: %v", len(c.list), c.find(1000))
	}
}
