// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"time"

	"smcr/rdmaverbs"
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

func (s *sendSlab) list(size int) *chunkList {
	for i := range s.lists {
		if s.lists[i].size == size {
			return &s.lists[i]
		}
	}
	s.lists = append(s.lists, chunkList{size: size})
	return &s.lists[len(s.lists)-1]
}

// take takes a free chunk from l, which has one.
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

// putBack takes a chunk back from a connection.
func (s *sendSlab) putBack(k *slabChunk) {
	k.r.taken--
	s.used -= len(k.Mem)
	l := s.list(len(k.Mem))
	l.free = append(l.free, k)
	s.hot++
}

// maxTrim is how many chunks one call of trim gives back at most. Each costs some
// microseconds, and the lock of the group is held meanwhile.
const maxTrim = 16

// trim gives back what was not used since it was called last, if that is trimAfter
// ago, as far as the budget goes: again tells that there is more. It gives regions back
// by drop.
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

// dropIdle gives back the regions of which all chunks are idle, by drop.
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
