// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"smcr/smc"
)

// A Direction tells send buffers from receive buffers.
type Direction uint8

// Directions.
const (
	TX Direction = iota // send buffers
	RX                  // RMBs
)

// A SocketCall is a socket operation that is counted by its kind.
type SocketCall uint8

// Socket operations.
const (
	Sendpage SocketCall = iota
	Splice
	Cork
	NoDelay
	Urgent

	socketCalls
)

// A BufferEvent is something that happens to buffers of one direction.
type BufferEvent uint8

// Buffer events; the fields of [Buffers] say what they mean.
const (
	SmallPeer BufferEvent = iota
	Small
	FullPeer
	Full
	Reuse
	Alloc
	Downgrade

	bufferEvents
)

// A Collector counts what an SMC-R stack does. Its methods may be called from
// any goroutine, take no lock and allocate nothing, except Fallback and Snapshot.
// The zero value is ready to use; a Collector must not be copied.
type Collector struct {
	dir [2]direction // by Direction

	conns    [2][2]atomic.Uint64 // by Side, then SMC version - 1
	hsErrors [2]atomic.Uint64    // by Side
	calls    [socketCalls]atomic.Uint64
	local    [2]atomic.Uint64 // by Side
	panics   atomic.Uint64

	mu        sync.Mutex
	fallbacks map[Fallback]uint64 // by side and reason, Count zero
	totals    [2]uint64           // by Side
	reasons   [2]int              // kept reasons by Side
}

// A direction holds the counters of one direction. Senders and receivers run on
// different processors: their counters do not share a cache line.
type direction struct {
	bytes, calls atomic.Uint64
	sizes        [Buckets]atomic.Uint64
	usage        atomic.Int64
	bufSizes     [Buckets]atomic.Uint64
	events       [bufferEvents]atomic.Uint64
	_            [64]byte
}

// TX counts a send call that asked for size bytes, n of which were accepted.
// Failed calls have n <= 0.
func (c *Collector) TX(size, n int) { c.dir[TX].count(size, n) }

// RX counts a receive call that returned n bytes. Calls that failed or returned
// nothing have n <= 0.
func (c *Collector) RX(n int) { c.dir[RX].count(n, n) }

func (d *direction) count(size, n int) {
	d.calls.Add(1)
	if size > 0 {
		d.sizes[Bucket(size)].Add(1)
	}
	if n > 0 {
		d.bytes.Add(uint64(n))
	}
}

// Connection counts a connection that uses SMC, by the side it was made from and
// the SMC version, 1 or 2.
func (c *Collector) Connection(side smc.Role, version int) {
	c.conns[side&1][min(max(version, 1), 2)-1].Add(1)
}

// HandshakeError counts a handshake that failed with an error.
func (c *Collector) HandshakeError(side smc.Role) { c.hsErrors[side&1].Add(1) }

// Local counts a connection between two programs of this host that no stack
// carries.
func (c *Collector) Local(side smc.Role) { c.local[side&1].Add(1) }

// Panic counts a panic that was survived.
func (c *Collector) Panic() { c.panics.Add(1) }

// Call counts a socket operation.
func (c *Collector) Call(k SocketCall) {
	if k < socketCalls {
		c.calls[k].Add(1)
	}
}

// BufferAlloc counts a connection that got a newly allocated buffer of size
// bytes.
func (c *Collector) BufferAlloc(dir Direction, size int) {
	d := &c.dir[dir&1]
	d.events[Alloc].Add(1)
	d.bufSizes[Bucket(size)].Add(1)
	d.usage.Add(int64(size))
}

// BufferReuse counts a connection that got a buffer of size bytes which another
// connection used before.
func (c *Collector) BufferReuse(dir Direction, size int) {
	d := &c.dir[dir&1]
	d.events[Reuse].Add(1)
	d.bufSizes[Bucket(size)].Add(1)
}

// BufferFree takes a buffer of size bytes, which was counted by BufferAlloc, off
// the memory in use.
func (c *Collector) BufferFree(dir Direction, size int) { c.dir[dir&1].usage.Add(-int64(size)) }

// RMBAlloc is BufferAlloc for RMBs.
func (c *Collector) RMBAlloc(size int) { c.BufferAlloc(RX, size) }

