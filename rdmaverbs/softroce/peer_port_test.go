// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/rdmaverbs/verbstest"
)

// forger makes packets to the queue pair of one side in the name of the other, as
// another user of the other's host can: with the right addresses and from another UDP
// source port.
type forger struct {
	to *simWire
	in inbound
}

const forgerPort = 50000

// newForger returns a forger of packets to to, in the name of its peer: SENDs without
// payload.
func newForger(to *verbstest.Conn) *forger {
	q := to.QP.(*qp)
	b := make([]byte, header.BTHLen)
	header.BTH(b).Encode(&header.BTHFields{Opcode: header.SendOnly, PKey: header.DefaultPKey, DestQP: q.QPN(), AckReq: true})
	return &forger{q.dev.wire.(*simWire), inbound{typ: q.path.typ, sgid: q.path.dgid, dgid: q.path.sgid, srcPort: forgerPort, data: b}}
}

// ack returns a forger of acknowledgements.
func (f *forger) ack() *forger {
	b := make([]byte, header.Acknowledge.HeaderLen())
	copy(b, f.in.data)
	header.BTH(b).SetOpcode(header.Acknowledge)
	header.AETH(b[header.BTHLen:]).Encode(header.NAKRemoteOp, 0)
	g := *f
	g.in.data = b
	return &g
}

// sends has the device receive a packet with this PSN.
func (f *forger) sends(at psn) {
	header.BTH(f.in.data).SetPSN(uint32(at))
	f.to.receive([]inbound{f.in})
}

// sweeps has the device receive n packets with consecutive PSNs, as many at a time as a
// socket gives.
func (f *forger) sweeps(from psn, n int) {
	batch := make([]inbound, min(n, ioBatch))
	for i := range batch {
		batch[i] = f.in
		batch[i].data = slices.Clone(f.in.data)
	}
	for n > 0 {
		batch = batch[:min(n, len(batch))]
		for i := range batch {
			header.BTH(batch[i].data).SetPSN(uint32(from.add(i)))
		}
		f.to.receive(batch)
		from, n = from.add(len(batch)), n-len(batch)
	}
}

// connectV2 connects two queue pairs over a simulated network for RoCE version 2.
func connectV2(t *testing.T, c verbstest.Config, opts ...Option) (f *simNetwork, a, b *verbstest.Conn) {
	f = newSimNetwork(1, simFaults{delay: time.Microsecond})
	pair := f.pair(t, opts...)
	pair.A.SGIDIndex, pair.B.SGIDIndex = 1, 1
	a, b = verbstest.Connect(t, pair, c)
	return f, a, b
}

// exchange has a send a message to b.
func exchange(a, b *verbstest.Conn, id uint64) {
	b.Recv(rdmaverbs.RecvWR{ID: id})
	a.Send(rdmaverbs.SendWR{ID: id, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled})
	a.OK(id, 1)
	b.OKRecv(id, 1)
}

// TestPeerPort: once a queue pair has had a packet of its peer, it takes nothing from
// another UDP port, whatever PSN that has. Nothing is executed or answered, and all is
// counted.
func TestPeerPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a, b := connectV2(t, verbstest.Config{})
		exchange(a, b, 1)
		synctest.Wait()
		b.Recv(rdmaverbs.RecvWR{ID: 2})
		before, sent := b.Dev.(*Device).Counters(), f.count.sent
		all := 1 << 24
		if testing.Short() {
			all = 1 << 20 // the right one is among them
		}
		newForger(b).sweeps(0, all)
		b.None(b.RecvCQ)
		// Answers are refused too: to b, which has nothing outstanding, and to a, which
		// has.
		newForger(b).ack().sweeps(0, 1000)
		f.wires[a.Path.DGID].setDown(true)
		a.Send(rdmaverbs.SendWR{ID: 2, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled})
		newForger(a).ack().sweeps(psn(a.Path.SQPSN), 1000)
		a.None(a.SendCQ)
		f.wires[a.Path.DGID].setDown(false)
		a.OK(2, 1)
		b.OKRecv(2, 1)

		c := b.Dev.(*Device).Counters()
		if n := c.WrongSource - before.WrongSource; n != uint64(all)+1000 {
			t.Errorf("%d packets counted, want %d", n, all+1000)
		}
		if c.OutOfOrder != before.OutOfOrder || c.NAKSent != before.NAKSent {
			t.Errorf("counters %+v, before %+v", c, before)
		}
		if n := a.Dev.(*Device).Counters().WrongSource; n != 1000 {
			t.Errorf("%d answers counted, want 1000", n)
		}
		if n := f.count.sent - sent; n > 5 { // the message, its retries, and the acknowledgement
			t.Errorf("%d packets sent", n)
		}
	})
}

