// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"time"

	"smcr/rdmaverbs"
	"smcr/userstack/conn"
	"smcr/userstack/devices"
	"smcr/userstack/internal/mempool"
	"smcr/userstack/linkgroup"
	"smcr/userstack/wire"
)

// region is memory of a group with its registrations. Send memory has one registration for
// each device. An RMB has one for each link.
type region struct {
	mem   []byte
	mu    sync.Mutex
	dev   []devMR                          // send memory
	lnk   map[*linkgroup.Link]rdmaverbs.MR // RMBs
	freed time.Time                        // since when nobody uses it, if that is known

	// Send memory, guarded by group.mu.
	chunks []slabChunk
	taken  int // chunks that connections use
	idle   int // used by dropIdle
}

// slabChunk is a part of a region.
type slabChunk struct {
	conn.Chunk
	r    *region
	off  int
	cold bool // its pages were given back, or cannot be
}

// devMR is the registration of send memory with a device.
type devMR struct {
	dev *devices.Device
	mr  rdmaverbs.MR
}

// paged reports whether the pages of send memory may be given back to the system.
func (r *region) paged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.dev {
		if !m.dev.OnDemandPaging() {
			return false
		}
	}
	return true
}

// registration returns the registration of send memory with dev, or nil without one.
func (r *region) registration(dev *devices.Device) rdmaverbs.MR {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.dev {
		if m.dev == dev {
			return m.mr
		}
	}
	return nil
}

// register registers send memory with dev, in the protection domain pd. Call it once for each
// device.
func (r *region) register(dev *devices.Device, pd rdmaverbs.PD) (rdmaverbs.MR, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mr, err := pd.RegisterMR(r.mem, 0)
	if err != nil {
		return nil, err
	}
	r.dev = append(r.dev, devMR{dev, mr})
	return mr, nil
}

// free ends all registrations and frees the memory.
func (r *region) free(p *mempool.Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.dev {
		_ = m.mr.Close()
	}
	for _, mr := range r.lnk {
		_ = mr.Close()
	}
	r.dev, r.lnk = nil, nil
	if r.mem != nil {
		since := r.freed
		if since.IsZero() {
			since = time.Now()
		}
		p.Put(r.mem, since)
		r.mem = nil
	}
}

// Sizes of the queues of a link. The receive queue is larger than the number of messages that
// such a peer has outstanding, so it does not become empty.
const (
	sendDepth = 192
	recvDepth = 384
	recvSlot  = 64 // bytes a receive: a 44-byte message, aligned
)

// longBuf is memory of one link for LLC messages of version 2 that are longer than others:
// the rest of each slot of the receive queue, and one message to send. Such messages are
// rare. The memory is mapped, and only a message uses pages of it.
type longBuf struct {
	mem []byte
	mr  rdmaverbs.MR
}

const (
	longSlot = wire.MaxLLCLenV2 - recvSlot
	// maxInline is how many bytes a send request can contain inline.
	maxInline = 256
)

func newLongBuf(pd rdmaverbs.PD) (*longBuf, error) {
	mem, err := rdmaverbs.AllocBuffer(recvDepth*longSlot + wire.MaxLLCLenV2)
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegisterMR(mem, rdmaverbs.AccessLocalWrite)
	if err != nil {
		_ = rdmaverbs.FreeBuffer(mem)
		return nil, err
	}
	return &longBuf{mem, mr}, nil
}

func (b *longBuf) close() {
	_ = b.mr.Close()
	_ = rdmaverbs.FreeBuffer(b.mem)
}

// recv is the rest of a slot.
func (b *longBuf) recv(slot int) rdmaverbs.SGE {
	return rdmaverbs.SGE{MR: b.mr, Off: slot * longSlot, Len: longSlot}
}

func (b *longBuf) message(slot, n int) []byte { return b.mem[slot*longSlot:][:min(n, longSlot)] }

// send stores a message that will be sent. Only ADD LINK can be so long. The next one follows
// only after the answer to this one.
func (b *longBuf) send(msg []byte) rdmaverbs.SGE {
	off := recvDepth * longSlot
	return rdmaverbs.SGE{MR: b.mr, Off: off, Len: copy(b.mem[off:], msg)}
}
