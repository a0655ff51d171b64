// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"testing"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"

	"pgregory.net/rapid"
)

// TestTrain sends WRITEs of any lengths, in one or two pieces of memory, with
// one message for each packet. Every byte arrives at its address, PSNs are
// consecutive, all packets of a request except the last are full, and an
// acknowledgement is always requested before the window is full.
func TestTrain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCore(t)
		c.e.writeOnly = true
		for i := range c.buf {
			c.buf[i] = byte(i*7 + i>>8)
		}
		at := psn(coreSQPSN)
		for range rapid.IntRange(1, 5).Draw(rt, "requests") {
			n1 := rapid.IntRange(1, 70*coreMTU).Draw(rt, "bytes")
			n2 := rapid.IntRange(0, 70*coreMTU).Draw(rt, "bytes of the second piece")
			c.postPieces(rdmaverbs.OpWrite, piece{mr: c.mr, off: 5, n: n1}, piece{mr: c.mr, off: 0x5001, n: n2})
			want := append(bytes.Clone(c.buf[5:][:n1]), c.buf[0x5001:][:n2]...)
			var got []byte
			for unasked := 0; len(got) < len(want); {
				for _, p := range c.sends() {
					if p.op != header.WriteOnly || p.psn != at {
						rt.Fatalf("%v with PSN %#x, want %#x", p.op, p.psn, at)
					}
					if va := p.RETH.VA(); va != 0x5000+uint64(len(got)) || p.RETH.RKey() != 0x77 || int(p.RETH.DMALen()) != len(p.Payload) {
						rt.Fatalf("byte %d: RETH %x", len(got), []byte(p.RETH))
					}
					got = append(got, p.Payload...)
					if len(p.Payload) != coreMTU && len(got) != len(want) {
						rt.Fatalf("a packet of %d bytes in between", len(p.Payload))
					}
					if unasked++; p.BTH.AckReq() {
						unasked = 0
					}
					at = at.add(1)
				}
				if unasked != 0 {
					rt.Fatalf("%d packets are outstanding for which no acknowledgement was asked", unasked)
				}
				c.gets(ack(at.add(-1)))
			}
			if !bytes.Equal(got, want) {
				rt.Fatal("other bytes arrive than were posted")
			}
			c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
		}
		if n := c.e.stats.retransmits; n != 0 {
			rt.Fatalf("%d packets count as sent again", n)
		}
	})
}

// TestTrainAgain checks which packets count as retransmitted after a loss.
func TestTrainAgain(t *testing.T) {
	c := newCore(t)
	c.e.writeOnly = true
	c.post(rdmaverbs.OpWrite, 20*coreMTU)
	first := c.sends()
	c.post(rdmaverbs.OpWrite, 10*coreMTU)
	c.gets(nak(first[5].psn, header.NAKSequence))
	if got := c.sends(); len(got) != 25 || got[0].psn != first[5].psn {
		t.Errorf("%d packets from %#x after a loss, want 25 from %#x", len(got), got[0].psn, first[5].psn)
	}
	if n := c.e.stats.retransmits; n != 15 {
		t.Errorf("%d packets count as sent again, want 15", n)
	}
}

// TestTrainMemoryGone closes the memory of a WRITE before it is sent.
func TestTrainMemoryGone(t *testing.T) {
	c := newCore(t)
	c.e.writeOnly = true
	c.post(rdmaverbs.OpWrite, 20*coreMTU)
	if err := c.mr.Close(); err != nil {
		t.Fatal(err)
	}
	c.wantSent()
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusLocProtErr)
}

// trainCore returns a core that sends WRITEs of 64 KiB in packets of 1 KiB.
func trainCore(t testing.TB) *core {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.PathMTU = smc.MTU1024 })
	c.e.writeOnly = true
	c.buf = make([]byte, 64<<10)
	return c
}

// train posts a WRITE, takes its packets as long as there are any, and
// acknowledges them.
func (c *core) train(b *batch) (packets int) {
	c.post(rdmaverbs.OpWrite, 64<<10)
	for {
		b.reset()
		c.e.fill(c.now, b)
		if len(b.pkts) == 0 {
			break
		}
		packets += len(b.pkts)
		c.e.sent()
	}
	c.e.req.acknowledge(c.now, c.e.req.nxt)
	c.e.completeReady()
	var wc [1]rdmaverbs.WC
	c.e.sendCQ.Poll(wc[:])
	return packets
}

func TestTrainNoAllocs(t *testing.T) {
	c := trainCore(t)
	b := batches.New().(*batch)
	if n := c.train(b); n != 64 {
		t.Fatalf("%d packets, want 64", n)
	}
	if n := testing.AllocsPerRun(100, func() { c.train(b) }); n != 0 {
		t.Errorf("%v allocations a WRITE", n)
	}
}

// BenchmarkTrain cuts WRITEs of 64 KiB into packets of 1 KiB; an operation is a
// packet.
func BenchmarkTrain(b *testing.B) {
	c := trainCore(b)
	batch := batches.New().(*batch)
	b.SetBytes(1 << 10)
	b.ReportAllocs()
	for n := 0; n < b.N; {
		n += c.train(batch)
	}
}

// BenchmarkExecute executes packets of 1 KiB of RDMA WRITEs: it parses them and
// copies the payload.
func BenchmarkExecute(b *testing.B) {
	c := trainCore(b)
	data := c.write(header.WriteOnly, 0, 0, 1<<10, make([]byte, 1<<10)).bytes()
	at := psn(coreRQPSN)
	b.SetBytes(1 << 10)
	b.ReportAllocs()
	for b.Loop() {
		header.BTH(data).SetPSN(uint32(at))
		t, err := header.ParseTransport(data)
		if err != nil {
			b.Fatal(err)
		}
		c.e.receive(c.now, &t)
		at = at.add(1)
	}
	if c.e.rsp.expect != at {
		b.Fatalf("PSN %#x is expected, want %#x", c.e.rsp.expect, at)
	}
}
