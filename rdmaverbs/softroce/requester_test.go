// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// TestRequesterSegments checks opcodes, PSNs and AckReq of a message.
func TestRequesterSegments(t *testing.T) {
	c := newCore(t)
	for i := range c.buf {
		c.buf[i] = byte(i)
	}
	c.post(rdmaverbs.OpWriteImm, 2*coreMTU+5)
	got := c.wantSent(pkt{op: header.WriteFirst, psn: 0xfffffe}, pkt{op: header.WriteMiddle, psn: 0xffffff}, pkt{op: header.WriteLastImm, psn: 0})
	if h := got[0].RETH; h.VA() != 0x5000 || h.RKey() != 0x77 || h.DMALen() != 2*coreMTU+5 {
		t.Errorf("RETH %x", []byte(h))
	}
	if got[0].BTH.AckReq() || got[1].BTH.AckReq() || !got[2].BTH.AckReq() {
		t.Error("AckReq is wanted on the last packet only")
	}
	if got[2].BTH.PadCount() != 3 || len(got[2].Payload) != 5 {
		t.Errorf("last packet: pad %d, %d bytes", got[2].BTH.PadCount(), len(got[2].Payload))
	}
	c.gets(ack(0xffffff))
	c.wantStatus(c.e.sendCQ)
	c.gets(ack(0))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
	if c.e.deadline() != never {
		t.Error("a timer runs with nothing outstanding")
	}
}

// TestRequesterNAK checks what each NAK does.
func TestRequesterNAK(t *testing.T) {
	for s, want := range map[header.Syndrome]rdmaverbs.WCStatus{
		header.NAKInvalid:      rdmaverbs.StatusRemInvReqErr,
		header.NAKRemoteAccess: rdmaverbs.StatusRemAccessErr,
		header.NAKRemoteOp:     rdmaverbs.StatusRemOpErr,
		0x7f:                   rdmaverbs.StatusBadRespErr,
	} {
		c := newCore(t)
		for range 4 {
			c.post(rdmaverbs.OpSend, 10)
		}
		c.sends()
		c.recv(0)
		c.gets(nak(0, s))
		c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess, want, rdmaverbs.StatusFlushErr)
		c.wantStatus(c.e.recvCQ, rdmaverbs.StatusFlushErr)
		if c.e.state != rdmaverbs.QPSErr || !c.e.fatal {
			t.Errorf("%v: state %d", s, c.e.state)
		}
		c.wantSent()
	}
}

// TestRequesterAnswerAfterFailure checks that an ACK which follows a fatal NAK, while the
// batch is still being sent, does not complete the request that has failed.
func TestRequesterAnswerAfterFailure(t *testing.T) {
	c := newCore(t)
	for range 3 {
		c.post(rdmaverbs.OpSend, 10)
	}
	b := batches.Get().(*batch)
	c.e.fill(c.now, b)
	c.gets(nak(coreSQPSN, header.NAKRemoteAccess), ack(coreSQPSN))
	c.wantStatus(c.e.sendCQ)
	b.reset()
	batches.Put(b)
	c.e.sent()
	c.wantSent()
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusRemAccessErr, rdmaverbs.StatusFlushErr, rdmaverbs.StatusFlushErr)
}

// TestRequesterGoBack checks go-back-N: on a NAK once, on ghosts never.
func TestRequesterGoBack(t *testing.T) {
	only := func(at psn) pkt { return pkt{op: header.SendOnly, psn: at} }
	c := newCore(t)
	for range 5 {
		c.post(rdmaverbs.OpSend, 10)
	}
	c.wantSent(only(0xfffffe), only(0xffffff), only(0), only(1), only(2))
	// Ghost answers: before the oldest, after the newest.
	for _, p := range []pkt{ack(0xfffffd), ack(3), ack(0x7ffff0), nak(0xfffffd, header.NAKSequence), nak(3, header.NAKRemoteOp),
		{op: header.ReadRespOnly, psn: 3, aeth: header.ACKNoCredits}} {
		c.gets(p)
	}
	c.wantSent()
	if c.e.stats.ghosts != 6 {
		t.Errorf("%d ghosts counted, want 6", c.e.stats.ghosts)
	}
	c.gets(nak(0, header.NAKSequence))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
	c.wantSent(only(0), only(1), only(2))
	c.gets(nak(0, header.NAKSequence)) // a copy of the same
	c.wantSent()
	c.gets(ack(0), nak(1, header.NAKSequence))
	c.wantSent(only(1), only(2))
	c.gets(ack(2))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
	if c.e.req.win.size >= 64 {
		t.Errorf("window is %d after losses", c.e.req.win.size)
	}
}

