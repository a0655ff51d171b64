// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// TestRequesterFailsOnce: a request that has failed while its batch is being sent keeps its
// status, whatever time or further answers do until the batch is sent.
func TestRequesterFailsOnce(t *testing.T) {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.RetryCnt = 0 })
	c.post(rdmaverbs.OpSend, 10)
	b := batches.Get().(*batch)
	c.e.fill(c.now, b)
	c.gets(nak(coreSQPSN, header.NAKRemoteAccess))
	if c.e.deadline() != never {
		t.Error("a timer runs for a request that has failed")
	}
	c.now = c.now.add(time.Second)
	c.e.expire(c.now)
	answer, err := header.ParseTransport(ack(coreSQPSN).bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !c.e.receive(c.now, &answer) {
		t.Error("an answer to a packet that is outstanding does not prove its sender")
	}
	b.free()
	c.e.sent()
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusRemAccessErr)
	if c.e.stats.timeouts != 0 || c.e.stats.nakReceived != 1 {
		t.Errorf("%d timeouts and %d NAKs are counted", c.e.stats.timeouts, c.e.stats.nakReceived)
	}
}

// TestRequesterLostResponse: an ACK for a READ says that its response was lost.
func TestRequesterLostResponse(t *testing.T) {
	c := newCore(t)
	c.post(rdmaverbs.OpRead, 10)
	c.sends()
	c.gets(ack(coreSQPSN))
	c.wantStatus(c.e.sendCQ)
	c.wantSent(pkt{op: header.ReadRequest, psn: coreSQPSN})
}

// TestRequesterReadMemoryClosed: a READ whose memory is closed before the response fails.
func TestRequesterReadMemoryClosed(t *testing.T) {
	c := newCore(t)
	c.post(rdmaverbs.OpRead, 10)
	c.sends()
	if err := c.mr.Close(); err != nil {
		t.Fatal(err)
	}
	c.gets(pkt{op: header.ReadRespOnly, psn: coreSQPSN, aeth: header.ACKNoCredits, payload: make([]byte, 10)})
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusLocProtErr)
}

// TestRequesterProbeMemoryClosed: so does a WRITE whose memory is closed when it would be sent
// once more.
func TestRequesterProbeMemoryClosed(t *testing.T) {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.Timeout = 15 })
	c.post(rdmaverbs.OpWrite, 10)
	c.sends()
	if err := c.mr.Close(); err != nil {
		t.Fatal(err)
	}
	c.now = c.e.deadline()
	c.e.expire(c.now)
	c.wantSent()
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusLocProtErr)
}

// TestRequesterLateAck: an ACK that comes after the local ACK timeout, before anything was sent
// again, is as good as any: nothing is sent again.
func TestRequesterLateAck(t *testing.T) {
	c := newCore(t)
	for range 3 {
		c.post(rdmaverbs.OpSend, 10)
	}
	c.sends()
	c.now = c.e.deadline()
	c.e.expire(c.now)
	c.gets(ack(0))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
	c.wantSent()
	c.post(rdmaverbs.OpSend, 10)
	c.wantSent(pkt{op: header.SendOnly, psn: 1})
	if n := c.e.req.outstanding(); n != 1 {
		t.Errorf("%d packets outstanding, want 1", n)
	}
}

// TestRequesterLossAfterProbe: a NAK that follows a probe is a new sign of loss, also while
// packets are being sent again.
func TestRequesterLossAfterProbe(t *testing.T) {
	only := func(at psn) pkt { return pkt{op: header.SendOnly, psn: at} }
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.Timeout = 15 })
	c.post(rdmaverbs.OpSend, 10)
	c.post(rdmaverbs.OpSend, 10)
	c.wantSent(only(0xfffffe), only(0xffffff))
	c.gets(nak(0xfffffe, header.NAKSequence))
	c.wantSent(only(0xfffffe), only(0xffffff))
	c.now = c.e.deadline()
	c.e.expire(c.now)
	c.wantSent(only(0xfffffe))
	c.gets(nak(0xfffffe, header.NAKSequence))
	c.wantSent(only(0xfffffe), only(0xffffff))
}

