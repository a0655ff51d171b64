// SPDX-License-Identifier: Apache-2.0

package rdmaverbs

import (
	"sync/atomic"

	"smcr/smc"
)

// A PacketTrace shows the packets of queue pairs to somebody while it is open. A closed one costs a
// load for each batch of packets that is sent, and for each packet that is received. The zero
// value is closed. It is safe for concurrent use.
type PacketTrace struct {
	see atomic.Pointer[func(*TracedPacket)]
}

// Open has see called for each packet that a queue pair sends or accepts, from then on. see
// must not call methods of the queue pair, wait, or keep the packet or its bytes.
func (t *PacketTrace) Open(see func(*TracedPacket)) { t.see.Store(&see) }

// Close ends this. Calls of see that have begun may last longer.
func (t *PacketTrace) Close() { t.see.Store(nil) }

// Load returns the function that is to be called, or nil if t is nil or closed.
func (t *PacketTrace) Load() func(*TracedPacket) {
	if t == nil {
		return nil
	}
	if see := t.see.Load(); see != nil {
		return *see
	}
	return nil
}

// A TracedPacket is a packet that a queue pair has sent or accepted.
type TracedPacket struct {
	Tag                uint64 // of the queue pair: QPInit.Tag
	Out                bool   // sent, not received
	Type               GIDType
	Local, Remote      smc.GID
	LocalQPN, PeerQPN  uint32
	Header             []byte    // BTH and extended headers
	Message            [2][]byte // the payload of a SEND, in two parts; empty otherwise
	PayloadLen, PadLen int       // of the payload without its pad, and of the pad, in bytes
}
