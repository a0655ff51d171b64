// SPDX-License-Identifier: Apache-2.0

package bounded

import "time"

const (
	// tickTime is the time from one look at the clock to the next, and tickLate how late a
	// look may be. A process that gets the processor looks in time.
	tickTime = 10 * time.Millisecond
	tickLate = 2 * time.Millisecond
	// starving is how many times longer than d Wait waits at most.
	starving = 20
)

// Wait waits until done is closed, and reports it. It gives up after the time d, without the
// time in which this process got no processor: on a busy machine, another thread that has not
// answered has probably not run. It gives up after 20 times d in any case.
func Wait(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(tickTime)
	defer t.Stop()
	begin := time.Now()
	last := begin
	for left := d; left > 0; {
		select {
		case <-done:
			return true
		case <-t.C:
		}
		now := time.Now()
		left -= ran(now.Sub(last))
		if now.Sub(begin) >= starving*d {
			break
		}
		last = now
		t.Reset(tickTime)
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// ran returns how much of the time between two looks counts.
func ran(between time.Duration) time.Duration {
	if between > tickTime+tickLate {
		return 0
	}
	return between
}
