// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"
)

// Tick acts on the timers that are due. A call that is too early does no harm.
func (p *Protocol) Tick(now time.Time) {
	for _, t := range p.timers() {
		if !t.due(now) {
			continue
		}
		t.stop()
		switch t {
		case &p.peerMove.timer:
			p.cfg.Log.Warn("connection reset: data was lost with a link", "token", p.token)
			// A reset may be under way, whose answer must not wait for that message.
			p.peerMove.missing, p.deferred.there = false, false
			p.abort(ErrReset)
		case &p.move.timer:
			p.finishMove()
		case &p.peerMove.arrival:
			if !p.peerMove.done {
				p.cfg.Log.Warn("connection reset: the peer did not move it from a failed link", "token", p.token)
				p.abort(ErrReset)
			}
		case &p.keep.timer:
			at, test := p.keep.look(now, p.group.LastMessage())
			t.at = at
			if test {
				p.group.Test()
			}
		case &p.out.hold.timer:
			p.pushOut()
		case &p.out.urgent.timer:
			p.cfg.Log.Warn("connection reset: the peer does not confirm urgent data", "token", p.token)
			p.abort(ErrUrgentTimeout)
		case &p.out.placement.timer:
			if p.out.placement.timeout() {
				p.Transmit()
			}
		case &p.out.nudge.timer:
			p.nudge()
		case &p.closing.tcp.timer:
			p.judgeTCP(now)
		case &p.closing.timer:
			switch {
			case aborting(p.state) && p.in.kept && p.closing.complete(p.state):
				// The program has not read the rest.
			case aborting(p.state):
				// The peer never said that it stopped writing.
				p.close(p.err, p.closing.received&lastFlags == 0)
			default:
				p.abort(ErrCloseTimeout)
			}
		}
	}
}

// judgeTCP looks at a connection whose TCP connection ended a while ago.
func (p *Protocol) judgeTCP(now time.Time) {
	if p.closing.tcpExplained() {
		return
	}
	e := &p.closing.tcp
	v := e.judge(now, &p.cfg.Timers, p.group)
	if !v.wait {
		p.cfg.Log.Info("connection reset: the TCP connection ended without a close message from the peer", "token", p.token,
			"after", now.Sub(e.at), "silence", now.Sub(p.group.LastSign()))
		p.peerGone()
		return
	}
	e.timer.at = v.again
	if v.test {
		p.group.Test()
	}
}
