// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"testing"

	"smcr/rdmaverbs/softroce/header"

	"pgregory.net/rapid"
)

// TestHistory compares the history with a list of all PSNs and the answers after them.
// Whatever the peer may still wait for is in it, and nothing that is twice as old.
func TestHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h history
		var answer []int // number of answers before each executed PSN
		answers := 0
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			n := rapid.IntRange(1, 20).Draw(t, "PSNs")
			k := rapid.SampledFrom([]int{0, 1, 1, 1, historyAnswers / 10, historyAnswers / 3}).Draw(t, "answers")
			h.executed(n)
			for range n {
				answer = append(answer, answers)
			}
			for range k {
				h.answered()
			}
			answers += k
		}
		for i, at := range answer {
			d := len(answer) - i
			if since := answers - at; since <= historyAnswers && !h.has(d) {
				t.Fatalf("PSN %d before the expected one, %d answers ago, is not accepted", d, since)
			} else if since > 2*historyAnswers && h.has(d) {
				t.Fatalf("PSN %d before the expected one, %d answers ago, is accepted", d, since)
			}
		}
		if h.has(len(answer) + 1) {
			t.Fatal("a PSN before the first is accepted")
		}
	})
}

// TestResponderHistory: a request is acknowledged again only if its PSN was executed and
// the peer may have lost the answer. Other old PSNs get no answer and are counted.
func TestResponderHistory(t *testing.T) {
	c := newCore(t)
	write := func(at psn) pkt { return c.write(header.WriteOnly, at, 0, 1, []byte{1}) }
	wrong := func(n int) {
		t.Helper()
		if got := c.e.stats.wrongPSN; got != uint64(n) {
			t.Fatalf("%d wrong PSNs counted, want %d", got, n)
		}
	}
	first := psn(coreRQPSN)
	for _, d := range []int{1, 2, 1000, psnHalf} {
		c.gets(write(first.add(-d)))
	}
	read := pkt{op: header.ReadRequest, psn: first.add(-1), va: c.mr.addr, rkey: c.mr.key, dmaLen: 4}
	c.gets(read)
	c.wantSent()
	wrong(5)

	c.gets(write(first))
	c.wantSent(ack(first))
	c.gets(write(first))
	c.wantSent(ack(first))
	c.gets(write(first.add(-1)))
	c.wantSent()
	wrong(6)

	// The first PSN is a duplicate until so many others were acknowledged that the peer
	// cannot wait for it.
	at := first
	for range historyAnswers - 1 {
		at = at.add(1)
		c.gets(write(at))
		c.wantSent(ack(at))
	}
	c.gets(write(first))
	c.wantSent(ack(at))
	wrong(6)
	for range historyAnswers {
		at = at.add(1)
		c.gets(write(at))
		c.wantSent(ack(at))
	}
	c.gets(write(first))
	c.wantSent()
	wrong(7)
	c.gets(write(at.add(-historyAnswers + 1)))
	c.wantSent(ack(at))
	wrong(7)
}

// TestResponderSweep: of requests with all PSNs but the expected one, none is executed,
// and all of them together get one NAK for the gap and the acknowledgement of one
// duplicate.
func TestResponderSweep(t *testing.T) {
	c := newCore(t)
	good := c.write(header.WriteOnly, coreRQPSN, 100, 1, []byte{7})
	c.gets(good)
	c.wantSent(ack(coreRQPSN))
	expect := psn(coreRQPSN).add(1)
	raw := c.write(header.WriteOnly, 0, 0, 1, []byte{1}).bytes()
	var got []sentPacket
	step := 1
	if testing.Short() {
		step = 51 // divides 2^24-1, so that the last one is among them
	}
	n := uint64(0)
	for d := step; d < 1<<24; d += step {
		n++
		header.BTH(raw).SetPSN(uint32(expect.add(d)))
		c.getsRaw(raw)
		if c.e.ready() {
			got = append(got, c.sends()...)
		}
	}
	if len(got) != 2 || got[0].AETH.Syndrome() != header.NAKSequence || got[1].AETH.Syndrome() != header.ACKNoCredits {
		t.Fatalf("sent %+v", got)
	}
	if c.buf[0] != 0 || c.e.rsp.expect != expect {
		t.Fatalf("executed; expects PSN %#x, want %#x", c.e.rsp.expect, expect)
	}
	if s := c.e.stats; s.wrongPSN+s.outOfOrder != n-1 || s.wrongPSN < n/2-1 || s.outOfOrder < n/2-1 || s.duplicates != 1 || s.nakSent != 1 {
		t.Errorf("counted %+v", s)
	}
	good.psn = expect
	c.gets(good)
	c.wantSent(ack(expect))
}
