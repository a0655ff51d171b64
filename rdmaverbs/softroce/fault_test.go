// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"smcr/guard"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// panickingWire panics when it sends for one queue pair.
type panickingWire struct {
	wire
	dst  *path
	once sync.Once
}

func (w *panickingWire) send(dst *path, pkts []packet) error {
	if dst == w.dst {
		w.once.Do(func() { panic("planted") })
	}
	return w.wire.send(dst, pkts)
}

// counted is a guard that counts and keeps its log.
type counted struct {
	guard.Guard
	panics atomic.Int32
	log    bytes.Buffer // slog serializes the writes
}

func newCounted() *counted {
	c := &counted{}
	c.Guard = guard.Guard{Log: slog.New(slog.NewTextHandler(&c.log, nil)), Count: func() { c.panics.Add(1) }}
	return c
}

// guardedPair opens two devices whose panics g handles.
func (f *simNetwork) guardedPair(t *testing.T, g *guard.Guard) verbstest.Pair {
	return f.pair(t, func(c *config) { c.guard = g })
}

// planted is a fault in one queue pair of two that are connected: a, whose device is the
// first, and b. works uses them until the fault shows.
type planted struct {
	conf  verbstest.Config
	plant func(a, b *verbstest.Conn)
	works func(t *testing.T, f *simNetwork, a, b *verbstest.Conn)
	// ends says which queue pair ends by the fault: that of a, that of b, or none (nil).
	ends func(a, b *verbstest.Conn) *verbstest.Conn
}

func endOf(x *verbstest.Conn) *endpoint { return &x.QP.(*qp).ep }

// loseCQ makes the queue pair of x panic when it completes a receive work request. The
// cleanup of the test mends that.
func loseCQ(x *verbstest.Conn) {
	e := endOf(x)
	cq := e.recvCQ
	e.recvCQ = nil
	x.T.Cleanup(func() { e.recvCQ = cq })
}

func isA(a, _ *verbstest.Conn) *verbstest.Conn { return a }
func isB(_, b *verbstest.Conn) *verbstest.Conn { return b }

// faultsToPlant are the places where a panic may happen.
var faultsToPlant = map[string]planted{
	"received packet": {
		plant: func(_, b *verbstest.Conn) {
			b.Recv(rdmaverbs.RecvWR{})
			loseCQ(b)
		},
		works: func(_ *testing.T, _ *simNetwork, a, _ *verbstest.Conn) {
			a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled})
		},
		ends: isB,
	},
	"received packet, and in the error state": {
		plant: func(_, b *verbstest.Conn) {
			b.Recv(rdmaverbs.RecvWR{}, rdmaverbs.RecvWR{})
			loseCQ(b)
		},
		works: func(_ *testing.T, _ *simNetwork, a, _ *verbstest.Conn) {
			a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled})
		},
		ends: isB,
	},
	"timer": {
		conf: verbstest.Config{NoRetry: true},
		works: func(t *testing.T, f *simNetwork, a, _ *verbstest.Conn) {
			f.mu.Lock()
			f.tap = func(_, _ smc.GID, _ []byte) bool { return true }
			f.mu.Unlock()
			a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm})
			synctest.Wait()
			q := a.QP.(*qp)
			q.mu.Lock()
			q.ep.req.sq.ring = nil
			q.mu.Unlock()
			time.Sleep(time.Second)
			f.mu.Lock()
			f.tap = nil
			f.mu.Unlock()
		},
		ends: isA,
	},
	"send": {
		plant: func(a, _ *verbstest.Conn) {
			d := a.Dev.(*Device)
			d.wire = &panickingWire{wire: d.wire, dst: &a.QP.(*qp).path}
		},
		works: func(_ *testing.T, _ *simNetwork, a, _ *verbstest.Conn) {
			a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm})
		},
		ends: isA,
	},
	"post": {
		plant: func(a, _ *verbstest.Conn) { endOf(a).req.sq.head = -1 },
		works: func(t *testing.T, _ *simNetwork, a, _ *verbstest.Conn) {
			if _, err := a.QP.PostSend(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm}); !errors.Is(err, rdmaverbs.ErrBadState) {
				t.Errorf("PostSend: %v, want ErrBadState", err)
			}
		},
		ends: isA,
	},
	"before a batch": {
		plant: func(a, _ *verbstest.Conn) {
			e := endOf(a)
			cq := e.sendCQ
			e.sendCQ = nil
			a.T.Cleanup(func() { e.sendCQ = cq })
		},
		works: func(_ *testing.T, _ *simNetwork, a, b *verbstest.Conn) {
			mr, _ := b.MR(64, verbstest.All) // of another domain
			a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSend, SG: [2]rdmaverbs.SGE{{MR: mr, Len: 1}}})
		},
		ends: isA,
	},
	"report of a completion": {
		conf: verbstest.Config{Notify: func() { panic("planted") }},
		works: func(_ *testing.T, _ *simNetwork, a, b *verbstest.Conn) {
			b.Recv(rdmaverbs.RecvWR{ID: 1})
			a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled})
			a.OK(1, 1)
		},
	},
}

