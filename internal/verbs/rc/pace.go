// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"runtime"
	"time"
)

// A thread that yields on a crowded host comes last: from Linux 6.18 on it also
// loses what is left of its slice. So if that took long twice in a row, the
// driver waits for packets asleep, for a while, because a thread that is woken
// comes soon. Once happens anywhere. Each such sleep is short: not all that ends a
// wait comes in a packet.
const (
	yieldLong  = time.Millisecond
	yieldsLong = 2
	crowdTime  = 50 * time.Millisecond
	crowdSleep = 5 // ms
)

// othersAfter is how long goroutines that have no processor may wait. To ask the
// scheduler wakes a thread that looks for them: one that nobody needs, mostly.
const othersAfter = 200 * time.Microsecond

// A pace decides how the driver waits. It reads the clock once for each rest, no
// more: where the clock is no register of the processor, as on some virtual
// machines, that takes longer than the look for packets.
type pace struct {
	epoch time.Time

	resting bool          // rest followed rest since last
	last    time.Duration // time of the last reading, since epoch
	asked   time.Duration // when the scheduler was asked
	long    int           // yields in a row that took long
	until   time.Duration // the host is crowded until then
}

func (p *pace) clock() time.Duration { return time.Since(p.epoch) }

// work notes that the driver has done something else since its last rest.
func (p *pace) work() { p.resting = false }

// begin begins a rest.
func (p *pace) begin() {
	if !p.resting {
		p.resting, p.last = true, p.clock()
	}
}

// crowded reports whether to sleep instead of to yield.
func (p *pace) crowded() bool { return p.last < p.until }

// end ends a rest.
func (p *pace) end() {
	now := p.clock()
	p.took(now)
	p.others(now)
}

// took judges the rest that ends now.
func (p *pace) took(now time.Duration) {
	slept, d := p.crowded(), now-p.last
	p.last = now
	switch {
	case slept:
	case d <= yieldLong:
		p.long = 0
	default:
		if p.long++; p.long >= yieldsLong {
			p.until = now + crowdTime
		}
	}
}

// others has the scheduler of Go look for goroutines that wait.
func (p *pace) others(now time.Duration) {
	if now-p.asked > othersAfter {
		p.asked = now
		runtime.Gosched()
	}
}
