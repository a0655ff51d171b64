// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"
)

// TestHold removes an adapter that has acknowledged a write and a message which its host
// has not seen. The sender does not notice it, and the memory is as before the write. If
// the adapter is not removed, both arrive.
func TestHold(t *testing.T) {
	for _, remove := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			_, _, hb, p := pair(t, Config{Delay: time.Microsecond, Hold: time.Second})
			a, b := verbstest.Connect(t, p, verbstest.Config{})
			src, from := a.MR(100, verbstest.All)
			dst, to := b.MR(100, verbstest.All)
			copy(from, "new")
			copy(to, "old")
			b.Recv(rdmaverbs.RecvWR{ID: 1})
			a.Send(
				rdmaverbs.SendWR{Op: rdmaverbs.OpWrite, SG: [2]rdmaverbs.SGE{{MR: src, Len: 3}}, RKey: dst.RKey(), RemoteAddr: dst.Addr()},
				rdmaverbs.SendWR{ID: 7, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled},
			)
			a.OK(7, 1)
			want := "new"
			if remove {
				hb.Remove("eth0")
				want = "old"
				b.Fails(b.RecvCQ, 1, rdmaverbs.StatusFlushErr)
			} else {
				b.OKRecv(1, 1)
			}
			if !bytes.HasPrefix(to, []byte(want)) {
				t.Errorf("removed %v: memory is %q, want %q", remove, to[:3], want)
			}
		})
	}
}

// TestPartialWrite makes the path fail during a long write: only whole packets from its
// beginning may have been placed.
func TestPartialWrite(t *testing.T) {
	placed := map[int]bool{}
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			w, _, _, p := pair(t, Config{Seed: seed, Delay: time.Millisecond})
			a, b := verbstest.Connect(t, p, verbstest.Config{Timeout: 10, RetryCnt: 1})
			src, from := a.MR(10<<10, verbstest.All)
			dst, to := b.MR(10<<10, verbstest.All)
			for i := range from {
				from[i] = 1
			}
			a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Len: len(from)}}, RKey: dst.RKey(), RemoteAddr: dst.Addr()})
			w.SetLAN("lan", false)
			a.Fails(a.SendCQ, 1, rdmaverbs.StatusRetryExcErr)
			n := bytes.Count(to, []byte{1})
			if n%1024 != 0 || bytes.IndexByte(to, 0) != n {
				t.Errorf("seed %d: %d bytes placed, the first gap at %d", seed, n, bytes.IndexByte(to, 0))
			}
			placed[n] = true
		})
	}
	if len(placed) < 3 {
		t.Errorf("the writes are cut at %v only", placed)
	}
}

// TestSteer changes, drops and forges messages, and checks the results.
func TestSteer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kinds []EventKind
		drop := false
		w, _, _, p := pair(t, Config{
			Alter: func(from, to Place, msg []byte) ([]byte, bool) {
				if from.Host != "a" || to.Host != "b" {
					t.Errorf("message from %v to %v", from, to)
				}
				return append([]byte("not "), msg...), !drop
			},
			Observe: func(e *Event) { kinds = append(kinds, e.Kind) },
		})
		a, b := verbstest.Connect(t, p, verbstest.Config{})
		dst, to := b.MR(100, verbstest.All)
		b.Recv(rdmaverbs.RecvWR{ID: 1, SG: rdmaverbs.SGE{MR: dst, Len: 50}}, rdmaverbs.RecvWR{ID: 2, SG: rdmaverbs.SGE{MR: dst, Len: 50}})
		send := rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled | rdmaverbs.Inline, InlineData: []byte("so")}
		a.Send(send)
		a.OK(1, 1)
		b.OKRecv(1, 1)
		if !bytes.HasPrefix(to, []byte("not so")) {
			t.Errorf("altered message is %q", to[:6])
		}
		drop = true
		a.Send(send)
		a.OK(1, 1)
		b.None(b.RecvCQ)
		if !w.Inject(b.QP.QPN(), []byte("forged")) {
			t.Error("cannot forge a message")
		}
		b.OKRecv(2, 1)
		if !bytes.HasPrefix(to, []byte("forged")) {
			t.Errorf("forged message is %q", to[:6])
		}
		if w.Inject(b.QP.QPN(), []byte("forged")) {
			t.Error("forged a message for which no receive request waits")
		}
		if !w.InjectWrite(b.QP.QPN(), dst.RKey(), dst.Addr()+10, []byte("written")) || !bytes.HasPrefix(to[10:], []byte("written")) {
			t.Errorf("forged write left %q", to[10:17])
		}
		if !w.InjectWrite(b.QP.QPN(), dst.RKey()+1, dst.Addr(), []byte("written")) || b.QP.State() != rdmaverbs.QPSErr {
			t.Error("a write without permission did not fail the queue pair")
		}
		want := []EventKind{EventSend, EventLost, EventSend, EventWrite, EventRefused, EventFailed}
		if !slices.Equal(kinds, want) {
			t.Errorf("events %v, want %v", kinds, want)
		}
	})
}
