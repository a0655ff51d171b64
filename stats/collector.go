// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"smcr/smc"
)

// A Direction is that of the data: a send buffer has TX, an RMB has RX.
type Direction uint8

// The two directions.
const (
	TX Direction = iota // data that programs send
	RX                  // data that programs receive
)

// A SocketCall is a kind of socket call that has a counter of its own.
type SocketCall uint8

// The socket calls that a [Collector] counts.
const (
	Cork    SocketCall = iota // TCP_CORK is cleared
	NoDelay                   // TCP_NODELAY is set
	Urgent                    // urgent data is sent or received

	socketCalls
)

// A BufferEvent is something that happens to the buffers of one direction.
type BufferEvent uint8

// The events that a [Collector] counts. The fields of [Buffers] with the same names
// say what they mean.
const (
	FullPeer BufferEvent = iota // see [Buffers.FullPeer]
	Full                        // see [Buffers.Full]
	Reuse                       // see [Buffers.Reuse]
	Alloc                       // see [Buffers.Alloc]

	bufferEvents
)

// A Collector counts what an SMC-R stack in user space does. Its methods may be
// called by any goroutine; all but Fallback, PeerDeclined and Fallbacks take no lock and
// allocate nothing. The zero value is ready to use. A Collector must not be copied.
//
// It does not count sendpage and splice calls, nor calls that are too large or too
// small for a buffer: the stack does not see these calls of a program.
type Collector struct {
	dir [2]direction // by Direction

	conns    [2][2]atomic.Uint64 // by Side, then SMC version - 1
	hsErrors [2]atomic.Uint64    // by Side
	calls    [socketCalls]atomic.Uint64
	panics   atomic.Uint64
	moves    atomic.Uint64 // failovers
	hsTimes  [2]times      // by Side

	mu        sync.Mutex
	fallbacks map[Fallback]uint64 // by side and reason, Count zero
	peers     map[Fallback]uint64 // the same for the reasons of peers
	totals    [2]uint64           // by Side
	reasons   [2]int              // kept reasons by Side
}

// A direction holds the counters of one direction. Senders and receivers may run on
// different processors, so the counters of the two do not share a cache line.
type direction struct {
	bytes, calls atomic.Uint64
	sizes        [Buckets]atomic.Uint64
	bufSizes     [Buckets]atomic.Uint64
	events       [bufferEvents]atomic.Uint64
	_            [64]byte
}

// TX counts a send call that was given size bytes and accepted n of them. A call
// that failed has n <= 0.
func (c *Collector) TX(size, n int) { c.dir[TX].count(size, n) }

// RX counts a receive call that returned n bytes. A call that failed, or returned
// nothing, has n <= 0.
func (c *Collector) RX(n int) { c.dir[RX].count(n, n) }

func (d *direction) count(size, n int) {
	d.calls.Add(1)
	if n > 0 {
		d.sizes[Bucket(size)].Add(1)
		d.bytes.Add(uint64(n))
	}
}

// Connection counts a connection that uses SMC: side is that of this host, version
// that of SMC, 1 or 2.
func (c *Collector) Connection(side smc.Role, version int) {
	c.conns[side&1][min(max(version, 1), 2)-1].Add(1)
}

// HandshakeError counts a handshake that failed with an error and left no
// connection. A connection that becomes plain TCP is a [Collector.Fallback].
func (c *Collector) HandshakeError(side smc.Role) { c.hsErrors[side&1].Add(1) }

// HandshakeTime counts the time that a handshake took which ended with a connection.
func (c *Collector) HandshakeTime(side smc.Role, d time.Duration) { c.hsTimes[side&1].add(d) }

// Failovers counts n connections that were moved from a link that failed to another one.
func (c *Collector) Failovers(n uint64) { c.moves.Add(n) }

// Panic counts a Go panic that did not end the process.
func (c *Collector) Panic() { c.panics.Add(1) }

// Call counts a socket call.
func (c *Collector) Call(k SocketCall) {
	if k < socketCalls {
		c.calls[k].Add(1)
	}
}

