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
	// SmallPeer is the number of send calls with more bytes than the RMBE of the
	// peer holds. It is for send buffers only.
	SmallPeer uint64
	// Small is the number of send calls with more bytes than the send buffer holds,
	// or of receive calls with room for fewer bytes than can be read.
	Small uint64
	// FullPeer is how often data had to wait because the RMBE of the peer was full.
	// It is for send buffers only.
	FullPeer uint64
	// Full is how often a sender had to wait because the send buffer was full, or
	// how often a receive call found the RMBE full.
	Full uint64
	// Reuse is the number of buffers that came from the memory of the link group.
	Reuse uint64
	// Alloc is the number of buffers that were newly allocated.
	Alloc uint64
	// Downgrade is the number of buffers that are smaller than what was asked for,
	// because there was not enough memory.
	Downgrade uint64
}

// Counters is a set of counters that not every stack has, for [Tech.NotCounted].
// Kernels differ, and a stack in user space cannot see every call of a program.
type Counters uint16

// The counters that a stack may not have.
const (
	CountSendpage    Counters = 1 << iota // Tech.Sendpage
	CountSplice                           // Tech.Splice
	CountTXSmall                          // Tech.TXBufs.Small
	CountTXSmallPeer                      // Tech.TXBufs.SmallPeer
	CountRXSmall                          // Tech.RXBufs.Small
	CountRXSmallPeer                      // Tech.RXBufs.SmallPeer
	CountRXFullPeer                       // Tech.RXBufs.FullPeer
	CountTXUsage                          // Tech.TXUsage
	CountRXUsage                          // Tech.RXUsage

	// CountOptional is all of them.
	CountOptional Counters = 1<<iota - 1
)

// A Tech holds the counters of one technology, SMC-D or SMC-R. All of them only
// grow, except the two usages, which are gauges. A call that failed counts in
// RXCalls and TXCalls and nowhere else.
type Tech struct {
	TXBufSizes Histogram // size of the send buffer in bytes, once for each connection
	RXBufSizes Histogram // size of the RMBE in bytes, once for each connection
	TXSizes    Histogram // bytes that each send call was given
	RXSizes    Histogram // bytes that each receive call returned

	TXBufs Buffers // send buffers
	RXBufs Buffers // RMBs

	ClientV1, ClientV2 uint64 // connections made as client, by SMC version
	ServerV1, ServerV2 uint64 // connections accepted as server, by SMC version

	Sendpage uint64 // sendpage calls; kernels do not count them any more
	Splice   uint64 // splice calls that read from a connection
	Cork     uint64 // calls that cleared TCP_CORK on a connection
	NoDelay  uint64 // calls that set TCP_NODELAY on a connection
	Urgent   uint64 // calls that sent or received urgent data

	RXBytes uint64 // bytes that programs received
	TXBytes uint64 // bytes that programs sent
	RXCalls uint64 // receive calls
	TXCalls uint64 // send calls

	RXUsage uint64 // gauge: bytes of RMB memory that connections use now
	TXUsage uint64 // gauge: bytes of send buffer memory that connections use now

	// NotCounted is the set of counters that the stack does not have. Their fields
	// are zero.
	NotCounted Counters
}

// Counts reports whether the stack has all the counters of a set.
func (t *Tech) Counts(c Counters) bool { return t.NotCounted&c == 0 }

// Connections returns the number of connections handled so far.
func (t *Tech) Connections() uint64 {
	return t.ClientV1 + t.ClientV2 + t.ServerV1 + t.ServerV2
}

// Stats is a snapshot of all counters of a stack in one network namespace.
type Stats struct {
	SMCD Tech // a stack in user space has no SMC-D: all of it is zero
	SMCR Tech

	ClientHandshakeErrors uint64 // handshakes that failed with an error, as client
	ServerHandshakeErrors uint64 // handshakes that failed with an error, as server

	// Panics is the number of Go panics in the stack. Each ended one connection,
	// session or link group. A kernel does not count them.
	Panics uint64

	// Failovers is the number of connections that were moved from a link that failed to
	// another link of their link group (RFC 7609, section 4.6.1). A connection counts each
	// time. A kernel does not count them.
	Failovers uint64

	// ClientHandshakeTimes is how long handshakes took that ended with a connection, on the
	// side of the client, from the established TCP connection on. A kernel does not measure
	// this.
	ClientHandshakeTimes Times
	// ServerHandshakeTimes is ClientHandshakeTimes for the side of the server.
	ServerHandshakeTimes Times

	// Engine is what the event loops of the stack have done. A kernel has none.
	Engine Engine
}

// A Fallback is how often connections of one side became plain TCP for one reason.
type Fallback struct {
	Side   smc.Role // the side of this host
	Reason uint32   // a CLC decline code (RFC 7609, appendix A.3 and the Linux codes)
	Count  uint64   // the kernel reports 16 bits and wraps
}

// Fallbacks is how many connections became plain TCP, in all and by reason. The
// totals can be larger than the sum over the reasons, because a stack keeps
// [MaxReasons] reasons for each side.
type Fallbacks struct {
	ClientTotal uint64     // connections that this host made
	ServerTotal uint64     // connections that this host accepted
	Reasons     []Fallback // see [Collector.Fallbacks] for the order

	// PeerReasons splits the fallbacks whose reason is [smc.DiagPeerDeclined], because the
	// peer has declined: Reason is the code in its DECLINE. Peers choose these codes, so 0
	// stands for all that package smc does not know. A kernel does not count them.
	PeerReasons []Fallback
}

// MaxReasons is how many different fallback reasons are kept for each side, as
// in the kernel.
const MaxReasons = 36