// TestRequesterTimeout checks the local ACK timer to the nanosecond: the
// retries it makes, and when it gives up.
func TestRequesterTimeout(t *testing.T) {
	c := newCore(t) // timeout 10: 4.194304 ms, 3 retries
	const period = 4194304 * time.Nanosecond
	c.post(rdmaverbs.OpWrite, 10)
	c.wantSent(pkt{op: header.WriteOnly, psn: 0xfffffe})
	for retry := range 3 {
		c.now = c.now.add(period - 1)
		c.e.expire(c.now)
		c.wantSent()
		c.now = c.now.add(1)
		if d := c.e.deadline(); d != c.now {
			t.Fatalf("retry %d: deadline %v, want %v", retry, d, c.now)
		}
		c.e.expire(c.now)
		c.wantSent(pkt{op: header.WriteOnly, psn: 0xfffffe})
	}
	c.now = c.now.add(period - 1)
	c.e.expire(c.now)
	c.wantStatus(c.e.sendCQ)
	c.now = c.now.add(1)
	c.e.expire(c.now)
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusRetryExcErr)
	if c.e.state != rdmaverbs.QPSErr || c.e.deadline() != never {
		t.Errorf("state %d, deadline %d", c.e.state, c.e.deadline())
	}
	if c.e.stats.timeouts != 4 {
		t.Errorf("%d timeouts counted, want 4", c.e.stats.timeouts)
	}
}

// TestRequesterNoTimeout checks that a timeout code of 0 means none.
func TestRequesterNoTimeout(t *testing.T) {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.Timeout = 0 })
	c.post(rdmaverbs.OpWrite, 10)
	c.sends()
	for range 100 {
		c.now = c.now.add(time.Second)
		c.e.expire(c.now)
		c.sends()
	}
	c.wantStatus(c.e.sendCQ)
	c.gets(ack(0xfffffe))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
}

// TestRequesterProbe checks that a lost tail is repaired before the local ACK
// timeout, and that this takes none of the retries.
func TestRequesterProbe(t *testing.T) {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.Timeout = 15 })
	for range 3 {
		c.post(rdmaverbs.OpSend, 10)
	}
	c.sends()
	c.now = c.now.add(time.Millisecond)
	c.gets(ack(0xfffffe)) // asked for each: the round-trip time is known
	at := c.e.deadline()
	if d := at.since(c.now); d < probeMin || d >= 134*time.Millisecond {
		t.Fatalf("probe after %v", d)
	}
	c.now = at
	c.e.expire(c.now)
	c.wantSent(pkt{op: header.SendOnly, psn: 0xffffff})
	if d2 := c.e.deadline(); d2.since(c.now) <= at.since(0)/2 {
		t.Errorf("second probe after %v, want it to back off", d2.since(c.now))
	}
	// The answer acknowledges only the probe: the packets after it were lost,
	// too.
	c.gets(ack(0xffffff))
	c.wantSent(pkt{op: header.SendOnly, psn: 0})
	if c.e.req.retries.left != 3 || c.e.stats.probes != 1 {
		t.Errorf("%d retries left, %d probes", c.e.req.retries.left, c.e.stats.probes)
	}
	c.gets(ack(0))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
}