// RMBReuse is BufferReuse for RMBs.
func (c *Collector) RMBReuse(size int) { c.BufferReuse(RX, size) }

// RMBFree is BufferFree for RMBs.
func (c *Collector) RMBFree(size int) { c.BufferFree(RX, size) }

// Buffer counts one of the other buffer events: SmallPeer, Small, FullPeer, Full
// and Downgrade.
func (c *Collector) Buffer(dir Direction, e BufferEvent) {
	if e < bufferEvents {
		c.dir[dir&1].events[e].Add(1)
	}
}

// Fallback counts a connection that became plain TCP for a reason, which is a
// CLC decline code. Beyond MaxReasons different reasons of a side only the total
// counts.
func (c *Collector) Fallback(side smc.Role, reason uint32) {
	side &= 1
	c.mu.Lock()
	defer c.mu.Unlock()
	c.totals[side]++
	key := Fallback{Side: side, Reason: reason}
	n, known := c.fallbacks[key]
	if !known {
		if c.reasons[side] == MaxReasons {
			return
		}
		c.reasons[side]++
		if c.fallbacks == nil {
			c.fallbacks = make(map[Fallback]uint64)
		}
	}
	c.fallbacks[key] = n + 1
}

// Fallbacks returns the fallbacks so far: those of the server side first, each
// side by rising reason.
func (c *Collector) Fallbacks() Fallbacks {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := Fallbacks{ClientTotal: c.totals[smc.Client], ServerTotal: c.totals[smc.Server]}
	for k, n := range c.fallbacks {
		k.Count = n
		f.Reasons = append(f.Reasons, k)
	}
	slices.SortFunc(f.Reasons, func(a, b Fallback) int {
		return cmp.Or(cmp.Compare(b.Side, a.Side), cmp.Compare(a.Reason, b.Reason))
	})
	return f
}

// Snapshot returns the counters so far, all of them in the SMC-R part. Counters
// that change meanwhile may be read before or after the change, each for itself.
func (c *Collector) Snapshot() Stats {
	tx, rx := &c.dir[TX], &c.dir[RX]
	return Stats{
		SMCR: Tech{
			TXBufSizes: load(&tx.bufSizes), RXBufSizes: load(&rx.bufSizes),
			TXSizes: load(&tx.sizes), RXSizes: load(&rx.sizes),
			TXBufs: tx.buffers(), RXBufs: rx.buffers(),
			ClientV1: c.conns[smc.Client][0].Load(), ClientV2: c.conns[smc.Client][1].Load(),
			ServerV1: c.conns[smc.Server][0].Load(), ServerV2: c.conns[smc.Server][1].Load(),
			Sendpage: c.calls[Sendpage].Load(), Splice: c.calls[Splice].Load(), Cork: c.calls[Cork].Load(),
			NoDelay: c.calls[NoDelay].Load(), Urgent: c.calls[Urgent].Load(),
			RXBytes: rx.bytes.Load(), TXBytes: tx.bytes.Load(),
			RXCalls: rx.calls.Load(), TXCalls: tx.calls.Load(),
			RXUsage: uint64(max(rx.usage.Load(), 0)), TXUsage: uint64(max(tx.usage.Load(), 0)),
		},
		ClientHandshakeErrors: c.hsErrors[smc.Client].Load(),
		ServerHandshakeErrors: c.hsErrors[smc.Server].Load(),
		ClientLocal:           c.local[smc.Client].Load(),
		ServerLocal:           c.local[smc.Server].Load(),
		Panics:                c.panics.Load(),
	}
}

func load(src *[Buckets]atomic.Uint64) (h Histogram) {
	for i := range src {
		h[i] = src[i].Load()
	}
	return h
}

func (d *direction) buffers() Buffers {
	return Buffers{
		SmallPeer: d.events[SmallPeer].Load(),
		Small:     d.events[Small].Load(),
		FullPeer:  d.events[FullPeer].Load(),
		Full:      d.events[Full].Load(),
		Reuse:     d.events[Reuse].Load(),
		Alloc:     d.events[Alloc].Load(),
		Downgrade: d.events[Downgrade].Load(),
	}
}
