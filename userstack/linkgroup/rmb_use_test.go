// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"slices"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// memoryLog is an Env that notes which memory is given back or zeroed, in elements.
type memoryLog struct {
	*host
	size            int // of an element
	trimmed, zeroed [][2]int
}

func (e *memoryLog) TrimRMB(handle any, off, n int) {
	e.trimmed = append(e.trimmed, [2]int{off / e.size, n / e.size})
	e.host.TrimRMB(handle, off, n)
}

func (e *memoryLog) ZeroRMB(handle any, off, n int) {
	e.zeroed = append(e.zeroed, [2]int{off / e.size, n / e.size})
	e.host.ZeroRMB(handle, off, n)
}

// TestTrimElements: which elements of an RMB are given back, neighbours together: those that
// were used, and have not been for the given time.
func TestTrimElements(t *testing.T) {
	const idle = time.Minute
	for _, tt := range []struct {
		elems string // used, old, idle for exactly the time, young, trimmed before, clean
		want  [][2]int
		later bool // there is more to give back later
	}{
		{"oooo", [][2]int{{0, 4}}, false},
		{"uooo", [][2]int{{1, 3}}, false},
		{"ouoo", [][2]int{{0, 1}, {2, 2}}, false},
		{"uouo", [][2]int{{1, 1}, {3, 1}}, false},
		{"oooy", [][2]int{{0, 3}}, true},
		{"yooo", [][2]int{{1, 3}}, true},
		{"iiii", [][2]int{{0, 4}}, false},
		{"oitc", [][2]int{{0, 2}}, false},
		{"cotu", [][2]int{{1, 1}}, false},
		{"uuuu", nil, false},
		{"yyyy", nil, true},
		{"cttu", nil, false},
	} {
		r := newRig(t, smc.Server, noTest)
		r.open()
		m := r.c.rmb
		now := r.s.now.Add(time.Hour)
		for i, c := range tt.elems {
			m.elems[i] = map[rune]element{
				'u': {used: true, dirty: true}, 'o': {dirty: true, freed: r.s.now}, 'i': {dirty: true, freed: now.Add(-idle)},
				'y': {dirty: true, freed: now.Add(1 - idle)}, 't': {dirty: true, trimmed: true, freed: r.s.now}, 'c': {},
			}[c]
		}
		r.g.rmbs.idle = len(tt.elems)
		log := &memoryLog{host: r.h, size: m.size}
		r.g.rmbs.env = log
		if again := r.g.Trim(now, idle); again || !slices.Equal(log.trimmed, tt.want) || r.g.Trimmable() != tt.later {
			t.Errorf("%s: given back %v, again %v, later %v; want %v, later %v", tt.elems, log.trimmed, again, r.g.Trimmable(), tt.want, tt.later)
		}
	}
}

// TestTrimOften: one call gives back so many buffers and no more, and says that there are more.
func TestTrimOften(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.RMBEsPerRMB = 255 })
	r.open()
	m := r.c.rmb
	for i := range 2 * (maxTrim + 3) {
		m.elems[i] = element{dirty: true, used: i%2 == 0}
	}
	r.g.rmbs.idle = maxTrim + 3
	log := &memoryLog{host: r.h, size: m.size}
	r.g.rmbs.env = log
	now := r.s.now.Add(time.Hour)
	if !r.g.Trim(now, time.Minute) || len(log.trimmed) != maxTrim {
		t.Errorf("%d buffers, want %d and more", len(log.trimmed), maxTrim)
	}
	if r.g.Trim(now, time.Minute) || len(log.trimmed) != maxTrim+3 {
		t.Errorf("%d buffers in the end, want %d", len(log.trimmed), maxTrim+3)
	}
}

// TestTrimOfQueue: Trim gives back the memory of the queue of actions, if it is empty.
func TestTrimOfQueue(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.send(10)
	r.take()
	if cap(r.g.actions.list) == 0 {
		t.Fatal("the queue has no memory")
	}
	r.recv(r.link, wire.TestLink{})
	r.g.Received(r.s.now, r.link, mustLLC(t, wire.TestLink{}))
	r.g.Trim(r.s.now, time.Minute)
	if len(r.g.actions.list) != 1 {
		t.Errorf("%d actions after Trim, want 1", len(r.g.actions.list))
	}
	r.take()
	r.g.Trim(r.s.now, time.Minute)
	if n := cap(r.g.actions.list); n != 0 {
		t.Errorf("the empty queue has room for %d actions", n)
	}
}

// TestTrimOfDead: a group that has ended has nothing to give back.
func TestTrimOfDead(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.newConn().Cancel(r.s.now)
	if !r.g.Trimmable() {
		t.Fatal("a free element cannot be given back")
	}
	r.g.LinkFailed(r.s.now, r.link, errAny)
	if r.g.Trimmable() || r.g.Trim(r.s.now, 0) {
		t.Error("a group that has ended has memory to give back")
	}
}

// TestZeroedElement: an element that is used again is zeroed, and no other one.
func TestZeroedElement(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	log := &memoryLog{host: r.h, size: r.c.rmb.size}
	r.g.rmbs.env = log
	c := r.newConn()
	if c.rmb != r.c.rmb || c.elem != 1 || len(log.zeroed) > 0 {
		t.Fatalf("element %d, zeroed %v", c.elem, log.zeroed)
	}
	c.Cancel(r.s.now)
	r.wait(10 * time.Second)
	if c = r.newConn(); c.elem != 1 || !slices.Equal(log.zeroed, [][2]int{{1, 1}}) {
		t.Errorf("element %d, zeroed %v", c.elem, log.zeroed)
	}
}

// TestUnusedRMBs: handshakes that fail take a quarter of the RMBs, and those of another owner
// are not among them.
func TestUnusedRMBs(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); oneRMB(c) })
	r.open()
	fill := func(owner uint32) int {
		for n := 0; ; n++ {
			c, err := r.g.NewConnOf(r.s.now, owner, 0, 100)
			if err != nil {
				if !errors.Is(err, ErrFull) {
					t.Error(err)
				}
				return n
			}
			c.Cancel(r.s.now)
		}
	}
	for _, owner := range []uint32{0, 7} {
		if n := fill(owner); n != maxUnused {
			t.Errorf("owner %d: %d RMBs, want %d", owner, n, maxUnused)
		}
	}
}

// TestWithdrawnOfOwner: an owner with many elements to which the peer may still write gets no
// more connections. Other owners do.
func TestWithdrawnOfOwner(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.RMBEsPerRMB, c.Timers.AddLinkRetry = 255, 0 })
	r.open()
	abandoned := func(i int) error {
		c, err := r.g.NewConnOf(r.s.now, 5, 0, 100)
		if err != nil {
			return err
		}
		if c.rmb.state == rmbNew {
			r.recv(r.link, c.reply(r.link))
		}
		p := peerRMB
		p.Index, p.Token = uint8(i+3), uint32(i+9)
		if err := c.Attach(r.s.now, p); err != nil {
			return err
		}
		c.Abort(r.s.now)
		r.done()
		r.wait(10 * time.Second) // the peer does not answer
		c.Release()
		return nil
	}
	for i := range maxWithdrawn + 1 {
		if err := abandoned(i); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if err := abandoned(100); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if _, err := r.g.NewConnOf(r.s.now, 6, 0, 100); err != nil || !r.g.CanAccept() {
		t.Errorf("another owner: %v, CanAccept %v", err, r.g.CanAccept())
	}
}
