// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// Deadline returns when [Group.Tick] is to be called, if at all. It may
// change with every event.
func (g *Group) Deadline() (time.Time, bool) {
	if g.phase == phaseDead {
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
	for _, r := range g.rmbs.list {
		take(r.idleAt)
	}
	for _, l := range g.links.list {
		take(l.testAt)
		take(l.del.at)
	}
	return first, !first.IsZero()
}

// Tick acts on the timers that are due. Calling it early or twice does no
// harm.
func (g *Group) Tick(now time.Time) {
	if g.phase == phaseDead {
		return
	}
	g.now = now
	for i := range g.timers {
		if g.phase != phaseDead && due(g.timers[i], now) {
			g.timers.stop(i)
			g.fire(i)
		}
	}
	for _, l := range g.Links() {
		if g.phase != phaseDead && due(l.testAt, now) {
			g.tests.look(l)
		}
		if g.phase != phaseDead && due(l.del.at, now) {
			l.del.at = time.Time{}
			g.deletion.timeout(l)
		}
	}
	for _, r := range append([]*rmb(nil), g.rmbs.list...) {
		if due(r.idleAt, now) {
			r.idleAt = time.Time{}
			g.rkeys.retire(r)
		}
	}
	g.advance(now)
}

func (g *Group) fire(timer int) {
	switch timer {
	case timerFirst:
		g.first.timeout()
	case timerFirstSend:
		g.first.sendTimeout()
	case timerExchange:
		g.llc.timeout()
	case timerProof:
		g.tests.noSign()
	case timerRKey:
		g.rkeys.timeout()
	case timerRKeyWait:
		g.rkeys.giveUp()
	case timerRetry, timerPause:
		// advance tries again
	case timerPeerRK:
		g.rkeys.peerEnd() // no CONTINUATION comes any more
	case timerAdd:
		g.adding.wanted = true
	case timerDie:
		if g.cfg.Role == smc.Client {
			g.end.send()
		} else {
			g.end.die(g.end.err)
		}
	case timerIdle:
		if len(g.conns) == 0 {
			g.end.terminate(wire.DeleteLinkProgram, ErrIdle)
		}
	case timerConn:
		for _, c := range g.connsSorted() {
			c.Protocol().Tick(g.now)
			if at, ok := c.Protocol().Deadline(); ok {
				g.timers.setConn(at)
			}
		}
	}
}
