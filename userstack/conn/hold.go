// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"
)

// hold decides whether a small send waits for more data (RFC 7609, section 4.5.2).
// Nothing waits as long as no message of the connection is outstanding. While one
// is, less than Config.Autocork bytes wait until it is delivered, and for the data
// that is written in the meantime. Linux does the same. That costs no time, since the
// peer is busy with the message before, and needs no timer, since completions come.
//
//	setting     | messages outstanding | waiting data             | then
//	------------+----------------------+--------------------------+------------------
//	any         | any                  | pushed, urgent, repeated | goes out
//	corked      | any                  | < half the send buffer   | waits, corkDelay
//	            |                      |                          | at the most
//	no delay    | any                  | any                      | goes out
//	-           | none                 | any                      | goes out
//	-           | one or more          | <= Autocork and half the | waits for the
//	            |                      | send buffer              | completion
//
// No delay, as the RFC describes it, is more than Linux knows. Data that two
// outstanding messages leave no room for waits in any case.
type hold struct {
	corked  bool  // small sends wait for more
	noDelay bool  // they do not even wait for the message before
	push    bool  // what waits now does not
	timer   timer // the end of a corked wait
}

// corkDelay is how long a corked connection holds data back, as Linux does.
const corkDelay = 250 * time.Millisecond

// waits reports whether queued bytes, which could be sent, wait for more. half is
// half of the send buffer, outstanding the number of messages not delivered.
func (h *hold) waits(queued, half, outstanding, autocork int) bool {
	if h.push {
		return false
	}
	if h.corked && queued < half {
		return true
	}
	return !h.noDelay && outstanding > 0 && queued <= min(autocork, half)
}

// empty takes note that all data has gone out.
func (h *hold) empty() {
	h.push = false
	h.timer.stop()
}
