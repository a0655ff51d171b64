// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"net/netip"
	"time"
)

// trial tells the table of destinations (worth) what SMC was to one connection. The
// zero value, that of an accepted connection, tells nothing.
type trial struct {
	worth *worth // nil: nothing is to be learnt
	to    netip.AddrPort
	try   bool // others to the same destination wait for the outcome: see choice

	// began is when the connection was ready, over SMC or within the host. It is zero
	// for TCP.
	began   time.Time
	setup   time.Duration // how long it took until then
	oneHost bool          // the peer's program has the other end
}

// ready notes that a connection which was begun at that time is ready.
func (t *trial) ready(begun time.Time) {
	t.began = time.Now()
	t.setup = t.began.Sub(begun)
}

// learn notes an outcome.
func (t *trial) learn(o outcome) {
	if t.worth != nil {
		t.worth.learn(time.Now(), t.to, o)
	}
}

// end notes the end of a connection over SMC that carried so many bytes. Of one within
// the host nobody knows how many it carried.
func (t *trial) end(carried uint64) {
	if t.oneHost {
		carried = littleBytes // as far as anybody knows
	}
	if !t.began.IsZero() {
		t.learn(ending(t.setup, time.Since(t.began), carried))
	}
}

// lasts counts the connection as useful once it has lasted too long to be short, if
// others wait for its outcome. It returns what ends the wait.
func (t *trial) lasts() (stop func() bool) {
	if !t.try {
		return func() bool { return false }
	}
	return time.AfterFunc(shortLife, func() { t.learn(useful) }).Stop
}
