// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"net/netip"
	"time"
)

// trial records in the table of destinations (worth) whether SMC was useful for one
// connection. The zero value, that of an accepted connection, records nothing.
type trial struct {
	worth *worth // nil: nothing is recorded
	to    netip.AddrPort
	try   bool // see choice.try

	// began is when the connection was ready, over SMC or within the host. It is zero
	// for TCP.
	began   time.Time
	setup   time.Duration // from the call of connect() until began
	oneHost bool          // a program of this host has the other end of the pair
}

// ready records that the connection, whose connect() began at begun, is ready.
func (t *trial) ready(begun time.Time) {
	t.began = time.Now()
	t.setup = t.began.Sub(begun)
}

// learn records an outcome.
func (t *trial) learn(o outcome) {
	if t.worth != nil {
		t.worth.learn(time.Now(), t.to, o)
	}
}

// end records the end of a connection over SMC that carried this number of bytes, or of
// a connection within the host, for which the number is not known. It does nothing for TCP.
func (t *trial) end(carried uint64) {
	if t.oneHost {
		carried = littleBytes // the true number is not known
	}
	if !t.began.IsZero() {
		t.learn(ending(t.setup, time.Since(t.began), carried))
	}
}

// lasts starts a timer that records the outcome useful when the connection is open too
// long to be short, if others wait for its outcome. stop stops the timer.
func (t *trial) lasts() (stop func() bool) {
	if !t.try {
		return func() bool { return false }
	}
	// No guard: learn only counts.
	return time.AfterFunc(shortLife, func() { t.learn(useful) }).Stop
}
