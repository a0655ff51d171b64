// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"fmt"
	"testing"

	"smcr/rdmaverbs"
)

// Bench runs the suite's benchmarks as sub-benchmarks.
func Bench(b *testing.B, open Open) {
	b.Run("Write1MiB", func(b *testing.B) { BenchWrite(b, open, 1<<20) })
	b.Run("Write64KiB", func(b *testing.B) { BenchWrite(b, open, 64<<10) })
	b.Run("Stream64KiB", func(b *testing.B) { BenchStream(b, open, 64<<10) })
	for _, n := range []int{1, 44} {
		b.Run(fmt.Sprintf("PingPong%d", n), func(b *testing.B) { BenchPingPong(b, open, n) })
	}
}

// BenchWrite measures RDMA WRITEs of n bytes, four outstanding.
func BenchWrite(b *testing.B, open Open, n int) {
	const depth = 4
	x, y := Connect(b, open(b), Config{})
	src, _ := x.MR(n, 0)
	dst, _ := y.MR(n, All)
	// Slices that outlive the loop: arguments of interface methods escape.
	wr := []rdmaverbs.SendWR{{Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{sge(src)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()}}
	wcs := make([]rdmaverbs.WC, depth)
	b.SetBytes(int64(n))
	b.ReportAllocs()
	b.ResetTimer()
	posted, done := 0, 0
	for done < b.N {
		for posted < b.N && posted-done < depth {
			if _, err := x.QP.PostSend(wr...); err != nil {
				b.Fatal(err)
			}
			posted++
		}
		done += benchWait(b, x, x.SendCQ, wcs)
	}
}

// benchWait waits for at least one completion, without allocating.
func benchWait(b *testing.B, x *Conn, cq rdmaverbs.CQ, wcs []rdmaverbs.WC) int {
	for {
		n := cq.Poll(wcs)
		for _, wc := range wcs[:n] {
			if wc.Status != rdmaverbs.StatusSuccess {
				b.Fatal(wc.Status)
			}
		}
		if n > 0 {
			return n
		}
		<-x.wake
	}
}

// BenchPingPong measures round trips of SENDs of n bytes; the answer is sent
// from the notify function.
func BenchPingPong(b *testing.B, open Open, n int) {
	var y *Conn
	data := make([]byte, n)
	var dst rdmaverbs.MR
	recvs := make([]rdmaverbs.RecvWR, 1)
	sends := make([]rdmaverbs.SendWR, 1)
	var wcs [4]rdmaverbs.WC
	x, y := Connect(b, open(b), Config{Notify: func() { // by the receive goroutine only
		for n := y.RecvCQ.Poll(wcs[:]); n > 0; n = y.RecvCQ.Poll(wcs[:]) {
			for _, wc := range wcs[:n] {
				if wc.Status != rdmaverbs.StatusSuccess {
					return
				}
				y.QP.PostRecv(recvs...)
				y.QP.PostSend(sends...)
			}
		}
	}})
	dst, _ = y.MR(4096, rdmaverbs.AccessLocalWrite)
	recvs[0] = rdmaverbs.RecvWR{SG: sge(dst)}
	sends[0] = rdmaverbs.SendWR{Op: rdmaverbs.OpSend, Flags: rdmaverbs.Inline, InlineData: data}
	y.Recv(recvs[0], recvs[0], recvs[0], recvs[0])
	back, _ := x.MR(4096, rdmaverbs.AccessLocalWrite)
	mine := []rdmaverbs.RecvWR{{SG: sge(back)}}
	b.ReportAllocs()
	b.ResetTimer()
	var got [4]rdmaverbs.WC
	for range b.N {
		x.QP.PostRecv(mine...)
		if _, err := x.QP.PostSend(sends...); err != nil {
			b.Fatal(err)
		}
		benchWait(b, x, x.RecvCQ, got[:])
	}
}
