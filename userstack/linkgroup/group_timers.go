// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

func due(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

func (g *Group) set(timer int, at time.Time) { g.timers[timer] = at }
func (g *Group) clear(timer int)             { g.timers[timer] = time.Time{} }

// connTimer makes Tick look at the connections at the given time.
func (g *Group) connTimer(at time.Time) {
	if t := &g.timers[timerConn]; t.IsZero() || at.Before(*t) {
		*t = at
	}
}

// Deadline returns when [Group.Tick] is to be called, if at all. It may
// change with every event.
func (g *Group) Deadline() (time.Time, bool) {
	if g.dead {
		return time.Time{}, false
	}
	var first time.Time
	take := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	for _, t := range g.timers {
		take(t)
	}
	for _, r := range g.rmbs {
		take(r.idleAt)
	}
	for _, l := range g.links {
		take(l.testAt)
		take(l.delAt)
	}
	return first, !first.IsZero()
}

// Tick acts on the timers that are due. Calling it early or twice does no
// harm.
func (g *Group) Tick(now time.Time) {
	if g.dead {
		return
	}
	g.now = now
	for i := range g.timers {
		if !g.dead && due(g.timers[i], now) {
			g.clear(i)
			g.fire(i)
		}
	}
	for _, l := range g.Links() {
		if !g.dead && due(l.testAt, now) {
			g.testLink(l)
		}
		if !g.dead && due(l.delAt, now) {
			l.delAt = time.Time{}
			g.deleteTimeout(l)
		}
	}
	for _, r := range append([]*rmb(nil), g.rmbs...) {
		if due(r.idleAt, now) {
			r.idleAt = time.Time{}
			g.retire(r)
		}
	}
	g.settle(now)
}

func (g *Group) fire(timer int) {
	switch timer {
	case timerFirst:
		g.firstTimeout()
	case timerExchange:
		g.exchangeTimeout()
	case timerRKey:
		g.rkeyTimeout()
	case timerRKeyWait:
		g.rkeyGiveUp()
	case timerRetry:
		// settle tries again
	case timerPeerRK:
		g.peerRKeyEnd() // what is missing does not come any more
	case timerAdd:
		g.addWanted = true
	case timerDie:
		if g.cfg.Role == smc.Client {
			g.sendBye()
		} else {
			g.die(g.deadErr)
		}
	case timerIdle:
		if len(g.conns) == 0 {
			g.terminate(wire.DeleteLinkProgram, ErrIdle)
		}
	case timerConn:
		for _, c := range g.connsSorted() {
			c.Protocol().Tick(g.now)
			if at, ok := c.Protocol().Deadline(); ok {
				g.connTimer(at)
			}
		}
	}
}

// settle starts what can be started after an event.
func (g *Group) settle(now time.Time) {
	if g.settling || g.phase >= phaseDying {
		return
	}
	g.settling = true
	g.now = now
	for _, l := range g.links {
		if l.flooded {
			l.flooded = false
			g.violation(l, errors.New("linkgroup: the peer sends requests but accepts no replies"))
			break
		}
	}
	g.deleteDrained()
	g.schedule()
	if g.phase == phaseOpen && len(g.conns) == 0 {
		if g.timers[timerIdle].IsZero() && g.cfg.Timers.Idle > 0 {
			g.set(timerIdle, now.Add(g.cfg.Timers.Idle))
		}
	}
	g.settling = false
}
