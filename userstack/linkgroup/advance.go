// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// advance starts what can be started after an event.
func (g *Group) advance(now time.Time) {
	if g.advancing || g.phase >= phaseDying {
		return
	}
	g.advancing = true
	g.now = now
	for _, l := range g.links.list {
		if l.flooded {
			l.flooded = false
			g.llc.violation(l, errors.New("linkgroup: the peer sends requests but accepts no replies"))
			break
		}
	}
	g.deletion.drained()
	g.llc.schedule()
	if g.phase == phaseOpen && len(g.conns) == 0 {
		if g.timers[timerIdle].IsZero() && g.cfg.Timers.Idle > 0 {
			g.timers.set(timerIdle, now.Add(g.cfg.Timers.Idle))
		}
	}
	g.advancing = false
}

// schedule starts what waits for exchanges to end.
func (e *llcEngine) schedule() {
	for (e.g.phase == phaseSecond || e.g.phase == phaseOpen) && e.ex.kind == exNone {
		if e.g.cfg.Role == smc.Server {
			if e.g.rkeys.own.kind != rkNone || e.g.rkeys.peer.via != nil {
				return // links must not change during this exchange
			}
			i := slices.IndexFunc(e.g.links.list, func(l *Link) bool { return l.del.phase == deleteWanted })
			if i >= 0 && e.settled(e.g.cfg.Timers.DeleteLinkPause) {
				e.g.deletion.start(e.g.links.list[i])
				continue
			}
			if e.g.phase == phaseSecond && e.g.adding.tried {
				e.g.first.open()
			}
			if i < 0 && e.g.adding.wanted && (!e.g.adding.possible() || e.settled(e.g.cfg.Timers.AddLinkPause)) {
				e.g.adding.wanted, e.g.adding.tried = false, true
				e.g.adding.start()
				continue
			}
		}
		if e.g.phase == phaseOpen {
			if e.g.cfg.Role == smc.Client && e.g.adding.wanted {
				e.g.adding.wanted = false
				e.g.adding.offer()
			}
			e.g.rkeys.start()
		}
		return
	}
}

// settled reports whether the last exchange of links has ended for so long that the peer takes a request. If not, it sets
// the timer for it. A peer that has agreed on more than two links is not Linux.
func (e *llcEngine) settled(pause time.Duration) bool {
	at := e.endedAt.Add(pause)
	if !e.g.profile.pauses || e.g.links.max > 2 || !e.g.now.Before(at) {
		return true
	}
	e.g.timers.set(timerPause, at)
	return false
}

// timeout ends an exchange whose next step the peer did not take in time.
func (e *llcEngine) timeout() {
	switch {
	case e.ex.step == waitConfirm:
		e.g.adding.failed(fmt.Errorf("%w: CONFIRM LINK", ErrTimeout))
	case e.lastCarrier():
		e.unanswered()
	case e.ex.kind == exAdd:
		e.carrierFailed(fmt.Errorf("%w: ADD LINK", ErrTimeout))
	case e.ex.step == waitDrain:
		e.g.deletion.send()
	case e.ex.kind == exDelete:
		via := e.ex.via
		e.g.change.fail(via, wire.DeleteLinkLostPath, fmt.Errorf("%w: DELETE LINK", ErrTimeout))
	}
}

// lastCarrier reports whether the exchange waits for an answer over the only active link,
// and the peer may just be slow.
func (e *llcEngine) lastCarrier() bool {
	return e.g.phase == phaseOpen && e.g.profile.slowLLC && e.ex.step != waitDrain && e.g.links.best(e.ex.via) == nil
}

// unanswered acts on a missing answer over the last link: TEST LINK decides whether the
// link works. A link that was to be added is given up, and a deletion begins again.
func (e *llcEngine) unanswered() {
	e.g.tests.ask(e.ex.via)
	if e.ex.kind == exAdd {
		e.g.adding.failed(fmt.Errorf("%w: ADD LINK", ErrTimeout))
		return
	}
	e.end()
}
