// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math/bits"

	"smcr/smc"
)

// Buckets is the number of size classes of a [Histogram]: 8, 16, 32, 64, 128,
// 256, 512 and 1024 KiB, and everything larger.
const Buckets = 9

// A Histogram counts sizes by class. Class i holds sizes of up to
// [BucketLimit](i) bytes that do not fit the class before.
type Histogram [Buckets]uint64

// Bucket returns the class of a size in bytes. Sizes of zero and less belong to
// the first class.
func Bucket(size int) int {
	if size <= 0 {
		return 0
	}
	return min(bits.Len64(uint64(size-1)>>13), Buckets-1)
}

// BucketLimit returns the largest size in bytes of class i, or 0 for the last
// class, which has no limit.
func BucketLimit(i int) int {
	if i < 0 || i >= Buckets-1 {
		return 0
	}
	return 8192 << i
}

// Total returns the sum over all classes.
func (h Histogram) Total() uint64 {
	var n uint64
	for _, v := range h {
		n += v
	}
	return n
}

// A Buffers holds the events of one kind of buffer: send buffers (TX) or RMBs
// (RX).
type Buffers struct {
	SmallPeer uint64 // sends larger than the peer's RMBE
	Small     uint64 // sends larger than the own buffer
	FullPeer  uint64 // times the peer's RMBE was found full
	Full      uint64 // times the own buffer was found full
	Reuse     uint64 // buffers taken from the pool of the link group
	Alloc     uint64 // buffers newly allocated
	Downgrade uint64 // allocations of a smaller size than asked for
}

// A Tech holds the counters of one technology, SMC-D or SMC-R. All of them only
// grow, except the two usages, which are gauges.
type Tech struct {
	TXBufSizes Histogram // send buffer size in bytes, once a connection
	RXBufSizes Histogram // RMBE size in bytes, once a connection
	TXSizes    Histogram // bytes asked for by each send call
	RXSizes    Histogram // bytes returned by each receive call

	TXBufs Buffers // send buffers
	RXBufs Buffers // RMBs

	ClientV1, ClientV2 uint64 // connections made as client, by SMC version
	ServerV1, ServerV2 uint64 // connections accepted as server, by SMC version

	Sendpage uint64 // sendpage calls (no longer counted by recent kernels)
	Splice   uint64 // splice calls
	Cork     uint64 // TCP_CORK set
	NoDelay  uint64 // TCP_NODELAY set
	Urgent   uint64 // urgent data sent or received

	RXBytes uint64 // bytes delivered to programs
	TXBytes uint64 // bytes accepted from programs
	RXCalls uint64 // receive calls, failed ones included
	TXCalls uint64 // send calls, failed ones included

	RXUsage uint64 // gauge: bytes of RMB memory now allocated
	TXUsage uint64 // gauge: bytes of send buffer memory now allocated
}

// Connections returns the number of connections handled so far.
func (t *Tech) Connections() uint64 {
	return t.ClientV1 + t.ClientV2 + t.ServerV1 + t.ServerV2
}

// A Stats is a snapshot of all counters of a stack in one network namespace.
type Stats struct {
	SMCD Tech
	SMCR Tech

	ClientHandshakeErrors uint64 // handshakes that failed with an error, as client
	ServerHandshakeErrors uint64 // handshakes that failed with an error, as server

	// ClientLocal and ServerLocal are connections between programs of one host, as
	// client and as server: each program has an end of a socketpair. A kernel has
	// none.
	ClientLocal uint64
	ServerLocal uint64

	// Panics are faults of the stack's own program, each of which ended one
	// connection, session or link group. A kernel does not count such.
	Panics uint64
}

// A Fallback counts how often connections of one side became plain TCP for one
// reason.
type Fallback struct {
	Side   smc.Role
	Reason uint32 // a CLC decline code (RFC 7609, appendix A.3 and the Linux codes)
	Count  uint64 // the kernel reports 16 bits and wraps
}

// Fallbacks holds the connections that became plain TCP: their numbers a side
// and the reasons seen. The totals can exceed the sum over the reasons, because
// a stack keeps [MaxReasons] reasons a side.
type Fallbacks struct {
	ClientTotal uint64
	ServerTotal uint64
	Reasons     []Fallback
}

// MaxReasons is how many different fallback reasons are kept for each side, as
// in the kernel.
const MaxReasons = 36