// BufferSize counts the size in bytes of the buffer that a connection got.
func (c *Collector) BufferSize(dir Direction, size int) {
	c.dir[dir&1].bufSizes[Bucket(size)].Add(1)
}

// Buffer counts an event of the buffers of one direction.
func (c *Collector) Buffer(dir Direction, e BufferEvent) {
	if e < bufferEvents {
		c.dir[dir&1].events[e].Add(1)
	}
}

// Fallback counts a connection that became plain TCP. The reason is a CLC decline
// code. A side has counters for the first [MaxReasons] different reasons; after
// that, a new reason counts only in the total.
func (c *Collector) Fallback(side smc.Role, reason uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fallback(side&1, reason)
}

// PeerDeclined counts a connection that became plain TCP because the peer has declined:
// as a Fallback with the reason [smc.DiagPeerDeclined], and by the code in the DECLINE of
// the peer. All codes that package smc does not know have one counter, that of 0.
func (c *Collector) PeerDeclined(side smc.Role, code uint32) {
	if smc.Diagnosis(code).Text() == "" {
		code = 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fallback(side&1, uint32(smc.DiagPeerDeclined))
	if c.peers == nil {
		c.peers = make(map[Fallback]uint64)
	}
	c.peers[Fallback{Side: side & 1, Reason: code}]++
}

// fallback counts a fallback. The caller holds mu.
func (c *Collector) fallback(side smc.Role, reason uint32) {
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

// Fallbacks returns the fallbacks so far. The reasons of the server side come
// first; the reasons of one side are in ascending order.
func (c *Collector) Fallbacks() Fallbacks {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Fallbacks{
		ClientTotal: c.totals[smc.Client], ServerTotal: c.totals[smc.Server],
		Reasons: sorted(c.fallbacks), PeerReasons: sorted(c.peers),
	}
}

// sorted returns the counters in the order of [Collector.Fallbacks].
func sorted(counts map[Fallback]uint64) []Fallback {
	var list []Fallback
	for k, n := range counts {
		k.Count = n
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b Fallback) int {
		return cmp.Or(cmp.Compare(b.Side, a.Side), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}

// Snapshot returns the counters so far, all of them in the SMC-R part. The two
// usages and Engine are zero: the owners of the memory and of the loops know them. A counter that changes during
// the call may be read before or after the change, independent of the others.
func (c *Collector) Snapshot() Stats {
	tx, rx := &c.dir[TX], &c.dir[RX]
	return Stats{
		SMCR: Tech{
			TXBufSizes: load(&tx.bufSizes), RXBufSizes: load(&rx.bufSizes),
			TXSizes: load(&tx.sizes), RXSizes: load(&rx.sizes),
			TXBufs: tx.buffers(), RXBufs: rx.buffers(),
			ClientV1: c.conns[smc.Client][0].Load(), ClientV2: c.conns[smc.Client][1].Load(),
			ServerV1: c.conns[smc.Server][0].Load(), ServerV2: c.conns[smc.Server][1].Load(),
			Cork: c.calls[Cork].Load(), NoDelay: c.calls[NoDelay].Load(), Urgent: c.calls[Urgent].Load(),
			RXBytes: rx.bytes.Load(), TXBytes: tx.bytes.Load(),
			RXCalls: rx.calls.Load(), TXCalls: tx.calls.Load(),
			NotCounted: CountSendpage | CountSplice | CountTXSmall | CountTXSmallPeer | CountRXSmall | CountRXSmallPeer | CountRXFullPeer,
		},
		ClientHandshakeErrors: c.hsErrors[smc.Client].Load(),
		ServerHandshakeErrors: c.hsErrors[smc.Server].Load(),
		Panics:                c.panics.Load(),
		Failovers:             c.moves.Load(),
		ClientHandshakeTimes:  c.hsTimes[smc.Client].load(),
		ServerHandshakeTimes:  c.hsTimes[smc.Server].load(),
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
		FullPeer: d.events[FullPeer].Load(),
		Full:     d.events[Full].Load(),
		Reuse:    d.events[Reuse].Load(),
		Alloc:    d.events[Alloc].Load(),
	}
}