// TestRequesterLossAfterTimeout: and so is one that follows the local ACK timeout.
func TestRequesterLossAfterTimeout(t *testing.T) {
	only := pkt{op: header.SendOnly, psn: coreSQPSN}
	c := newCore(t)
	c.post(rdmaverbs.OpSend, 10)
	c.wantSent(only)
	c.gets(nak(coreSQPSN, header.NAKSequence))
	c.wantSent(only)
	c.now = c.e.deadline()
	c.e.expire(c.now)
	c.wantSent(only)
	if c.e.stats.timeouts != 1 {
		t.Fatalf("%d timeouts", c.e.stats.timeouts)
	}
	c.gets(nak(coreSQPSN, header.NAKSequence))
	c.wantSent(only)
}

// TestRequesterWindowGrows: acknowledgements open the window that a loss has halved.
func TestRequesterWindowGrows(t *testing.T) {
	c := newCore(t)
	c.post(rdmaverbs.OpWrite, 200*coreMTU)
	got := c.sends()
	c.gets(nak(got[0].psn, header.NAKSequence))
	got = c.sends()
	if len(got) != 32 {
		t.Fatalf("%d packets are sent after a loss, want half of 64", len(got))
	}
	for range 3 { // one more for each window
		c.gets(ack(got[len(got)-1].psn))
		got = c.sends()
	}
	if len(got) != 35 {
		t.Errorf("the window is %d after three round trips, want 35", len(got))
	}
}

// TestRequesterCounts: NAKs are counted by their kind.
func TestRequesterCounts(t *testing.T) {
	c := newCore(t)
	c.post(rdmaverbs.OpSend, 10)
	c.sends()
	c.gets(nak(coreSQPSN, header.RNR(1)))
	if s := c.e.stats; s.rnrReceived != 1 || s.nakReceived != 0 {
		t.Errorf("%+v", s)
	}
}

// TestRequesterSolicited: only the last packet of a message is solicited, and only if that was
// asked for.
func TestRequesterSolicited(t *testing.T) {
	for _, solicited := range []bool{false, true} {
		c := newCore(t)
		c.post(rdmaverbs.OpSend, 2*coreMTU)
		if solicited {
			c.e.req.sq.at(0).flags |= rdmaverbs.Solicited
		}
		got := c.sends()
		if got[0].BTH.Solicited() || got[1].BTH.Solicited() != solicited {
			t.Errorf("solicited %v: packets %v and %v", solicited, got[0].BTH.Solicited(), got[1].BTH.Solicited())
		}
	}
}

// TestRequesterOpcodes: WRITEs are sent as one message or, if that was chosen, as one for each
// packet. SENDs and WRITEs with immediate data are one message in any case.
func TestRequesterOpcodes(t *testing.T) {
	for _, writeOnly := range []bool{false, true} {
		for op, want := range map[rdmaverbs.Opcode][3]header.Opcode{
			rdmaverbs.OpSend:     {header.SendFirst, header.SendMiddle, header.SendLast},
			rdmaverbs.OpSendImm:  {header.SendFirst, header.SendMiddle, header.SendLastImm},
			rdmaverbs.OpWriteImm: {header.WriteFirst, header.WriteMiddle, header.WriteLastImm},
			rdmaverbs.OpWrite:    {header.WriteFirst, header.WriteMiddle, header.WriteLast},
		} {
			if writeOnly && op == rdmaverbs.OpWrite {
				want = [3]header.Opcode{header.WriteOnly, header.WriteOnly, header.WriteOnly}
			}
			c := newCore(t)
			c.e.writeOnly = writeOnly
			c.post(op, 3*coreMTU)
			c.wantSent(pkt{op: want[0], psn: 0xfffffe}, pkt{op: want[1], psn: 0xffffff}, pkt{op: want[2], psn: 0})
		}
	}
}

// TestRequesterProbeWaits: a probe waits for responses that fill a batch.
func TestRequesterProbeWaits(t *testing.T) {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.Timeout = 15 })
	c.post(rdmaverbs.OpSend, 10)
	c.sends()
	c.now = c.e.deadline()
	c.e.expire(c.now)
	const n = batchLen + 10
	c.gets(pkt{op: header.ReadRequest, psn: coreRQPSN, va: c.mr.addr, rkey: c.mr.key, dmaLen: n * coreMTU})
	got := c.sends()
	if len(got) != n+1 || got[n].op != header.SendOnly {
		t.Fatalf("%d packets, the last is a %v", len(got), got[len(got)-1].op)
	}
}

