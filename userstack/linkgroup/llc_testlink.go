// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"encoding/binary"
	"fmt"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// start sets when the link is tested next.
func (t *linkTests) start(l *Link) {
	if t.g.cfg.Timers.TestLink > 0 {
		l.testAt = t.g.now.Add(t.g.cfg.Timers.TestLink)
	}
}

// alive returns when the peer, or at least its adapter, gave its last sign.
func (l *Link) alive() time.Time {
	if l.lastAck.After(l.lastRx) {
		return l.lastAck
	}
	return l.lastRx
}

// look tests a link on which nothing has arrived for a while. The link fails if there is
// no answer (RFC 7609, section 4.5.3).
func (t *linkTests) look(l *Link) {
	if l.state != smc.LinkActive {
		l.testAt = time.Time{}
		return
	}
	if l.testing {
		// The answer arrives after everything that is under way in both directions.
		// As long as some of this arrives, the answer may only be late.
		timers := &t.g.cfg.Timers
		at := l.alive().Add(timers.TestLinkAnswer)
		if last := l.testedAt.Add(timers.TestLinkBusy); at.After(last) {
			at = last
		}
		if t.g.now.Before(at) {
			l.testAt = at
			return
		}
		t.g.change.fail(l, wire.DeleteLinkLostPath, fmt.Errorf("%w: TEST LINK on link %d", ErrTimeout, l.id))
		return
	}
	if at := l.lastRx.Add(t.g.cfg.Timers.TestLink); t.g.now.Before(at) {
		l.testAt = at
		return
	}
	t.send(l)
}

// ask sends TEST LINK if no test of the link is under way.
func (t *linkTests) ask(l *Link) {
	if !l.testing {
		t.send(l)
	}
}

// send sends TEST LINK.
func (t *linkTests) send(l *Link) {
	for i := 0; i < len(l.testData); i += 4 {
		binary.BigEndian.PutUint32(l.testData[i:], t.g.env.Random())
	}
	l.testing, l.testedAt = true, t.g.now
	l.testAt = t.g.now.Add(t.g.cfg.Timers.TestLinkAnswer)
	l.sendLLC(wire.TestLink{UserData: l.testData}, nothing, nil)
}

func (t *linkTests) recv(l *Link, m wire.TestLink) {
	switch {
	case !m.Reply:
		m.Reply = true
		l.sendLLC(m, nothing, nil)
	case !l.testing:
	case m.UserData != l.testData:
		t.g.change.fail(l, wire.DeleteLinkProtocolViolation, fmt.Errorf("%w: TEST LINK reply with other data", ErrProtocol))
	default:
		t.doubted = false
		l.testing, l.testAt = false, time.Time{}
		t.start(l)
	}
}

// peerLives reports whether the peer's stack has not ended, though it may be too busy
// to send: it has just given a sign on another link, or another connection still has
// its TCP connection, which would have ended with the stack.
func (t *linkTests) peerLives() bool {
	if t.deadAt.Equal(t.g.now) {
		return false
	}
	for _, l := range t.g.links.list {
		if l.state == smc.LinkActive && l.alive().Add(t.g.cfg.Timers.TCPGrace).After(t.g.now) {
			return true
		}
	}
	for _, c := range t.g.conns {
		// A connection that has begun to end may have no TCP connection any more.
		if c.Protocol().Undisturbed() {
			return true
		}
	}
	t.deadAt = t.g.now // all connections of the peer ask at the same time
	return false
}