// TestPanic plants a panic at each place where one may happen: at most its queue pair ends.
// The device reports that, other queue pairs of the same devices go on, all can be closed,
// and the log has the stack once.
func TestPanic(t *testing.T) {
	for name, c := range faultsToPlant {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newSimNetwork(1, simFaults{delay: time.Microsecond})
				g := newCounted()
				pair := f.guardedPair(t, &g.Guard)
				a, b := verbstest.Connect(t, pair, c.conf)
				other, otherPeer := verbstest.Connect(t, pair, verbstest.Config{})
				if c.plant != nil {
					c.plant(a, b)
				}
				c.works(t, f, a, b)
				if c.ends != nil {
					x := c.ends(a, b)
					if ev := <-x.Dev.Events(); ev.Type != rdmaverbs.EventQPFatal || ev.QPN != x.QP.QPN() {
						t.Errorf("event %+v", ev)
					}
					if s := x.QP.State(); s != rdmaverbs.QPSErr {
						t.Errorf("state %v, want the error state", s)
					}
				}
				mr, _ := otherPeer.MR(64, verbstest.All)
				for i := range uint64(3) {
					otherPeer.Recv(rdmaverbs.RecvWR{ID: i})
					other.Send(rdmaverbs.SendWR{ID: i, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled})
					other.OK(i, 1)
					other.Send(oneByte(10+i, mr))
					other.OK(10+i, 1)
				}
				if n := g.panics.Load(); n != 1 {
					t.Errorf("%d panics counted, want 1", n)
				}
				if log := g.log.String(); strings.Count(log, "stack=") != 1 || !strings.Contains(log, "softroce") {
					t.Errorf("the log must have one stack:\n%s", log)
				}
			})
		})
	}
}

// TestPanicInBatch: if the handling of a received packet panics, the other packets that were
// received with it are not lost.
func TestPanicInBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimNetwork(1, simFaults{delay: time.Microsecond})
		g := newCounted()
		pair := f.guardedPair(t, &g.Guard)
		_, broken := verbstest.Connect(t, pair, verbstest.Config{})
		_, b := verbstest.Connect(t, pair, verbstest.Config{})
		broken.Recv(rdmaverbs.RecvWR{})
		loseCQ(broken)
		b.Recv(rdmaverbs.RecvWR{ID: 1}, rdmaverbs.RecvWR{ID: 2})
		var batch []inbound
		for n, x := range []*verbstest.Conn{b, broken, b} {
			data := make([]byte, header.BTHLen)
			psn := x.Path.RQPSN
			if n == 2 {
				psn++
			}
			header.BTH(data).Encode(&header.BTHFields{Opcode: header.SendOnly, PKey: header.DefaultPKey, DestQP: x.QP.QPN(), PSN: psn})
			to := &x.QP.(*qp).path
			batch = append(batch, inbound{typ: to.typ, sgid: to.dgid, dgid: to.sgid, srcPort: simPort(to), data: data})
		}
		b.Dev.(*Device).shards[0].receive(batch)
		b.OKRecv(1, 2)
		if n := g.panics.Load(); n != 1 {
			t.Errorf("%d panics counted, want 1", n)
		}
	})
}
