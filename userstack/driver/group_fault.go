// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"smcr/guard"
	"smcr/userstack/linkgroup"
)

// After a panic while the lock of a link group is held, or while its actions are carried out,
// the state of the core is unknown. The core is not called any more, and the group ends
// without it:
//
//	part                   | how it ends
//	-----------------------+--------------------------------------------------
//	group                  | dead and broken, forgotten by the stack
//	queue pairs            | closed at once: from then on no peer writes to memory
//	connections given out  | reset, programs are woken
//	handshakes under way   | fail with ErrGroupDead
//	buffers                | freed when no reader or writer is in one
//
// So each call of the core, or of functions that the core calls, is in a function that defers
// caught (with the lock) or fell (without it). Code that runs after the end of a group (dead)
// calls the core only through functions that check broken.

// errBroken is the error of a group that has ended after a panic.
var errBroken = errors.New("userstack: internal error, see the log")

// call passes an event to the core. mu is held, also afterwards.
func (g *Group) call(f func()) {
	defer g.caught()
	f()
}

// caught is deferred by functions that call the core with mu held.
func (g *Group) caught() {
	if v := recover(); v != nil {
		g.fault(g.s.Guard.Caught("link group "+g.Name(), v))
	}
}

// fell is deferred by functions that carry out actions, without mu.
func (g *Group) fell() {
	if v := recover(); v != nil {
		e := g.s.Guard.Caught("link group "+g.Name(), v)
		g.mu.Lock()
		g.fault(e)
		g.mu.Unlock()
	}
}

// fault ends a group whose core is in an unknown state. mu is held. The goroutine that
// releases mu, or that carries out actions, does the rest.
func (g *Group) fault(e *guard.Error) {
	if g.end.broken {
		return
	}
	if !g.end.dead {
		g.exec.after(func() { g.owner.ended(g) })
	}
	g.end.broken, g.end.dead = true, true
	g.exec.timer.Stop()
	g.exec.after(func() { g.collapse(e) })
}

// collapse does what onDead and the core do for a group that ends in order.
func (g *Group) collapse(cause error) {
	g.log.Error("link group ended by an internal error", "err", cause)
	err := fmt.Errorf("%w: %w", linkgroup.ErrGroupDead, errBroken)
	select {
	case g.first <- err:
	default:
	}
	g.mu.Lock()
	links := g.links
	g.links, g.leftover, g.exec.acts = nil, nil, nil
	g.mem.slab = sendSlab{} // all of it is in regions
	conns := slices.Collect(maps.Keys(g.conns))
	for _, c := range conns {
		c.setOver()
	}
	g.mu.Unlock()
	for _, l := range links {
		_ = g.s.Guard.Do("the end of a link", l.destroy)
	}
	for _, c := range conns {
		c.broken(err)
	}
	g.mu.Lock()
	g.end.fallen = true
	g.freeFallen()
	g.mu.Unlock()
}

// freeFallen frees the buffers of a broken group when its queue pairs are closed and no
// reader or writer uses a buffer. mu is held.
func (g *Group) freeFallen() {
	if !g.end.fallen || g.mem.inUse() {
		return
	}
	regions := g.mem.takeRegions()
	if len(regions) == 0 {
		return
	}
	g.exec.after(func() {
		for r := range regions {
			_ = g.s.Guard.Do("the end of a buffer", func() { r.free(g.s.pool) })
		}
	})
}
