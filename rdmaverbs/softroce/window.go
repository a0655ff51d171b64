// SPDX-License-Identifier: Apache-2.0

package softroce

import "time"

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

// roundTrip measures the time from a request packet to its acknowledgement, of
// one packet at a time, and keeps the mean and the variation (RFC 6298).
type roundTrip struct {
	psn       psn
	at        instant       // when packet psn was sent; never if none is timed
	smoothed  time.Duration // zero before the first measurement
	variation time.Duration
}

func newRoundTrip() roundTrip { return roundTrip{at: never} }

// begin times the packet with PSN p, which is sent now for the first time, unless
// another is timed.
func (t *roundTrip) begin(now instant, p psn) {
	if t.at == never {
		t.psn, t.at = p, now
	}
}

// cancel forgets the packet that is timed.
func (t *roundTrip) cancel() { t.at = never }

// acknowledged takes the time if the packet that is timed is acknowledged. una
// is the oldest PSN that is not.
func (t *roundTrip) acknowledged(now instant, una psn) {
	if t.at != never && t.psn.before(una) {
		t.sample(now.since(t.at))
		t.at = never
	}
}

// sample updates the mean and the variation.
func (t *roundTrip) sample(rtt time.Duration) {
	if t.smoothed == 0 {
		t.smoothed, t.variation = rtt, rtt/2
		return
	}
	t.variation += (max(t.smoothed-rtt, rtt-t.smoothed) - t.variation) / 4
	t.smoothed += (rtt - t.smoothed) / 8
}

// probeDelay returns how long to wait for an answer before the first probe.
func (t *roundTrip) probeDelay() time.Duration {
	if t.smoothed == 0 {
		return probeInitial
	}
	return max(t.smoothed+4*t.variation, probeMin)
}