// TestTrainWindow: trains keep to the window, and every quarter of it asks for an
// acknowledgement, from which the round trip is taken.
func TestTrainWindow(t *testing.T) {
	for _, writeOnly := range []bool{false, true} {
		c := newCore(t)
		c.e.writeOnly = writeOnly
		c.post(rdmaverbs.OpWrite, 200*coreMTU)
		got := c.sends()
		asked := 0
		for i, p := range got {
			if p.BTH.AckReq() != (i%16 == 15) {
				t.Errorf("packet %d asks: %v", i, p.BTH.AckReq())
			}
			if p.BTH.AckReq() {
				asked++
			}
		}
		if len(got) != 64 || asked != 4 || c.e.req.rtt.at == never {
			t.Errorf("%d packets, %d ask, timed since %d", len(got), asked, c.e.req.rtt.at)
		}
		c.gets(ack(got[9].psn))
		if n := len(c.sends()); n != 10 {
			t.Errorf("%d packets after 10 were acknowledged", n)
		}
	}
}

// TestSendQueueBad: a request that cannot be sent takes no PSN.
func TestSendQueueBad(t *testing.T) {
	q := sendQueue{ring: make([]wqe, 2), end: 5}
	w := q.slot()
	w.length, w.bad = 1000, rdmaverbs.StatusLocProtErr
	if q.push(w, coreMTU); q.end != 5 || q.n != 1 {
		t.Errorf("the next PSN is %d, want 5", q.end)
	}
	w = q.slot()
	w.length = 1000
	if q.push(w, coreMTU); q.end != 9 || !q.full() {
		t.Errorf("the next PSN is %d, want 9", q.end)
	}
	q.pop()
	if q.ring[0].length != 0 || q.ring[0].bad != rdmaverbs.StatusSuccess {
		t.Errorf("a slot that is free has %+v", q.ring[0])
	}
}

// TestWindowSteps: the window grows by 1/32 for each window that is acknowledged, and not
// below its minimum.
func TestWindowSteps(t *testing.T) {
	w := newWindow(256)
	w.onLoss(1000)
	w.acked(127, 900)
	if w.size != 128 {
		t.Errorf("window %d before a whole one is acknowledged", w.size)
	}
	w.acked(1, 901)
	if w.size != 132 {
		t.Errorf("window %d after a whole one, want 132", w.size)
	}
	if w.acked(131, 902); w.size != 132 {
		t.Errorf("window %d before the next whole one, want 132", w.size)
	}
	w = newWindow(6)
	if w.onLoss(1); w.size != windowMin || w.thresh != windowMin {
		t.Errorf("window %d, threshold %d, want %d", w.size, w.thresh, windowMin)
	}
}

// TestRoundTripOfItsPacket: the round trip ends with the acknowledgement of the packet that is timed,
// not of one before it.
func TestRoundTripOfItsPacket(t *testing.T) {
	r := newRoundTrip()
	r.begin(0, 5)
	r.acknowledged(instant(time.Millisecond), 5)
	if r.smoothed != 0 {
		t.Fatalf("taken at the packet before: %v", r.smoothed)
	}
	r.acknowledged(instant(3*time.Millisecond), 6)
	if r.smoothed != 3*time.Millisecond {
		t.Errorf("%v, want 3 ms", r.smoothed)
	}
}

// TestPSNHalf: the PSN half the space away is before, not after.
func TestPSNHalf(t *testing.T) {
	for _, p := range []psn{0, 5, psnMask} {
		if d := p.add(psnHalf).sub(p); d != -psnHalf {
			t.Errorf("%#x: distance %d, want %d", p, d, -psnHalf)
		}
	}
}

// TestTimerRemoved: a queue pair that is alone in the timers and is removed is not called.
func TestTimerRemoved(t *testing.T) {
	tm := &timers{kick: make(chan struct{}, 1)}
	q := &qp{timerIndex: -1}
	tm.set(q, 5)
	tm.remove(q)
	if p := tm.pop(10); p != nil || q.timerIndex != -1 {
		t.Errorf("%v is called, index %d", p, q.timerIndex)
	}
	if h := tm.heap[:1]; h[0] != nil {
		t.Error("the heap keeps the queue pair")
	}
	tm.remove(q) // again
}
