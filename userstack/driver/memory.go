// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"time"

	"smcr/rdmaverbs"
	"smcr/stats"
	"smcr/userstack/conn"
	"smcr/userstack/devices"
	"smcr/userstack/internal/mempool"
	"smcr/userstack/linkgroup"
)

// groupMemory is the part of a link group with its memory, and with the protection domains in
// which the memory is registered. The group's lock guards it.
type groupMemory struct {
	pool    *mempool.Pool    // of the stack
	stats   *stats.Collector // of the stack
	sendBuf int              // bytes of send memory that are mapped at once
	exec    *executor        // carries out what must not happen under the lock

	shard   int // the number of the group's engine
	pds     map[*devices.Device]rdmaverbs.PD
	slab    sendSlab
	regions map[*region]struct{}
	copying int // writes that copy into send memory
	holds   int // readers and writers in a buffer

	sendBytes, rmbBytes uint64 // memory allocated
}

// pd returns the group's protection domain on dev. Each group has its own on each device, so
// no queue pair of another peer reaches the memory of this group (RFC 7609, section 5).
func (m *groupMemory) pd(dev *devices.Device) (rdmaverbs.PD, error) {
	if pd := m.pds[dev]; pd != nil {
		return pd, nil
	}
	pd, err := dev.RDMA().AllocPD()
	if err != nil {
		return nil, err
	}
	if p, ok := pd.(rdmaverbs.Sharded); ok {
		p.SetShard(m.shard)
	}
	m.pds[dev] = pd
	return pd, nil
}

// closeDomains closes the protection domains. A domain that is still in use by the buffer of
// a connection stays until the next call.
func (m *groupMemory) closeDomains() {
	for dev, pd := range m.pds {
		if err := pd.Close(); err == nil || !errors.Is(err, rdmaverbs.ErrBusy) {
			delete(m.pds, dev)
		}
	}
}

// newRMB allocates an RMB of size bytes.
func (m *groupMemory) newRMB(size int) (*region, error) {
	b, err := m.pool.Get(size)
	if err != nil {
		return nil, err
	}
	m.rmbBytes += uint64(size)
	r := &region{mem: b, lnk: map[*linkgroup.Link]rdmaverbs.MR{}}
	m.regions[r] = struct{}{}
	return r, nil
}

// freeRMB frees an RMB after the actions that are queued.
func (m *groupMemory) freeRMB(r *region) {
	m.rmbBytes -= uint64(len(r.mem))
	delete(m.regions, r)
	m.exec.after(func() { r.free(m.pool) })
}

// takeChunk returns a free chunk of size bytes. It maps memory if there is none.
func (m *groupMemory) takeChunk(size int) (*conn.Chunk, error) {
	l := m.slab.list(size)
	if len(l.free) == 0 {
		if err := m.grow(l); err != nil {
			return nil, err
		}
	}
	return m.slab.take(l), nil
}

// grow maps a region of the size of a send buffer.
func (m *groupMemory) grow(l *chunkList) error {
	n := max(1, m.sendBuf/l.size)
	mem, err := m.pool.Get(n * l.size)
	if err != nil {
		return err
	}
	r := &region{mem: mem, chunks: make([]slabChunk, n)}
	for i := range r.chunks {
		k := &r.chunks[n-1-i] // the first one is used first
		*k = slabChunk{r: r, off: (n - 1 - i) * l.size, cold: true}
		k.Mem, k.Data = mem[k.off:][:l.size:l.size], k
		l.free = append(l.free, k)
	}
	m.sendBytes += uint64(len(mem))
	m.regions[r] = struct{}{}
	m.stats.Buffer(stats.TX, stats.Alloc)
	return nil
}

// returnChunk takes a chunk of a connection back in a dead group. A region is freed when all
// its chunks are back.
func (m *groupMemory) returnChunk(k *slabChunk) {
	if k.r.taken--; k.r.taken == 0 {
		m.dropRegion(k.r, time.Now())
	}
}

// dropRegion frees a region after the actions that are queued. No chunk of the region is in
// use, and none was used since the actions were queued.
func (m *groupMemory) dropRegion(r *region, since time.Time) {
	m.sendBytes -= uint64(len(r.mem))
	delete(m.regions, r)
	r.freed = since
	m.exec.after(func() { r.free(m.pool) })
}

// endSlab frees the send memory that no connection of a dead group uses. The rest is freed
// when it comes back.
func (m *groupMemory) endSlab() {
	m.slab = sendSlab{}
	for r := range m.regions {
		if r.chunks != nil && r.taken == 0 {
			m.dropRegion(r, time.Now())
		}
	}
}

// inUse reports whether a reader or writer of the program uses a buffer.
func (m *groupMemory) inUse() bool { return m.holds > 0 || m.copying > 0 }

// takeRegions returns all regions and empties the list.
func (m *groupMemory) takeRegions() map[*region]struct{} {
	regions := m.regions
	m.regions = nil
	m.sendBytes, m.rmbBytes = 0, 0
	return regions
}
