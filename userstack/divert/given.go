// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
)

// What a program waits for is let go once, and may be lost: its device may be down. TCP repeats such a packet only where both
// ends still know of the connection, and the other end here is the stack, which has to. So a connection that was split is looked at
// until its program has answered:
//
//	the program's socket         | then
//	-----------------------------+----------------------------------------------------------------------
//	has sent something to inner  | it has the packet, and all is TCP's from now on
//	of a server: is connected    | likewise: a server says nothing to the end of a handshake
//	waits                        | the packet is let go again, soon and then more and more rarely, by the
//	                             | device by which the program has sent last, while that is up
//	of a server: is not there    | inner asks for it (keep-alive): the kernel answers with a reset, or
//	                             | nothing does, and the connection has ended within keepMost
//	waits for very long          | likewise

const (
	// giveAfter is how long after it was let go a packet is let go again; it doubles each time, up to giveMost.
	giveAfter = 200 * time.Millisecond
	giveMost  = 5 * time.Second
	// keepIdle, keepCount: inner asks for the program's socket so often, with a second in between.
	keepIdle, keepCount = 1, 8
)

// given is a Flow whose program has not answered since it was let go.
type given struct {
	since, next time.Time
	wait        time.Duration
	asks        bool // inner does
	lives       bool // outer keeps the connection alive: one that has ended by the first look does not need it
}

// gave has the answer of a program waited for.
func (d *Diverter) gave(f *Flow) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.given[f] = &given{since: now, next: now.Add(giveAfter), wait: giveAfter}
}

// sweepGiven looks at the flows whose programs have not answered.
func (d *Diverter) sweepGiven(now time.Time, up func(dev uint32) bool) {
	d.mu.Lock()
	due := map[*Flow]*given{} // only this goroutine changes the values
	for f, g := range d.given {
		if g.asks || !now.Before(g.next) || now.Sub(g.since) < giveAfter {
			due[f] = g
		}
	}
	d.mu.Unlock()
	for f, g := range due {
		if f.isGiven(g, now, up) {
			d.mu.Lock()
			delete(d.given, f)
			d.mu.Unlock()
		}
	}
}

// isGiven reports whether nothing is to be done any more for the program to have its packet.
func (f *Flow) isGiven(g *given, now time.Time, up func(dev uint32) bool) bool {
	inner := f.program()
	if f.isOver() {
		return true
	}
	if !g.lives {
		f.outer.control(keepsAlive)
		g.lives = true
	}
	if inner.heard() {
		if g.asks {
			inner.ask(false)
		}
		return true
	}
	if g.asks || now.Before(g.next) {
		return false
	}
	dev := f.comesBy()
	there := true
	if f.Role == smc.Server {
		switch state, err := f.d.sockets.state(socketID{f.Tuple, anyCookie, dev}); {
		case errors.Is(err, unix.ENOENT), err == nil && state == unix.BPF_TCP_LISTEN:
			there = false
		case err != nil: // it is not known
		case state != unix.BPF_TCP_SYN_RECV && state != unix.BPF_TCP_NEW_SYN_RECV:
			return true
		}
	}
	if !there || now.Sub(g.since) > handshakeMost {
		inner.ask(true)
		g.asks = true
		return false
	}
	if up(dev) {
		f.letGo()
		g.wait = min(2*g.wait, giveMost)
	}
	g.next = now.Add(g.wait)
	return false
}