// TestRequesterProbeRead loses the response to a READ: a probe requests the
// rest of it again.
func TestRequesterProbeRead(t *testing.T) {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.Timeout = 15 })
	c.post(rdmaverbs.OpRead, 2*coreMTU)
	c.post(rdmaverbs.OpSend, 10)
	c.wantSent(pkt{op: header.ReadRequest, psn: 0xfffffe}, pkt{op: header.SendOnly, psn: 0})
	half := make([]byte, coreMTU)
	c.gets(pkt{op: header.ReadRespFirst, psn: 0xfffffe, aeth: header.ACKNoCredits, payload: half})
	c.now = c.e.deadline()
	c.e.expire(c.now)
	if got := c.wantSent(pkt{op: header.ReadRequest, psn: 0xffffff}); got[0].RETH.DMALen() != coreMTU {
		t.Errorf("the probe asks for %d bytes", got[0].RETH.DMALen())
	}
	c.gets(pkt{op: header.ReadRespOnly, psn: 0xffffff, aeth: header.ACKNoCredits, payload: half}, ack(0))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
	if n := c.e.req.reads; n != 0 {
		t.Errorf("%d READs outstanding in the end", n)
	}
}

// TestRequesterLatePeer has a peer that loses nothing but answers late again
// and again, as a process that waits for a processor. Each answer acknowledges
// as little as possible. A packet is sent again each time, and the window does
// not shrink, because the throughput to such a peer depends on it.
func TestRequesterLatePeer(t *testing.T) {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.Timeout = 15 })
	for round := range 100 {
		for range 30 { // short round trips, so that the next one is late
			c.post(rdmaverbs.OpSend, 10)
			c.gets(ack(c.sends()[0].psn))
			c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
		}
		n := 2 + round%62
		c.post(rdmaverbs.OpWrite, n*coreMTU)
		first := c.sends()
		if len(first) != n {
			t.Fatalf("round %d: %d packets leave at once, want %d: the window is %d", round, len(first), n, c.e.req.win.size)
		}
		for range 2 { // the third would come after the local ACK timeout
			c.now = c.e.deadline()
			c.e.expire(c.now)
			if got := c.sends(); len(got) != 1 || got[0].psn != first[0].psn {
				t.Fatalf("round %d: the probe sent %d packets, want the oldest", round, len(got))
			}
		}
		for _, p := range first[1:] {
			c.gets(ack(p.psn))
			if got := c.sends(); len(got) != 0 {
				t.Fatalf("round %d: %d packets are sent again after a late answer", round, len(got))
			}
		}
		c.gets(ack(first[n-1].psn)) // to the probe
		c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
	}
	if c.e.req.win.size != 64 || c.e.stats.timeouts != 0 {
		t.Errorf("window %d, want 64 as before; %d timeouts", c.e.req.win.size, c.e.stats.timeouts)
	}
}

// TestRequesterRNR checks the delay an RNR NAK asks for, and the retries.
func TestRequesterRNR(t *testing.T) {
	const delay = 640 * time.Microsecond // timer code 12
	only := func(at psn) pkt { return pkt{op: header.SendOnly, psn: at} }
	c := newCore(t)
	c.post(rdmaverbs.OpSend, 10)
	c.post(rdmaverbs.OpSend, 10)
	c.wantSent(only(0xfffffe), only(0xffffff))
	for range 2 {
		c.gets(nak(0xfffffe, header.RNR(12)), nak(0xfffffe, header.RNR(12)))
		if d := c.e.deadline().since(c.now); d != delay {
			t.Fatalf("waits %v, want %v", d, delay)
		}
		c.now = c.now.add(delay - 1)
		c.e.expire(c.now)
		c.wantSent()
		c.now = c.now.add(1)
		c.e.expire(c.now)
		c.wantSent(only(0xfffffe), only(0xffffff))
	}
	// Progress renews the retries.
	c.gets(nak(0xffffff, header.RNR(12)))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
	c.now = c.now.add(delay)
	for range 2 {
		c.e.expire(c.now)
		c.wantSent(only(0xffffff))
		c.gets(nak(0xffffff, header.RNR(12)))
		c.wantStatus(c.e.sendCQ)
		c.now = c.now.add(delay)
		if c.e.req.retries.rnrLeft == 0 {
			break
		}
	}
	c.e.expire(c.now)
	c.wantSent(only(0xffffff))
	c.gets(nak(0xffffff, header.RNR(12)))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusRNRRetryExcErr)
	if c.e.state != rdmaverbs.QPSErr {
		t.Errorf("state %d", c.e.state)
	}

	// A retry count of 7 means no limit.
	c = newCore(t, func(p *rdmaverbs.PathInfo) { p.RNRRetry = 7 })
	c.post(rdmaverbs.OpSend, 10)
	for range 100 {
		c.wantSent(only(0xfffffe))
		c.gets(nak(0xfffffe, header.RNR(1)))
		c.now = c.e.deadline()
		c.e.expire(c.now)
	}
	c.wantStatus(c.e.sendCQ)
}