// TestPeerPortLearnt: the packets that prove where they come from set the port, others
// do not.
func TestPeerPortLearnt(t *testing.T) {
	port := func(c *verbstest.Conn) peerPort {
		q := c.QP.(*qp)
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.port
	}
	for _, tt := range []struct {
		name string
		send func(f *forger, a, b *verbstest.Conn)
		want peerPort
	}{
		{"request", func(f *forger, a, b *verbstest.Conn) { f.sends(psn(b.Path.RQPSN)) }, forgerPort},
		{"request that is not executed yet", func(f *forger, a, b *verbstest.Conn) {
			b.OKRecv(9, 1) // no receive request is left
			f.sends(psn(b.Path.RQPSN).add(1))
		}, forgerPort},
		{"answer", func(f *forger, a, b *verbstest.Conn) {
			b.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend})
			f.ack().sends(psn(b.Path.SQPSN))
		}, forgerPort},
		{"request ahead", func(f *forger, a, b *verbstest.Conn) { f.sends(psn(b.Path.RQPSN).add(1)) }, 0},
		{"request before the first", func(f *forger, a, b *verbstest.Conn) { f.sends(psn(b.Path.RQPSN).add(-1)) }, 0},
		{"answer to nothing", func(f *forger, a, b *verbstest.Conn) { f.ack().sends(psn(b.Path.SQPSN)) }, 0},
		{"answer to another PSN", func(f *forger, a, b *verbstest.Conn) {
			b.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend})
			f.ack().sends(psn(b.Path.SQPSN).add(1))
		}, 0},
		{"unknown opcode", func(f *forger, a, b *verbstest.Conn) {
			header.BTH(f.in.data).SetOpcode(0x1f)
			f.sends(psn(b.Path.RQPSN).add(5))
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, a, b := connectV2(t, verbstest.Config{})
				f.wires[b.Path.DGID].setDown(true) // a is silent
				if tt.name == "request that is not executed yet" {
					b.Recv(rdmaverbs.RecvWR{ID: 9})
					g := newForger(b)
					g.in.srcPort = 0 // as with version 1
					g.sends(psn(b.Path.RQPSN))
				} else {
					b.Recv(rdmaverbs.RecvWR{ID: 9})
				}
				tt.send(newForger(b), a, b)
				if p := port(b); p != tt.want {
					t.Errorf("port %d, want %d", p, tt.want)
				}
			})
		})
	}
}

// TestPeerPortTold: a queue pair that was told the port of its peer takes nothing else,
// not even the packet that is expected first.
func TestPeerPortTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pair := newSimNetwork(1, simFaults{delay: time.Microsecond}).pair(t)
		pair.A.SGIDIndex, pair.B.SGIDIndex = 1, 1
		a, b := verbstest.Create(t, pair, verbstest.Config{})
		a.Path.UDPPort, b.Path.UDPPort = b.QP.(rdmaverbs.UDPSender).UDPPort(), a.QP.(rdmaverbs.UDPSender).UDPPort()
		a.ToRTS()
		b.ToRTS()
		b.Recv(rdmaverbs.RecvWR{ID: 1})
		b.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled})
		f := newForger(b)
		f.sends(psn(b.Path.RQPSN))
		f.ack().sends(psn(b.Path.SQPSN))
		b.None(b.RecvCQ)
		if c := b.Dev.(*Device).Counters(); c.WrongSource != 2 {
			t.Errorf("counters %+v", c)
		}
		a.Recv(rdmaverbs.RecvWR{ID: 1})
		b.OK(1, 1)
		a.OKRecv(1, 1)
		a.Send(rdmaverbs.SendWR{ID: 2, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled})
		a.OK(2, 1)
		b.OKRecv(1, 1)
	})
}

