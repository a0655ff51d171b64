// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"time"
)

// Timers of a group, in addition to the timers of its links and connections.
const (
	timerFirst     = iota // the peer's next message of the first contact
	timerFirstSend        // the acknowledgement of a message of the first contact
	timerExchange         // the peer's next message of an ADD or DELETE LINK exchange
	timerProof            // a sign of the peer, for connections that wait for one
	timerRKey             // the peer's answer to CONFIRM or DELETE RKEY
	timerRKeyWait         // start of an RKey exchange
	timerPeerRK           // the peer's CONFIRM RKEY CONTINUATION
	timerRetry            // another try of CONFIRM RKEY
	timerAdd              // another try to add a link
	timerPause            // the next exchange of links, behind the end of the last one
	timerDie              // end of termination
	timerIdle
	timerConn // earliest timer of a connection, or earlier
	numTimers
)

// timers are the times of a group at which something is to be done, zero if nothing.
type timers [numTimers]time.Time

func due(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

func (t *timers) set(timer int, at time.Time) { t[timer] = at }

// setConn makes Tick look at the connections at the given time.
func (t *timers) setConn(at time.Time) {
	if t := &t[timerConn]; t.IsZero() || at.Before(*t) {
		*t = at
	}
}

func (t *timers) stop(timer int) { t[timer] = time.Time{} }
