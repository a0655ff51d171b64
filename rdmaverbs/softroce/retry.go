// SPDX-License-Identifier: Apache-2.0

package softroce

import "time"

// instant is a moment on the device's monotonic clock, in nanoseconds since
// the device was opened. The protocol core knows no other clock.
type instant int64

// never is the deadline of a timer that is not set.
const never instant = 1<<63 - 1

func (t instant) add(d time.Duration) instant { return t + instant(d) }

func (t instant) since(o instant) time.Duration { return time.Duration(t - o) }

// ackTimeout decodes a local ACK timeout: 4.096 microseconds times 2^code, 0
// for no timeout (InfiniBand specification, volume 1, section 9.7.6.1.3).
func ackTimeout(code uint8) time.Duration {
	if code == 0 || code > 31 {
		return 0
	}
	return 4096 * time.Nanosecond << code
}

// rnrInfinite is the RNR retry count that means "without end".
const rnrInfinite = 7

// window bounds the packets a requester has outstanding. Ethernet without
// flow control loses what the peer's receive ring cannot take, so the window
// shrinks by half when something was lost and grows again as packets are
// acknowledged: doubling every round trip up to the last good size, then by
// one packet in 32 every round trip.
//
// On a busy host a peer in user space is often late by more than the round trips
// before: by that alone the window must not shrink.
type window struct {
	max    int // packets
	size   int // packets, in [windowMin, max]
	thresh int // below it the window doubles every round trip
	credit int // packets acknowledged since the last linear step
	// recover is the first PSN that was not yet sent at the last
	// reduction: losses before it belong to the same event.
	recover psn
	reduced bool
	// What was reduced on a mere suspicion, to be restored if it was wrong.
	doubt             bool
	oldSize, oldLimit int

	smoothed  time.Duration // round-trip time, RFC 6298
	variation time.Duration
}

const windowMin = 4

func newWindow(limit int) window {
	limit = max(limit, windowMin)
	return window{max: limit, size: limit, thresh: limit}
}

// acked opens the window by n acknowledged packets, of which una is the
// oldest not acknowledged.
func (w *window) acked(n int, una psn) {
	if w.reduced && !una.before(w.recover) {
		w.reduced = false
	}
	if w.size < w.thresh {
		w.size = min(w.size+n, w.thresh)
		return
	}
	w.credit += n
	if w.credit >= w.size {
		w.credit = 0
		w.size = min(w.size+max(w.size/32, 1), w.max)
	}
}

// lost halves the window, once for all the packets before next.
func (w *window) lost(next psn) {
	if w.reduced {
		return
	}
	w.reduced, w.recover = true, next
	w.thresh = max(w.size/2, windowMin)
	w.size, w.credit = w.thresh, 0
}

// suspect is lost for a sign of loss that may be none.
func (w *window) suspect(next psn) {
	if !w.doubt {
		w.doubt, w.oldSize, w.oldLimit = true, w.size, w.thresh
	}
	w.lost(next)
}

// collapse reduces the window to its minimum: nothing came back at all. The peer
// may be late nevertheless.
func (w *window) collapse(next psn) {
	w.suspect(next)
	w.size = windowMin
}

// answered tells that something came after a suspicion; wrong that it
// acknowledges packets which were not sent again, so that nothing was lost.
func (w *window) answered(wrong bool) {
	if w.doubt && wrong {
		w.size, w.thresh, w.reduced = w.oldSize, w.oldLimit, false
	}
	w.doubt = false
}

// sample takes a round-trip time into account.
func (w *window) sample(rtt time.Duration) {
	if w.smoothed == 0 {
		w.smoothed, w.variation = rtt, rtt/2
		return
	}
	w.variation += (max(w.smoothed-rtt, rtt-w.smoothed) - w.variation) / 4
	w.smoothed += (rtt - w.smoothed) / 8
}

// Limits of the probe delay. The lower one leaves room for a peer that is
// scheduled late.
const (
	probeMin     = 4 * time.Millisecond
	probeInitial = 20 * time.Millisecond
)

// probeDelay is how long to wait for an answer before probing.
func (w *window) probeDelay() time.Duration {
	if w.smoothed == 0 {
		return probeInitial
	}
	return max(w.smoothed+4*w.variation, probeMin)
}
