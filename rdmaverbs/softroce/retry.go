// SPDX-License-Identifier: Apache-2.0

package softroce

import "time"

// instant is a time on the monotonic clock of the device, in nanoseconds since
// the device was opened. The protocol core uses no other clock.
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

// rnrInfinite is the RNR retry count that means "no limit".
const rnrInfinite = 7

// window limits the packets that a requester has outstanding. Ethernet without
// flow control loses packets for which the receive buffer of the peer has no
// room. So the window is halved when a packet was lost. It grows again as
// packets are acknowledged: up to half the old size it doubles every round
// trip, then it grows by 1/32 every round trip.
//
// On a busy host, a peer in user space often answers much later than in the
// round trips before. The window must not shrink for this reason alone.
type window struct {
	max    int // packets
	size   int // packets, in [windowMin, max]
	thresh int // below it the window doubles every round trip
	credit int // packets acknowledged since the last linear step
	// recover is the first PSN that was not sent yet at the last reduction.
	// Losses before it belong to the same event.
	recover psn
	reduced bool
	// suspected is set after a reduction for a loss that is not certain. The
	// old values are restored if nothing was lost.
	suspected          bool
	oldSize, oldThresh int

	smoothed  time.Duration // round-trip time, RFC 6298
	variation time.Duration
}

const windowMin = 4

func newWindow(limit int) window {
	limit = max(limit, windowMin)
	return window{max: limit, size: limit, thresh: limit}
}

// acked grows the window after n packets were acknowledged. una is the oldest
// PSN that is not acknowledged.
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

// onLoss halves the window, once for all losses before PSN next.
func (w *window) onLoss(next psn) {
	if w.reduced {
		return
	}
	w.reduced, w.recover = true, next
	w.thresh = max(w.size/2, windowMin)
	w.size, w.credit = w.thresh, 0
}

// onSuspectedLoss halves the window for a loss that is not certain.
func (w *window) onSuspectedLoss(next psn) {
	if !w.suspected {
		w.suspected, w.oldSize, w.oldThresh = true, w.size, w.thresh
	}
	w.onLoss(next)
}

// onTimeout reduces the window to its minimum, because there was no answer at
// all. The peer may still only be late.
func (w *window) onTimeout(next psn) {
	w.onSuspectedLoss(next)
	w.size = windowMin
}

// answered is called for each answer. wrong says that it acknowledges packets
// that were not sent again, so a suspected loss was none.
func (w *window) answered(wrong bool) {
	if w.suspected && wrong {
		w.size, w.thresh, w.reduced = w.oldSize, w.oldThresh, false
	}
	w.suspected = false
}

// sample updates the round-trip time estimate (RFC 6298).
func (w *window) sample(rtt time.Duration) {
	if w.smoothed == 0 {
		w.smoothed, w.variation = rtt, rtt/2
		return
	}
	w.variation += (max(w.smoothed-rtt, rtt-w.smoothed) - w.variation) / 4
	w.smoothed += (rtt - w.smoothed) / 8
}

// The smallest probe delay, which allows for a peer that is scheduled late, and
// the delay before the first round trip was measured.
const (
	probeMin     = 4 * time.Millisecond
	probeInitial = 20 * time.Millisecond
)

// probeDelay returns how long to wait for an answer before a probe.
func (w *window) probeDelay() time.Duration {
	if w.smoothed == 0 {
		return probeInitial
	}
	return max(w.smoothed+4*w.variation, probeMin)
}
