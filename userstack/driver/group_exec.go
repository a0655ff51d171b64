// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"time"

	"smcr/userstack/engine"
	"smcr/userstack/linkgroup"
)

// do locks the group, calls f, and carries out the resulting actions. f must not call methods
// that lock the group.
func (g *Group) do(f func(now time.Time)) {
	g.mu.Lock()
	g.call(func() { f(time.Now()) })
	g.unlock()
}

// event is do for an event with an outcome. The error is [linkgroup.ErrGroupDead] if the
// group has ended, also if f has ended it.
func (g *Group) event(f func(now time.Time) error) (err error) {
	err = linkgroup.ErrGroupDead
	g.do(func(now time.Time) {
		if !g.end.dead {
			err = f(now)
		}
	})
	return err
}

func (g *Group) onTimer() {
	g.mu.Lock()
	g.exec.armed = time.Time{}
	if !g.end.dead {
		g.call(func() { g.core.Tick(time.Now()) })
	}
	g.unlock()
}

// onComplete is the notify function of all completion queues of the group.
func (g *Group) onComplete() {
	g.pollWanted.Store(true)
	if g.mu.TryLock() {
		g.unlock()
	}
}

// unlock carries out the actions that are queued and releases mu. If another
// goroutine carries out actions already, it takes these too.
func (g *Group) unlock() {
	for {
		g.runActions()
		g.mu.Unlock()
		// This goroutine handles completions that were announced while the lock was held.
		if !g.pollWanted.Load() || !g.mu.TryLock() {
			return
		}
	}
}

// unlockLate releases mu in a round of l. It leaves the actions to the later part of the
// round, where those of all connections are carried out together.
func (g *Group) unlockLate(l *engine.Loop) {
	if g.exec.late == nil {
		g.exec.late = l.LateTask(func() {
			g.mu.Lock()
			g.unlock()
		})
	}
	g.exec.late.Schedule()
	g.mu.Unlock()
	if g.pollWanted.Load() && g.mu.TryLock() {
		g.unlock()
	}
}

// runActions carries out actions until there are none. mu is held at the beginning and at the
// end, and released in between.
func (g *Group) runActions() {
	if g.pollWanted.Swap(false) {
		g.poll()
	}
	if g.exec.running {
		g.arm()
		return
	}
	g.exec.running = true
	for {
		g.takeActions()
		later := g.exec.takeLater()
		if len(g.exec.acts) == 0 && len(later) == 0 {
			break
		}
		g.mu.Unlock()
		g.execute(g.exec.acts)
		for _, f := range later {
			g.carryOut(f)
		}
		g.carryOut(g.closeDomains)
		g.mu.Lock()
		if g.pollWanted.Swap(false) {
			g.poll()
		}
	}
	g.exec.running = false
	g.arm()
	g.checkOver()
}

// takeActions takes the actions of the core. mu is held.
func (g *Group) takeActions() {
	defer g.caught()
	g.exec.acts = g.exec.acts[:0]
	if !g.end.broken {
		g.exec.acts = g.core.TakeActions(g.exec.acts)
		if n := linkgroup.TakeFailovers(g.core); n > 0 {
			g.s.Stats.Failovers(n)
		}
	}
}

// carryOut calls a release function. mu is not held.
func (g *Group) carryOut(f func()) {
	defer g.fell()
	f()
}

// arm sets the timer to the nearest deadline of the core.
func (g *Group) arm() {
	defer g.caught()
	if g.end.dead {
		g.exec.timer.Stop()
		return
	}
	if g.core.Trimmable() {
		g.s.trim.poke()
	}
	if d, ok := g.core.Deadline(); ok {
		g.exec.arm(d)
	}
}

// checkOver tells Close when a dead group has released everything, except for buffers that a
// reader or writer of the program uses in ReadFrom or WriteTo. mu is held, and no goroutine
// carries out actions.
func (g *Group) checkOver() {
	if !g.end.dead || len(g.conns) > 0 || g.mem.copying > 0 || g.end.broken && (!g.end.fallen || len(g.mem.regions) > 0) {
		return
	}
	if !g.end.isOver() {
		g.owner.over(g)
		close(g.end.over)
	}
}

// onDead removes the group from the driver, and frees what the core does not know.
func (g *Group) onDead(err error) {
	g.owner.ended(g)
	g.log.Info("link group ended", "reason", err)
	if f := g.s.PathDied; f != nil && errors.Is(err, linkgroup.ErrPathDied) {
		f(g.lan)
	}
	select {
	case g.first <- fmt.Errorf("%w: %w", linkgroup.ErrGroupDead, err):
	default:
	}
	g.mu.Lock()
	g.end.dead = true
	g.exec.timer.Stop()
	links := g.links
	g.links = nil
	g.mem.endSlab()
	g.mu.Unlock()
	for _, l := range links {
		l.destroy()
	}
}

// closeDomains closes the protection domains of a dead group that are not in use.
func (g *Group) closeDomains() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.end.dead {
		g.mem.closeDomains()
	}
}

// notify tells the waiting goroutines what has happened. mu is not held.
func (g *Group) notify(a *linkgroup.Action) {
	if a.Kind == linkgroup.ActGroupDead {
		g.onDead(a.Err)
		return
	}
	if a.Kind == linkgroup.ActFirstLink {
		select {
		case g.first <- a.Err:
		default:
		}
		return
	}
	c, _ := a.Conn.Data.(member)
	if c == nil {
		return
	}
	switch a.Kind {
	case linkgroup.ActWakeRead:
		c.wakeRead()
	case linkgroup.ActWakeWrite:
		c.wakeWrite()
	case linkgroup.ActWakeUrgent:
		c.wakeUrgent()
	case linkgroup.ActConnReady:
		c.announced(a.Err)
	case linkgroup.ActConnClosed:
		c.closed(a.Err)
	}
}
