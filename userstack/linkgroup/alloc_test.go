// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"testing"
	"time"

	"smcr/smc"
)

// loop joins two open connections as directly as can be: what one posts is
// copied and handed to the other at once.
type loop struct {
	now  time.Time
	ends [2]*app // sender, receiver
	acts []Action

	writes int
}

func newLoop(t testing.TB) *loop {
	_, srv, cli := pair(t, 1, 1, 1, func(c *Config) { c.Timers.TestLink = 0 })
	return loopOf(srv, cli)
}

func loopOf(srv, cli *app) *loop {
	srv.h.keep, cli.h.keep = true, true
	return &loop{now: epoch.Add(time.Hour), ends: [2]*app{srv, cli}}
}

// exchange carries out the actions of both ends until there are none.
func (l *loop) exchange() {
	for busy := true; busy; {
		busy = false
		for i, p := range l.ends {
			g, to := p.h.g, l.ends[1-i]
			l.acts = g.TakeActions(l.acts)
			for j := range l.acts {
				a := &l.acts[j]
				busy = true
				switch a.Kind {
				case ActWrite:
					l.writes++
					off := int(a.RemoteAddr - to.c.rmb.at[0].Addr)
					copy(to.c.rmb.mem[off:off+a.Len], a.Chunk.Mem[a.Off:][:a.Len])
				case ActSend:
					to.h.g.Received(l.now, to.h.g.links.list[0], a.Msg[:])
					g.Sent(l.now, a.Link, a.Token)
				}
			}
		}
	}
}

// move sends n bytes and has them read.
func (l *loop) move(n int) {
	s, r := l.ends[0].c, l.ends[1].c
	for n > 0 {
		a, b, _ := s.SendSpace(1, n)
		m := min(n, len(a)+len(b))
		s.Produced(l.now, m)
		n -= m
		l.exchange()
		for {
			a, b := r.RecvData()
			if len(a) == 0 {
				break
			}
			r.Consumed(l.now, len(a)+len(b))
			l.exchange()
		}
	}
}

// push sends data as a program does, which writes as much as there is space for, and
// has it read when the send buffer is full.
func (l *loop) push(data []byte) {
	s, r := l.ends[0].c, l.ends[1].c
	for len(data) > 0 {
		a, b, _ := s.SendSpace(1, len(data))
		n := copy(a, data)
		n += copy(b, data[n:])
		if data = data[n:]; n > 0 {
			s.Produced(l.now, n)
		}
		if n > 0 && len(data) > 0 && int(s.Positions().Produced-s.Positions().Delivered) < s.SendSize() {
			continue
		}
		l.exchange()
		a, b = r.RecvData()
		r.Consumed(l.now, len(a)+len(b))
		l.exchange()
	}
}

// TestDataPathAllocs: data costs no allocation, on either side.
func TestDataPathAllocs(t *testing.T) {
	l := newLoop(t)
	for range 100 {
		l.move(5000)
	}
	before := l.ends[1].c.Positions().Read
	if n := testing.AllocsPerRun(1000, func() { l.move(7777) }); n != 0 {
		t.Errorf("%v allocations for 7777 bytes", n)
	}
	if got := l.ends[1].c.Positions().Read - before; got != 1001*7777 {
		t.Errorf("%d bytes went through", got)
	}
}

func BenchmarkMessage(b *testing.B) {
	l := newLoop(b)
	b.ReportAllocs()
	for b.Loop() {
		l.move(64)
	}
}

func BenchmarkBulk(b *testing.B) {
	l := newLoop(b)
	b.ReportAllocs()
	b.SetBytes(16 << 10)
	for b.Loop() {
		l.move(16 << 10)
	}
}

// BenchmarkChunk has a program write 1 MiB in pieces of a send buffer of 256 KiB, in
// chunks of several sizes, and the bytes copied as a program and a device do. It
// tells how many RDMA WRITEs that takes.
func BenchmarkChunk(b *testing.B) {
	data := make([]byte, 1<<20)
	for _, size := range []int{32 << 10, 64 << 10, 128 << 10, 256 << 10} {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			s := newSim(b, 1)
			edit := func(c *Config) { c.Timers.TestLink, c.SendChunk = 0, size }
			s.addHost(smc.Server, 1, edit)
			s.addHost(smc.Client, 1, edit)
			srv, cli := s.connectFirst(4, 256<<10)
			srv.manual, cli.manual = true, true
			s.runUntilIdle()
			l := loopOf(srv, cli)
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			before := l.writes
			n := 0
			for b.Loop() {
				l.push(data)
				n++
			}
			b.ReportMetric(float64(l.writes-before)/float64(n), "writes/op")
		})
	}
}

func BenchmarkDeadline(b *testing.B) {
	l := newLoop(b)
	g := l.ends[0].h.g
	b.ReportAllocs()
	for b.Loop() {
		g.Deadline()
	}
}
