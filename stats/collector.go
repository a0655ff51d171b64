// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// Collector counts for one stack. Its zero value is ready; all methods are
// safe for concurrent use and the ones of the data path neither lock nor
// allocate.
type Collector struct {
	tx, rx               traffic
	clientV1, serverV1   atomic.Uint64
	clientErr, serverErr atomic.Uint64
	txBufs, rxBufs       buffers

	mu        sync.Mutex
	fallbacks map[reasonKey]uint64
	fbClient  uint64
	fbServer  uint64
}

// traffic counts the calls of one direction.
type traffic struct {
	bytes, calls atomic.Uint64
	sizes        [Buckets]atomic.Uint64
}

func (t *traffic) add(n int) {
	t.calls.Add(1)
	if n > 0 {
		t.bytes.Add(uint64(n))
		t.sizes[Bucket(n)].Add(1)
	}
}

func (t *traffic) histogram() (h Histogram) {
	for i := range t.sizes {
		h[i] = t.sizes[i].Load()
	}
	return h
}

// buffers counts the buffers of one direction.
type buffers struct {
	sizes        [Buckets]atomic.Uint64
	reuse, alloc atomic.Uint64
	full         atomic.Uint64
}

type reasonKey struct {
	side   Side
	reason uint32
}

// Sent counts a send call that took n bytes from the program.
func (c *Collector) Sent(n int) { c.tx.add(n) }

// Received counts a receive call that gave the program n bytes.
func (c *Collector) Received(n int) { c.rx.add(n) }

// Connected counts a connection that uses SMC-R version 1.
func (c *Collector) Connected(side Side) {
	if side == Client {
		c.clientV1.Add(1)
	} else {
		c.serverV1.Add(1)
	}
}

// HandshakeError counts a rendezvous that failed, neither SMC-R nor fallback.
func (c *Collector) HandshakeError(side Side) {
	if side == Client {
		c.clientErr.Add(1)
	} else {
		c.serverErr.Add(1)
	}
}

// SendBuffer and RMB count the buffer of size bytes that a connection got;
// reused tells that it needed no allocation.
func (c *Collector) SendBuffer(size int, reused bool) { c.txBufs.got(size, reused) }

// RMB counts a connection's RMB element likewise.
func (c *Collector) RMB(size int, reused bool) { c.rxBufs.got(size, reused) }

func (b *buffers) got(size int, reused bool) {
	b.sizes[Bucket(size)].Add(1)
	if reused {
		b.reuse.Add(1)
	} else {
		b.alloc.Add(1)
	}
}

// SendFull counts a send call that found the send buffer full.
func (c *Collector) SendFull() { c.txBufs.full.Add(1) }

// Fallback counts a connection that became plain TCP.
func (c *Collector) Fallback(side Side, reason uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if side == Client {
		c.fbClient++
	} else {
		c.fbServer++
	}
	k := reasonKey{side, reason}
	if _, known := c.fallbacks[k]; !known {
		n := 0
		for o := range c.fallbacks {
			if o.side == side {
				n++
			}
		}
		if n >= MaxReasons {
			return
		}
	}
	if c.fallbacks == nil {
		c.fallbacks = map[reasonKey]uint64{}
	}
	c.fallbacks[k]++
}

// Fallbacks returns what Fallback has counted.
func (c *Collector) Fallbacks() Fallbacks {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := Fallbacks{ClientTotal: c.fbClient, ServerTotal: c.fbServer}
	for k, n := range c.fallbacks {
		f.Reasons = append(f.Reasons, Fallback{Side: k.side, Reason: k.reason, Count: n})
	}
	slices.SortFunc(f.Reasons, func(a, b Fallback) int {
		return cmp.Or(-cmp.Compare(a.Side, b.Side), cmp.Compare(a.Reason, b.Reason))
	})
	return f
}

// Snapshot returns the counters. The usage gauges are the stack's to fill.
func (c *Collector) Snapshot() Stats {
	t := Tech{
		TXSizes: c.tx.histogram(), RXSizes: c.rx.histogram(),
		TXBytes: c.tx.bytes.Load(), RXBytes: c.rx.bytes.Load(),
		TXCalls: c.tx.calls.Load(), RXCalls: c.rx.calls.Load(),
		ClientV1: c.clientV1.Load(), ServerV1: c.serverV1.Load(),
	}
	for i := range t.TXBufSizes {
		t.TXBufSizes[i] = c.txBufs.sizes[i].Load()
		t.RXBufSizes[i] = c.rxBufs.sizes[i].Load()
	}
	t.TXBufs = Buffers{Full: c.txBufs.full.Load(), Reuse: c.txBufs.reuse.Load(), Alloc: c.txBufs.alloc.Load()}
	t.RXBufs = Buffers{Reuse: c.rxBufs.reuse.Load(), Alloc: c.rxBufs.alloc.Load()}
	return Stats{
		SMCR:                  t,
		ClientHandshakeErrors: c.clientErr.Load(), ServerHandshakeErrors: c.serverErr.Load(),
	}
}