// TestPeerPortVersion1: packets of version 1 have no port, and pass.
func TestPeerPortVersion1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimNetwork(1, simFaults{delay: time.Microsecond})
		a, b := verbstest.Connect(t, f.pair(t), verbstest.Config{})
		for id := range uint64(3) {
			exchange(a, b, id)
		}
		if p := b.QP.(*qp).port; p != 0 {
			t.Errorf("port %d", p)
		}
	})
}

// TestPeerPortClosed: a closed queue pair answers the requests of its peer and of nobody
// else, and not each one of a flood.
func TestPeerPortClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a, b := connectV2(t, verbstest.Config{})
		exchange(a, b, 1)
		forge := newForger(b)
		if err := b.QP.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		sent := f.count.sent
		answers := func(want int) {
			t.Helper()
			synctest.Wait()
			if n := f.count.sent - sent; n != want {
				t.Errorf("%d answers, want %d", n, want)
			}
		}
		forge.sweeps(0, 10000)
		answers(0)
		if n := b.Dev.(*Device).Counters().WrongSource; n != 10000 {
			t.Errorf("%d packets counted, want 10000", n)
		}
		forge.in.srcPort = simPort(&a.QP.(*qp).path)
		forge.sweeps(0, 10000)
		answers(1)
		time.Sleep(closedInterval)
		forge.sweeps(0, 10000)
		answers(2)
	})
}

// TestForgeryLogged: the log has one line in a minute about forged packets, for all queue
// pairs, with the port from which they come.
func TestForgeryLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		_, a, b := connectV2(t, verbstest.Config{}, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		exchange(a, b, 1)
		f := newForger(b)
		for minute := 1; minute <= 3; minute++ {
			for range 50 {
				f.sweeps(0, 100)
				time.Sleep(time.Second)
			}
			if n := strings.Count(log.String(), "level=WARN"); n != minute {
				t.Fatalf("%d lines in %d minutes:\n%s", n, minute, &log)
			}
			time.Sleep(forgeryInterval - 50*time.Second)
		}
		for _, want := range []string{"port=50000", "dropped=5100", "peer=fe80::ff:fe00:1", "device=soft-sim2"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%q is not in the log:\n%s", want, &log)
			}
		}
	})
}

// TestForgeryNoAllocs: a forged packet costs no allocation.
func TestForgeryNoAllocs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := connectV2(t, verbstest.Config{})
		exchange(a, b, 1)
		synctest.Wait()
		f := newForger(b)
		in := []inbound{f.in}
		f.to.receive(in)
		if n := testing.AllocsPerRun(1000, func() { f.to.receive(in) }); n != 0 {
			t.Errorf("%v allocations a packet", n)
		}
	})
}

// BenchmarkForgery drops forged packets.
func BenchmarkForgery(b *testing.B) {
	f := newSimNetwork(1, simFaults{delay: time.Microsecond})
	pair := f.pair(b)
	pair.A.SGIDIndex, pair.B.SGIDIndex = 1, 1
	x, y := verbstest.Connect(b, pair, verbstest.Config{})
	exchange(x, y, 1)
	g := newForger(y)
	batch := make([]inbound, ioBatch)
	for i := range batch {
		batch[i] = g.in
	}
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(batch) {
		g.to.receive(batch)
	}
}
