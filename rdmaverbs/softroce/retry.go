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

// retryCounters has the retry counter and the RNR NAK retry counter of a
// requester (InfiniBand specification, volume 1, section 9.9.2).
type retryCounters struct {
	limit, rnrLimit uint8
	left, rnrLeft   uint8
}

func newRetryCounters(limit, rnrLimit uint8) retryCounters {
	return retryCounters{limit: limit, rnrLimit: rnrLimit, left: limit, rnrLeft: rnrLimit}
}

// reset restores both counters, because a request was acknowledged.
func (c *retryCounters) reset() { c.left, c.rnrLeft = c.limit, c.rnrLimit }

// take counts a retry. It reports false if none was left.
func (c *retryCounters) take() bool {
	if c.left == 0 {
		return false
	}
	c.left--
	return true
}

// takeRNR counts a retry after an RNR NAK. It reports false if none was left.
func (c *retryCounters) takeRNR() bool {
	switch {
	case c.rnrLimit == rnrInfinite:
		return true
	case c.rnrLeft == 0:
		return false
	}
	c.rnrLeft--
	return true
}

// requestTimers has the timers of a requester. Each is never while it does not
// run.
type requestTimers struct {
	timeout  time.Duration // local ACK timeout, 0 for none
	ackAt    instant       // the local ACK timeout
	probeAt  instant       // the next probe
	resumeAt instant       // the end of the delay after an RNR NAK
}

func newRequestTimers(timeout time.Duration) requestTimers {
	return requestTimers{timeout: timeout, ackAt: never, probeAt: never, resumeAt: never}
}

// deadline returns the time of the earliest timer, or never.
func (t *requestTimers) deadline() instant { return min(t.ackAt, t.probeAt, t.resumeAt) }

// sent starts the timers that wait for an acknowledgement, unless they run.
func (t *requestTimers) sent(now instant, probeDelay time.Duration) {
	if t.ackAt == never && t.timeout > 0 {
		t.ackAt = now.add(t.timeout)
	}
	if t.probeAt == never {
		t.armProbe(now, probeDelay)
	}
}

// armProbe restarts the probe timer if its delay is shorter than the local ACK
// timeout, and stops it otherwise. If the last packets of a message are lost,
// the peer sends no NAK. The probe finds this long before the local ACK
// timeout, which is usually 0.1 s or more. A probe does not count as a retry.
func (t *requestTimers) armProbe(now instant, delay time.Duration) {
	if t.timeout > 0 && delay >= t.timeout || delay > probeMax {
		t.probeAt = never
		return
	}
	t.probeAt = now.add(delay)
}

// stopACK stops the timers that wait for an acknowledgement.
func (t *requestTimers) stopACK() { t.ackAt, t.probeAt = never, never }

// stop stops all timers.
func (t *requestTimers) stop() { t.ackAt, t.probeAt, t.resumeAt = never, never, never }

// probe is the packet at una when it is sent once more before the local ACK
// timeout, to find out whether it was lost.
type probe struct {
	due       bool // the next fill sends it
	sent      bool // it was sent with PSN psn and has no answer yet
	psn       psn
	doublings uint // of the delay
}

// The smallest probe delay, which allows for a peer that is scheduled late, the
// delay before the first round trip was measured, and the largest delay if there
// is no local ACK timeout.
const (
	probeMin     = 4 * time.Millisecond
	probeInitial = 20 * time.Millisecond
	probeMax     = 4 * time.Second
)

// cancel forgets the probe. Its delay remains.
func (p *probe) cancel() { p.due, p.sent = false, false }

// answeredBy reports whether an ACK with PSN at acknowledges the probe and no
// packet after it.
func (p *probe) answeredBy(at psn) bool { return p.sent && at == p.psn }

// delay doubles first, the delay of the first probe, for each probe since.
func (p *probe) delay(first time.Duration) time.Duration { return first << min(p.doublings, 16) }
