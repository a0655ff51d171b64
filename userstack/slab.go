// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"time"

	"smcr/rdmaverbs"
	"smcr/stats"
	"smcr/userstack/conn"
)

// sendSlab is the send memory of a link group. Its connections take chunks of it
// when they have something to send, and give them back when that is acknowledged.
// The chunk that came back last is used first: its pages are there and in the cache.
//
// It belongs to the link group because that is what has a protection domain, and
// what has a lock which is held whenever a chunk is taken. No peer can reach it: it
// is registered for reading by the local device only. The connections of several
// users may share it: a program gets none of it but by Reserve, which gives it to the
// process that has the stack, and the bytes of a chunk that are sent are those that
// were written to it since it was taken.
//
//	memory                            | goes back to the system
//	----------------------------------+------------------------------------------
//	chunk that a connection has       | no
//	free chunk                        | its pages, when unused for trimAfter
//	region of which no chunk is taken | all of it, when unused for trimAfter
type sendSlab struct {
	lists   []chunkList
	hot     int       // free chunks whose pages were not given back
	used    int       // bytes of the chunks that connections have
	trimmed time.Time // when memory was given back
}

// chunkList has the free chunks of one size.
type chunkList struct {
	size int
	free []*slabChunk // the last one is used first
	idle int          // the first ones: not used since trimmed
}

// slabChunk is a part of a region.
type slabChunk struct {
	conn.Chunk
	r    *region
	off  int
	cold bool // its pages were given back, or cannot be
}

func (s *sendSlab) list(size int) *chunkList {
	for i := range s.lists {
		if s.lists[i].size == size {
			return &s.lists[i]
		}
	}
	s.lists = append(s.lists, chunkList{size: size})
	return &s.lists[len(s.lists)-1]
}

// NewChunk implements linkgroup.Env.
func (e *groupEnv) NewChunk(size int) (*conn.Chunk, error) {
	l := e.slab.list(size)
	if len(l.free) == 0 {
		if err := e.growSlab(l); err != nil {
			return nil, err
		}
	}
	n := len(l.free) - 1
	k := l.free[n]
	l.free = l.free[:n]
	l.idle = min(l.idle, n)
	if !k.cold {
		e.slab.hot--
	}
	k.cold = false
	k.r.taken++
	e.slab.used += size
	return &k.Chunk, nil
}

// growSlab maps a region as large as a send buffer.
func (e *groupEnv) growSlab(l *chunkList) error {
	n := max(1, e.s.cfg.SendBuf/l.size)
	mem, err := e.s.mem.Get(n * l.size)
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
	e.sendBytes += uint64(len(mem))
	e.regions[r] = struct{}{}
	e.s.stats.Buffer(stats.TX, stats.Alloc)
	return nil
}

// FreeChunk implements linkgroup.Env.
func (e *groupEnv) FreeChunk(c *conn.Chunk) {
	if e.broken {
		return // freed with all others
	}
	k := c.Data.(*slabChunk)
	k.r.taken--
	if e.dead {
		if k.r.taken == 0 {
			e.dropRegion(k.r, time.Now())
		}
		return
	}
	e.slab.used -= len(k.Mem)
	l := e.slab.list(len(k.Mem))
	l.free = append(l.free, k)
	e.slab.hot++
	e.s.trim.poke()
}

// dropRegion frees a region of which no chunk is taken, and which nobody has used
// since then, once the actions queued before are carried out.
func (e *groupEnv) dropRegion(r *region, since time.Time) {
	e.sendBytes -= uint64(len(r.mem))
	delete(e.regions, r)
	r.freed = since
	e.later = append(e.later, func() { r.free(e.s.mem) })
}

// endSlab frees what no connection of a dead group has. The rest follows when it
// comes back.
func (e *groupEnv) endSlab() {
	e.slab = sendSlab{}
	for r := range e.regions {
		if r.chunks != nil && r.taken == 0 {
			e.dropRegion(r, time.Now())
		}
	}
}

// maxTrim is how many chunks one call of trim gives back at most. Each costs some
// microseconds, and the lock of the group is held meanwhile.
const maxTrim = 16

// trim gives back what was not used since it was called last, if that is trimAfter
// ago, as far as the budget goes: again tells that there is more.
func (s *sendSlab) trim(e *groupEnv, now time.Time) (again bool) {
	if s.hot == 0 || now.Sub(s.trimmed) < trimAfter {
		return false
	}
	budget := maxTrim
	for i := range s.lists {
		l := &s.lists[i]
		s.dropIdle(e, l)
		for _, k := range l.free[:l.idle] {
			if k.cold {
				continue
			}
			if budget == 0 {
				return true
			}
			k.cold = true
			s.hot--
			if k.r.paged() {
				_ = rdmaverbs.DiscardBuffer(k.Mem) // else it stays
				budget--
			}
		}
	}
	for i := range s.lists {
		s.lists[i].idle = len(s.lists[i].free)
	}
	s.trimmed = now
	return false
}

// dropIdle frees the regions of which all chunks are idle.
func (s *sendSlab) dropIdle(e *groupEnv, l *chunkList) {
	for _, k := range l.free[:l.idle] {
		k.r.idle = 0
	}
	for _, k := range l.free[:l.idle] {
		if k.r.idle++; k.r.idle == len(k.r.chunks) {
			e.dropRegion(k.r, s.trimmed.Add(-1))
		}
	}
	rest, idle := l.free[:0], 0
	for i, k := range l.free {
		switch {
		case i >= l.idle:
		case k.r.idle < len(k.r.chunks):
			idle++
		default:
			if !k.cold {
				s.hot--
			}
			continue
		}
		rest = append(rest, k)
	}
	clear(l.free[len(rest):])
	l.free, l.idle = rest, idle
}
