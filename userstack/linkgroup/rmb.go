// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"slices"
	"time"

	"smcr/smc"
)

const (
	// maxWithdrawn bounds the RMBEs of an owner that are withdrawn because the peer may still write to them.
	maxWithdrawn = 32
	// maxUnused bounds the RMBs of an owner that have no element in use and no
	// element that may be used yet. So handshakes that fail take no more memory.
	maxUnused = maxRMBs / 4
	// maxSharedRMB is the size in bytes up to which an RMB is shared.
	maxSharedRMB = 4 << 20
)

// rmbState is what the peer knows of an RMB.
type rmbState uint8

const (
	rmbNew      rmbState = iota // nothing yet
	rmbKnown                    // its RTokens on all links
	rmbDeleting                 // DELETE RKEY is queued or under way
)

// rmb is a local RMB, cut into elements of one size.
type rmb struct {
	mem    []byte
	handle any
	code   smc.SizeCode
	size   int // of an element
	owner  uint32
	elems  []element
	inUse  int
	state  rmbState
	at     [maxSlots]slotToken
	// waiting are the connections that wait until the peer knows the RMB.
	waiting []*Conn
	idleAt  time.Time // when it is deleted, zero while in use
}

type element struct {
	used bool
	// dirty: it has been used before. A new element is zero already, so that its
	// memory is not touched before somebody writes to it.
	dirty bool
	// trimmed: its memory was given back since it was used. The peer may have
	// written to it after that.
	trimmed bool
	// withdrawn: the peer may still write to it, for an unknown time.
	withdrawn bool
	// notBefore is when it may be used again.
	notBefore time.Time
	freed     time.Time // when its last connection left it
}

// element returns the memory of an element.
func (r *rmb) element(i int) []byte { return r.mem[i*r.size : (i+1)*r.size : (i+1)*r.size] }

func (r *rmb) hasWithdrawn() bool {
	for i := range r.elems {
		if r.elems[i].withdrawn {
			return true
		}
	}
	return false
}

// rmbTable has the local RMBs of a group.
//
//	element  | event                                  | then
//	---------+----------------------------------------+---------------------------------
//	free     | a connection begins                    | used, zeroed if used before
//	used     | the connection ended in order          | free
//	used     | the handshake failed                   | free, used again after AbortWait
//	used     | the peer did not answer an abort       | withdrawn for good
//	free     | unused for a while                     | its memory goes back to the system
type rmbTable struct {
	env      Env
	links    *linkTable
	perRMB   int           // elements of an RMB of the smaller size classes
	idleTime time.Duration // how long an RMB without connections is kept
	closed   bool          // the group has ended: nothing is used again
	list     []*rmb
	// withdrawn counts, by owner, the elements that the peer may still write to,
	// withdrawnAll all of them. They are not used again.
	withdrawn    map[uint32]int
	withdrawnAll int
	idle         int // free elements whose memory may go back to the system, or more
}

// exhausted reports whether so many elements are withdrawn that another group must
// replace this one.
func (t *rmbTable) exhausted() bool { return t.withdrawnAll > 8*maxWithdrawn }

// allocate allocates an RMB and registers it on the links that exist.
func (t *rmbTable) allocate(owner uint32, code smc.SizeCode) (*rmb, error) {
	if len(t.list) >= maxRMBs {
		return nil, fmt.Errorf("%w: %d RMBs", ErrFull, maxRMBs)
	}
	size := smc.SizeCode(code).Bytes()
	n := max(1, min(t.perRMB, maxSharedRMB/size))
	mem, handle, err := t.env.NewRMB(n * size)
	if err != nil {
		return nil, fmt.Errorf("linkgroup: allocate an RMB of %d bytes: %w", n*size, err)
	}
	r := &rmb{mem: mem, handle: handle, owner: owner, code: code, size: size, elems: make([]element, n)}
	for _, l := range t.links.list {
		if !l.qpOpen || l.state == smc.LinkInactive {
			continue
		}
		if err := t.register(r, l); err != nil {
			t.env.FreeRMB(handle)
			return nil, err
		}
	}
	t.list = append(t.list, r)
	return r, nil
}