// TestRequesterRead checks READs: implied acknowledgement, lost responses,
// wrong responses, the number outstanding.
func TestRequesterRead(t *testing.T) {
	resp := func(op header.Opcode, at psn, n int) pkt {
		return pkt{op: op, psn: at, payload: bytes.Repeat([]byte{byte(at) + 1}, n), aeth: header.ACKNoCredits}
	}
	request := func(at psn) pkt { return pkt{op: header.ReadRequest, psn: at} }
	c := newCore(t)
	c.post(rdmaverbs.OpWrite, 10)         // fffffe
	c.post(rdmaverbs.OpRead, 3*coreMTU-6) // ffffff to 1
	c.post(rdmaverbs.OpRead, 1)           // 2
	c.post(rdmaverbs.OpRead, 0)           // 3: one too many outstanding
	c.wantSent(pkt{op: header.WriteOnly, psn: 0xfffffe}, request(0xffffff), request(2))
	// The response acknowledges the WRITE before it.
	c.gets(resp(header.ReadRespFirst, 0xffffff, coreMTU))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
	// The second response is lost: request it and the later ones again.
	c.gets(resp(header.ReadRespLast, 1, coreMTU-6), resp(header.ReadRespOnly, 2, 1))
	got := c.wantSent(request(0), request(2))
	if h := got[0].RETH; h.VA() != 0x5000+coreMTU || h.DMALen() != 2*coreMTU-6 {
		t.Errorf("asked again for %d bytes at %#x", h.DMALen(), h.VA())
	}
	// An ACK alone beyond it says the same, but that was seen already.
	c.gets(ack(2))
	c.wantSent()
	c.gets(resp(header.ReadRespFirst, 0, coreMTU), resp(header.ReadRespLast, 1, coreMTU-6))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
	c.wantSent(request(3))
	c.gets(resp(header.ReadRespOnly, 2, 1), resp(header.ReadRespOnly, 3, 0))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
	if c.e.req.reads != 0 {
		t.Errorf("%d READs counted as outstanding", c.e.req.reads)
	}

	for name, p := range map[string]pkt{
		"too short": resp(header.ReadRespFirst, 0xfffffe, coreMTU-4),
		"too long":  resp(header.ReadRespOnly, 0xfffffe, coreMTU),
		"ends":      resp(header.ReadRespLast, 0xfffffe, coreMTU),
	} {
		c := newCore(t)
		c.post(rdmaverbs.OpRead, 2*coreMTU)
		c.sends()
		c.gets(p)
		t.Log(name)
		c.wantStatus(c.e.sendCQ, rdmaverbs.StatusBadRespErr)
	}

	// A response without a READ changes nothing.
	c = newCore(t)
	c.post(rdmaverbs.OpSend, 4)
	c.sends()
	c.gets(resp(header.ReadRespOnly, 0xfffffe, 0))
	c.wantStatus(c.e.sendCQ)
	c.gets(ack(0xfffffe))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
}

// TestRequesterWindow checks that no more than the window is outstanding and
// that its last packet asks for an acknowledgement.
func TestRequesterWindow(t *testing.T) {
	c := newCore(t)
	c.post(rdmaverbs.OpWrite, 100*coreMTU)
	got := c.sends()
	if len(got) != 64 || !got[63].BTH.AckReq() {
		t.Fatalf("%d packets sent, want the window of 64", len(got))
	}
	asked := 0
	for _, p := range got {
		if p.BTH.AckReq() {
			asked++
		}
	}
	if asked < 4 || asked > 8 {
		t.Errorf("%d of 64 packets ask for an acknowledgement", asked)
	}
	c.gets(ack(got[9].psn))
	if n := len(c.sends()); n != 10 {
		t.Errorf("%d packets sent after 10 were acknowledged", n)
	}
}
