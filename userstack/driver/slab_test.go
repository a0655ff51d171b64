// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"smcr/rdmaverbs"
)

// slabOf returns the regions of send memory of a side, and the number of their chunks
// that connections have.
func slabOf(s *side) (regions []*region, taken int) {
	s.regions(func(r *region) {
		if r.chunks != nil {
			regions = append(regions, r)
			taken += r.taken
		}
	})
	return regions, taken
}

// expect reads len(want) bytes and compares them.
func expect(t *testing.T, c *end, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d bytes, %v; they are not those that were written", len(got), err)
	}
}

func bigSend(c *Config) { c.SendBuf = 256 << 10 }

// TestSlabShared: connections that send one after another use the same memory, and have
// none after their data is confirmed.
func TestSlabShared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bigSend)
		const n = 40
		var ends [][2]*end
		for range n {
			c, s := b.connect()
			ends = append(ends, [2]*end{c, s})
		}
		if r, _ := slabOf(b.client); len(r) != 0 {
			t.Errorf("connections that never sent have %d regions", len(r))
		}
		for i, e := range ends {
			b.exchange(e[0], e[1], pattern(uint64(i), 30_000))
			time.Sleep(time.Millisecond) // until the data is confirmed
		}
		regions, taken := slabOf(b.client)
		if len(regions) != 1 || taken != 0 {
			t.Errorf("%d regions, %d chunks taken", len(regions), taken)
		}
		if _, sends, _ := held(t, b.client); sends > 32<<10 {
			t.Errorf("%d connections in turns took %d bytes", n, sends)
		}
		// All send at once and the peers do not read: the memory stays within the limit.
		for i, e := range ends {
			e[0].Out.SetDeadline(time.Now().Add(time.Second))
			if m, err := e[0].Write(pattern(uint64(i), 1<<20)); err == nil || m != (256+64)<<10 {
				t.Errorf("wrote %d bytes, %v", m, err)
			}
		}
		if regions, taken := slabOf(b.client); len(regions) != n || taken != 4*n {
			t.Errorf("%d regions, %d chunks taken by %d full connections", len(regions), taken, n)
		}
		for _, e := range ends {
			e[1].End.Abort()
			b.ended(e[0])
		}
		if _, taken := slabOf(b.client); taken != 0 {
			t.Errorf("%d chunks of connections that have ended are taken", taken)
		}
	})
}

// TestSlabSecret: data of one connection never reaches the peer of another one, even if
// that connection gets the memory that still contains it.
func TestSlabSecret(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bigSend)
		c1, s1 := b.connect()
		c2, s2 := b.connect()
		secret := []byte("the password of somebody else")
		b.exchange(c1, s1, bytes.Repeat(secret, 1000))
		time.Sleep(settled)
		p, _, _, err := c2.Out.Reserve(10_000)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(p, secret); n < 300 {
			t.Errorf("the memory has %d secrets: it is not that of the other connection", n)
		}
		for _, n := range []int{3, 0, 5000, 1} {
			for i := range p[:n] {
				p[i] = 'x'
			}
			if n == 0 {
				c2.Out.EndReserve()
			} else if err := c2.Out.Commit(n); err != nil {
				t.Fatal(err)
			}
			time.Sleep(settled)
			if p, _, _, err = c2.Out.Reserve(10_000); err != nil {
				t.Fatal(err)
			}
		}
		c2.Out.EndReserve()
		if _, err := c2.Write([]byte("yz")); err != nil { // with Write
			t.Fatal(err)
		}
		c2.End.CloseWrite()
		expect(t, s2, append(bytes.Repeat([]byte("x"), 5004), "yz"...))
		n := 0
		b.server.regions(func(r *region) {
			if r.lnk != nil {
				n += bytes.Count(r.mem, secret)
			}
		})
		if n != 1000 {
			t.Errorf("the peer has %d secrets in its memory, 1000 were sent", n)
		}
		b.finish(c1, s1)
		b.finish(c2, s2)
	})
}

// TestSlabTrim: if a connection has a chunk of a region, the pages of the other chunks
// are returned. When it returns its chunk, the whole region is unmapped.
func TestSlabTrim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bigSend)
		c, s := b.connect()
		for range 3 {
			b.exchange(c, s, pattern(1, 250<<10))
		}
		time.Sleep(settled)
		p, _, _, err := c.Out.Reserve(1)
		if err != nil {
			t.Fatal(err)
		}
		copy(p, "kept")
		time.Sleep(afterTrim)
		if _, sends, _ := held(t, b.client); sends > len(p) {
			t.Errorf("%d bytes are held, %d are reserved", sends, len(p))
		}
		if regions, taken := slabOf(b.client); len(regions) != 1 || taken != 1 {
			t.Errorf("%d regions, %d chunks taken", len(regions), taken)
		}
		if b.client.s.trim.armed.Load() {
			t.Error("the timer still runs")
		}
		if err := c.Out.Commit(4); err != nil {
			t.Fatal(err)
		}
		expect(t, s, []byte("kept"))
		time.Sleep(afterTrim)
		if regions, _ := slabOf(b.client); len(regions) != 0 {
			t.Errorf("%d regions are left", len(regions))
		}
		if b.client.s.trim.armed.Load() {
			t.Error("the timer still runs")
		}
		b.exchange(c, s, pattern(2, 250<<10))
		b.finish(c, s)
	})
}

// BenchmarkSendMemory has many connections that send in turn. It reports how much send
// memory each of them needs, and how much is mapped for it.
func BenchmarkSendMemory(b *testing.B) {
	for _, size := range []int{100, 10_000, 200_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			bed := newBed(b, bigSend)
			const n = 100
			var ends [][2]*end
			for range n {
				c, s := bed.connect()
				ends = append(ends, [2]*end{c, s})
			}
			data := pattern(1, size)
			for b.Loop() {
				for _, e := range ends {
					bed.exchange(e[0], e[1], data)
				}
			}
			sends, mapped := 0, uint64(0)
			bed.client.regions(func(r *region) {
				if r.lnk == nil {
					sends += rdmaverbs.HeldBytes(r.mem)
				}
			})
			for _, g := range bed.client.Groups() {
				g.do(func(time.Time) { mapped += g.mem.sendBytes })
			}
			b.ReportMetric(float64(sends)/n, "held-B/conn")
			b.ReportMetric(float64(mapped)/n, "mapped-B/conn")
			for _, e := range ends {
				bed.finish(e[0], e[1])
			}
		})
	}
}