func (t *rmbTable) register(r *rmb, l *Link) error {
	if r.at[l.slot].ok {
		return nil
	}
	rkey, addr, err := t.env.RegisterRMB(r.handle, l)
	if err != nil {
		return fmt.Errorf("linkgroup: register an RMB on %s: %w", l.dev.Name, err)
	}
	r.at[l.slot] = slotToken{ok: true, RToken: smc.RToken{RKey: rkey, Addr: addr}}
	return nil
}

func (t *rmbTable) deregister(l *Link) {
	for _, r := range t.list {
		if r.at[l.slot].ok {
			t.env.DeregisterRMB(r.handle, l)
			r.at[l.slot] = slotToken{}
		}
	}
}

// take finds a free element of the size class in an RMB of the owner. It makes a new RMB
// if there is none. RMBs that the peer knows are preferred, so that most connections need
// no CONFIRM RKEY.
func (t *rmbTable) take(now time.Time, owner uint32, code smc.SizeCode) (*rmb, int, error) {
	for _, want := range []rmbState{rmbKnown, rmbNew} {
		for _, r := range t.list {
			if r.owner != owner || r.code != code || r.state != want {
				continue
			}
			for i := range r.elems {
				if e := &r.elems[i]; !e.used && !e.withdrawn && !now.Before(e.notBefore) {
					t.use(r, i)
					return r, i, nil
				}
			}
		}
	}
	if t.unused(owner) >= maxUnused {
		return nil, 0, fmt.Errorf("%w: %d RMBs without a connection that wait to be used again", ErrFull, maxUnused)
	}
	r, err := t.allocate(owner, code)
	if err != nil {
		return nil, 0, err
	}
	t.use(r, 0)
	return r, 0, nil
}

// unused counts the RMBs of an owner that no connection uses.
func (t *rmbTable) unused(owner uint32) (n int) {
	for _, r := range t.list {
		if r.owner == owner && r.inUse == 0 {
			n++
		}
	}
	return n
}

func (t *rmbTable) use(r *rmb, i int) {
	r.elems[i].used = true
	r.inUse++
	r.idleAt = time.Time{}
	// This connection must not see any bytes of an earlier connection.
	if r.elems[i].dirty {
		t.env.ZeroRMB(r.handle, i*r.size, r.size)
	}
	r.elems[i].dirty, r.elems[i].trimmed = true, false
}

// put takes an element back.
func (t *rmbTable) put(now time.Time, r *rmb, i int, notBefore time.Time) {
	e := &r.elems[i]
	e.used, e.notBefore, e.freed = false, notBefore, now
	t.idle++
	r.inUse--
	if r.inUse > 0 {
		return
	}
	if t.closed {
		t.free(r)
		return
	}
	if !r.hasWithdrawn() {
		r.idleAt = now.Add(t.idleTime)
	}
}

// withdraw counts an element of r that the peer may still write to.
func (t *rmbTable) withdraw(r *rmb) {
	if t.withdrawn == nil {
		t.withdrawn = map[uint32]int{}
	}
	t.withdrawn[r.owner]++
	t.withdrawnAll++
}

// free forgets an RMB that no link makes writable any more, or that the
// peer has forgotten.
func (t *rmbTable) free(r *rmb) {
	t.list = slices.DeleteFunc(t.list, func(o *rmb) bool { return o == r })
	for _, l := range t.links.list {
		if r.at[l.slot].ok {
			t.env.DeregisterRMB(r.handle, l)
			r.at[l.slot] = slotToken{}
		}
	}
	t.env.FreeRMB(r.handle)
	r.mem = nil
}

// trim gives back elements that are not in use, neighbours together, and
// returns what is left of the budget.
func (t *rmbTable) trim(now time.Time, idle time.Duration, budget int) int {
	idle0 := 0
	for _, r := range t.list {
		from := 0 // the first element to be given back, up to element i
		give := func(to int) {
			if from < to {
				t.env.TrimRMB(r.handle, from*r.size, (to-from)*r.size)
				budget--
			}
			from = to + 1
		}
		for i := range r.elems {
			e := &r.elems[i]
			switch {
			case e.used || !e.dirty || e.trimmed:
				give(i)
			case now.Sub(e.freed) < idle || budget == 0:
				give(i)
				idle0++
			default:
				e.trimmed = true
			}
		}
		give(len(r.elems))
	}
	t.idle = idle0
	return budget
}
