// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"encoding/binary"
	"fmt"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// armTest sets when the link is looked at next.
func (g *Group) armTest(l *Link) {
	if g.cfg.Timers.TestLink > 0 {
		l.testAt = g.now.Add(g.cfg.Timers.TestLink)
	}
}

// alive is when the peer, or at least its adapter, was last heard of.
func (l *Link) alive() time.Time {
	if l.lastAck.After(l.lastRx) {
		return l.lastAck
	}
	return l.lastRx
}

// testLink tests a link that has been silent, and fails one that does not
// answer (RFC 7609, section 4.5.3).
func (g *Group) testLink(l *Link) {
	if l.state != smc.LinkActive {
		l.testAt = time.Time{}
		return
	}
	if l.testing {
		// The answer comes behind all that is under way, in both directions.
		// While some of that gets through it is not missing yet.
		timers := &g.cfg.Timers
		at := l.alive().Add(timers.TestLinkAnswer)
		if last := l.testedAt.Add(timers.TestLinkBusy); at.After(last) {
			at = last
		}
		if g.now.Before(at) {
			l.testAt = at
			return
		}
		g.failLink(l, wire.DeleteLinkLostPath, fmt.Errorf("%w: TEST LINK on link %d", ErrTimeout, l.id))
		return
	}
	if at := l.lastRx.Add(g.cfg.Timers.TestLink); g.now.Before(at) {
		l.testAt = at
		return
	}
	g.probe(l)
}

// Doubt is for a word that the peer has lost this group which need not be the
// peer's. The links are tested: what does not answer fails. Until there is an
// answer the group takes no connections, which the peer would decline.
func (g *Group) Doubt(now time.Time) {
	if g.phase != phaseOpen {
		return
	}
	g.now = now
	for _, l := range g.links {
		if l.state != smc.LinkActive {
			continue
		}
		g.doubted = true
		if !l.testing {
			g.probe(l)
		}
	}
	g.settle(now)
}

// probe sends TEST LINK.
func (g *Group) probe(l *Link) {
	for i := 0; i < len(l.testData); i += 4 {
		binary.BigEndian.PutUint32(l.testData[i:], g.env.Random())
	}
	l.testing, l.testedAt = true, g.now
	l.testAt = g.now.Add(g.cfg.Timers.TestLinkAnswer)
	l.sendLLC(wire.TestLink{UserData: l.testData}, nothing, nil)
}

func (g *Group) recvTestLink(l *Link, m wire.TestLink) {
	switch {
	case !m.Reply:
		m.Reply = true
		l.sendLLC(m, nothing, nil)
	case !l.testing:
	case m.UserData != l.testData:
		g.failLink(l, wire.DeleteLinkProtocolViolation, fmt.Errorf("%w: TEST LINK reply with other data", ErrProtocol))
	default:
		g.doubted = false
		l.testing, l.testAt = false, time.Time{}
		g.armTest(l)
	}
}

// peerLives reports whether the peer's stack has not ended, though it may be too busy
// to send: it has just given a sign on another link, or another connection still has
// its TCP connection, which would have ended with the stack.
func (g *Group) peerLives() bool {
	if g.mournedAt.Equal(g.now) {
		return false
	}
	for _, l := range g.links {
		if l.state == smc.LinkActive && l.alive().Add(g.cfg.Timers.TCPGrace).After(g.now) {
			return true
		}
	}
	for _, c := range g.conns {
		// What has begun to end may have no TCP connection any more.
		if c.Protocol().Undisturbed() {
			return true
		}
	}
	g.mournedAt = g.now // all connections that it had ask at once
	return false
}
