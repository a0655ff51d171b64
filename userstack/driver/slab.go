// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"time"

	"smcr/rdmaverbs"
	"smcr/userstack/conn"
)

// sendSlab is the send memory of a link group. Its connections take chunks of it when they
// have something to send, and return them when the peer has acknowledged the data. The chunk
// that was returned last is used first, because its pages are in the cache.
//
// It belongs to the link group, because a link group has a protection domain and a lock which
// is held whenever a chunk is taken. No peer can reach it: it is registered only for reading
// by the local device. Connections of several users may share it. A program gets a part of it
// only by Reserve, which is only for the process of the stack. The bytes of a chunk that are
// sent are those that were written to it since it was taken.
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
	trimmed time.Time // when memory was last given back
}

// chunkList has the free chunks of one size.
type chunkList struct {
	size int
	free []*slabChunk // the last one is used first
	idle int          // the first ones: not used since trimmed
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

// take takes a free chunk from l, which is not empty.
func (s *sendSlab) take(l *chunkList) *conn.Chunk {
	n := len(l.free) - 1
	k := l.free[n]
	l.free = l.free[:n]
	l.idle = min(l.idle, n)
	if !k.cold {
		s.hot--
	}
	k.cold = false
	k.r.taken++
	s.used += l.size
	return &k.Chunk
}

// putBack accepts a chunk from a connection.
func (s *sendSlab) putBack(k *slabChunk) {
	k.r.taken--
	s.used -= len(k.Mem)
	l := s.list(len(k.Mem))
	l.free = append(l.free, k)
	s.hot++
}

// maxTrim is the highest number of chunks that one call of trim gives back. Each takes some
// microseconds, and the lock of the group is held.
const maxTrim = 16

// trim gives back memory that was not used since the last call, if that was trimAfter ago.
// budget limits the work: again means that there is more. It gives back regions with drop.
func (s *sendSlab) trim(now time.Time, drop func(r *region, since time.Time)) (again bool) {
	if s.hot == 0 || now.Sub(s.trimmed) < trimAfter {
		return false
	}
	budget := maxTrim
	for i := range s.lists {
		l := &s.lists[i]
		s.dropIdle(l, drop)
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
				_ = rdmaverbs.DiscardBuffer(k.Mem) // without it, the pages stay
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

// dropIdle gives back, with drop, the regions whose chunks are all idle.
func (s *sendSlab) dropIdle(l *chunkList, drop func(r *region, since time.Time)) {
	for _, k := range l.free[:l.idle] {
		k.r.idle = 0
	}
	for _, k := range l.free[:l.idle] {
		if k.r.idle++; k.r.idle == len(k.r.chunks) {
			drop(k.r, s.trimmed.Add(-1))
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
