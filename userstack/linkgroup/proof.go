// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"
	"time"
)

// A link carries nothing while nobody sends, so a path that has died is found only by the next
// connection. That one must not become SMC-R: its data would wait until the queue pairs give
// up, and be lost with them. So a connection joins a group at once only if its link has just
// shown a sign of the peer. Otherwise it needs a new sign.
//
//	connection | Event                            | connection | Actions
//	-----------+----------------------------------+------------+---------------------------
//	new        | a sign within Fresh, RMB known   | ready      |
//	new        | a sign within Fresh, else        | unsure     | timer ProofWait
//	new        | no sign within Fresh             | unsure     | TEST LINK, timer ProofWait
//	unsure     | a message or an acknowledgement  | waiting,   |
//	           |                                  | or ready   | ActConnReady
//	unsure     | timer, something is under way    | ready      | ActConnReady ErrNoSign; the
//	           |                                  |            | group takes no connections
//	           |                                  |            | until TEST LINK is answered
//	unsure     | timer, nothing is under way      | unsure     | TEST LINK, timer ProofWait
//	unsure     | timer, its link has failed and   | unsure     | TEST LINK on the other one,
//	           | the group has another one        |            | timer ProofWait
//	unsure     | timer, its link has failed       | ready      | ActConnReady ErrNoLink

// prove has c wait for a sign of the peer on its link, if there was none lately or an exchange
// is needed anyway.
func (t *linkTests) prove(c *Conn) {
	timers := &t.g.cfg.Timers
	stale := !c.link.alive().Add(timers.Fresh).After(t.g.now)
	if timers.Fresh <= 0 || !stale && c.rmb.state == rmbKnown {
		return
	}
	c.unsure = t.g.now
	t.unsure = append(t.unsure, c)
	if stale {
		t.ask(c.link)
	}
	if t.g.timers[timerProof].IsZero() {
		t.g.timers.set(timerProof, t.g.now.Add(timers.ProofWait))
	}
}

// sign is called for each sign of the peer on a link.
func (t *linkTests) sign(l *Link) {
	if len(t.unsure) == 0 {
		return
	}
	t.unsure = slices.DeleteFunc(t.unsure, func(c *Conn) bool {
		if c.stage == stageWaiting && c.link != l {
			return false
		}
		c.unsure = time.Time{}
		if c.stage == stageWaiting && c.rmb.state == rmbKnown {
			c.setReady(nil)
		}
		return true
	})
}

// noSign gives up connections that have waited too long for a sign.
func (t *linkTests) noSign() {
	var next time.Time
	t.unsure = slices.DeleteFunc(t.unsure, func(c *Conn) bool {
		if c.stage != stageWaiting {
			return true
		}
		wait := t.g.cfg.Timers.ProofWait
		if !t.g.now.Before(c.unsure.Add(wait)) {
			if !c.link.usable() {
				l := t.g.links.leastUsed((*Link).usable)
				if l == nil {
					c.setReady(ErrNoLink)
					return true
				}
				c.setLink(l)
			} else if c.link.sqLen > 0 {
				t.doubted = true
				t.ask(c.link)
				c.setReady(ErrNoSign)
				return true
			}
			c.unsure = t.g.now
			t.send(c.link)
		}
		if at := c.unsure.Add(wait); next.IsZero() || at.Before(next) {
			next = at
		}
		return false
	})
	if !next.IsZero() {
		t.g.timers.set(timerProof, next)
	}
}
