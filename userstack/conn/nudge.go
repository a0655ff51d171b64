// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// A peer that holds data back while a lost link keeps its messages.
//
// Linux (seen with 6.12; net/smc/smc_tx.c) holds back less than 64 KiB of data, and less than
// half of its send buffer, while a message of the connection is under way, and sends it when
// that is complete. A message on a lost link may never be: the soft-RoCE of Linux repeats it
// until the device of this side is back. A connection that has moved to another link then
// waits for ever, although the link works. A message with the flag R makes the kernel send
// what it has, as soon as it comes.
//
// So this side sends such messages for as long as the peer deletes a lost link. They come
// soon after the last message, since its answer may be held back, and then less often.

const (
	firstNudge = 2 * time.Millisecond
	lastNudge  = 500 * time.Millisecond
)

// nudge is the state of these messages. It stays at its zero value while no link is lost.
//
//	event                          | then
//	-------------------------------+---------------------------------------------
//	a link was lost                | timer firstNudge
//	data received, a message sent  | timer firstNudge
//	timer, nothing outstanding     | message with R; timer, twice as long
//	timer, otherwise               | timer, as long
//	the link is deleted            | timer stopped
type nudge struct {
	on    bool
	due   bool          // the next message has the flag R for this reason
	wait  time.Duration // of the timer, when it was started last
	timer timer
}

// flag returns the R flag for the next message, or 0.
func (n *nudge) flag() wire.ProducerFlags {
	if !n.due {
		return 0
	}
	return wire.ProdCursorRequest
}

// Nudge says whether the peer may hold data back because it does not delete a lost link.
func (p *Protocol) Nudge(on bool) {
	n := &p.out.nudge
	if n.on == on || !p.Established() || p.state == smc.StateClosed {
		return
	}
	*n = nudge{on: on}
	p.nudgeSoon()
}

// nudgeSoon starts the timer again: an answer of the peer may follow.
func (p *core) nudgeSoon() {
	if n := &p.out.nudge; n.on {
		n.wait = firstNudge
		p.start(&n.timer, p.group.Now().Add(n.wait))
	}
}

// nudge makes the peer send what it holds back, unless this side is about to send anyway, or
// has nothing to say any more. Where the answers to requests tell about an urgent byte (see
// placement), it makes none.
func (p *core) nudge() {
	n, s := &p.out.nudge, &p.out
	if aborting(p.state) || p.CloseSent() || s.placement.urgent {
		return
	}
	if s.outstanding == 0 {
		n.due, s.update = true, true
		n.wait = min(2*n.wait, lastNudge)
	}
	p.start(&n.timer, p.group.Now().Add(n.wait))
	p.Transmit()
}
