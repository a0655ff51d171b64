// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"smcr/smc"
	"smcr/userstack/conn"
)

// stateMatrix says for each state of section 4.8 of RFC 7609, reached by the
// steps in brackets (see TestStates), what each event does: the message sent;
// the state at once, when what was sent is delivered, 3 seconds later (the
// grace of a TCP connection that ended is over) and 2 minutes later (all
// timers are); and how the connection ended, if it did.
const stateMatrix = `
ACTIVE []
	shut: cdc+D; PEERCLOSEWAIT1 = = =; -
	close: cdc+C; PEERCLOSEWAIT1 = = CLOSED; timeout
	abort: cdc+A; PEERABORTWAIT = = CLOSED; aborted
	D: nothing; APPCLOSEWAIT1 = = =; -
	C: nothing; APPCLOSEWAIT1 = = =; -
	A: cdc+A; PROCESSABORT CLOSED = =; reset
	fin: nothing; ACTIVE = CLOSED =; reset
	rst: nothing; ACTIVE = PEERABORTWAIT CLOSED; reset
	fail: nothing; CLOSED = = =; reset
PEERCLOSEWAIT1 [shut ok]
	shut: nothing; PEERCLOSEWAIT1 = = =; -
	close: cdc+D+C; PEERCLOSEWAIT1 = = CLOSED; timeout
	abort: cdc+D+A; PEERABORTWAIT = = CLOSED; aborted
	D: nothing; PEERCLOSEWAIT2 = = =; -
	C: nothing; APPFINCLOSEWAIT = = =; -
	A: cdc+D+A; PROCESSABORT CLOSED = =; reset
	fin: nothing; PEERCLOSEWAIT1 = CLOSED =; reset
	rst: nothing; PEERCLOSEWAIT1 = PEERABORTWAIT CLOSED; reset
	fail: nothing; CLOSED = = =; reset
PEERCLOSEWAIT1 [close ok]
	shut: nothing; PEERCLOSEWAIT1 = = CLOSED; timeout
	close: nothing; PEERCLOSEWAIT1 = = CLOSED; timeout
	abort: cdc+C+A; PEERABORTWAIT = = CLOSED; aborted
	D: nothing; PEERCLOSEWAIT2 = = CLOSED; timeout
	C: nothing; CLOSED = = =; in order
	A: nothing; CLOSED = = =; reset
	fin: nothing; PEERCLOSEWAIT1 = CLOSED =; reset
	rst: nothing; PEERCLOSEWAIT1 = PEERABORTWAIT CLOSED; reset
	fail: nothing; CLOSED = = =; reset
PEERCLOSEWAIT2 [shut ok D]
	shut: nothing; PEERCLOSEWAIT2 = = =; -
	close: cdc+D+C; PEERCLOSEWAIT2 = = CLOSED; timeout
	abort: cdc+D+A; PEERABORTWAIT = = CLOSED; aborted
	D: nothing; PEERCLOSEWAIT2 = = =; -
	C: nothing; APPFINCLOSEWAIT = = =; -
	A: cdc+D+A; PROCESSABORT CLOSED = =; reset
	fin: nothing; PEERCLOSEWAIT2 = = =; -
	rst: nothing; PEERCLOSEWAIT2 = PEERABORTWAIT CLOSED; reset
	fail: nothing; CLOSED = = =; reset
PEERCLOSEWAIT2 [close ok D]
	shut: nothing; PEERCLOSEWAIT2 = = CLOSED; timeout
	close: nothing; PEERCLOSEWAIT2 = = CLOSED; timeout
	abort: cdc+C+A; PEERABORTWAIT = = CLOSED; aborted
	D: nothing; PEERCLOSEWAIT2 = = CLOSED; timeout
	C: nothing; CLOSED = = =; in order
	A: nothing; CLOSED = = =; reset
	fin: nothing; PEERCLOSEWAIT2 = = CLOSED; timeout
	rst: nothing; PEERCLOSEWAIT2 = PEERABORTWAIT CLOSED; reset
	fail: nothing; CLOSED = = =; reset
APPFINCLOSEWAIT [shut ok C]
	shut: nothing; APPFINCLOSEWAIT = = =; -
	close: cdc+D+C; APPFINCLOSEWAIT CLOSED = =; in order
	abort: cdc+D+A; PEERABORTWAIT CLOSED = =; aborted
	D: nothing; APPFINCLOSEWAIT = = =; -
	C: nothing; APPFINCLOSEWAIT = = =; -
	A: cdc+D+A; PROCESSABORT CLOSED = =; reset
	fin: nothing; APPFINCLOSEWAIT = = =; -
	rst: nothing; APPFINCLOSEWAIT = = =; -
	fail: nothing; CLOSED = = =; reset
APPCLOSEWAIT1 [D]
	shut: cdc+D; APPCLOSEWAIT2 = = =; -
	close: cdc+C; PEERFINCLOSEWAIT = = CLOSED; timeout
	abort: cdc+A; PEERABORTWAIT = = CLOSED; aborted
	D: nothing; APPCLOSEWAIT1 = = =; -
	C: nothing; APPCLOSEWAIT1 = = =; -
	A: cdc+A; PROCESSABORT CLOSED = =; reset
	fin: nothing; APPCLOSEWAIT1 = = =; -
	rst: nothing; APPCLOSEWAIT1 = PEERABORTWAIT CLOSED; reset
	fail: nothing; CLOSED = = =; reset
APPCLOSEWAIT1 [C]
	shut: cdc+D; APPCLOSEWAIT2 = = =; -
	close: cdc+C; APPCLOSEWAIT1 CLOSED = =; in order
	abort: cdc+A; PEERABORTWAIT CLOSED = =; aborted
	D: nothing; APPCLOSEWAIT1 = = =; -
	C: nothing; APPCLOSEWAIT1 = = =; -
	A: cdc+A; PROCESSABORT CLOSED = =; reset
	fin: nothing; APPCLOSEWAIT1 = = =; -
	rst: nothing; APPCLOSEWAIT1 = = =; -
	fail: nothing; CLOSED = = =; reset
APPCLOSEWAIT2 [D shut ok]
	shut: nothing; APPCLOSEWAIT2 = = =; -
	close: cdc+D+C; PEERFINCLOSEWAIT = = CLOSED; timeout
	abort: cdc+D+A; PEERABORTWAIT = = CLOSED; aborted
	D: nothing; APPCLOSEWAIT2 = = =; -
	C: nothing; APPCLOSEWAIT2 = = =; -
	A: cdc+D+A; PROCESSABORT CLOSED = =; reset
	fin: nothing; APPCLOSEWAIT2 = = =; -
	rst: nothing; APPCLOSEWAIT2 = PEERABORTWAIT CLOSED; reset
	fail: nothing; CLOSED = = =; reset
APPCLOSEWAIT2 [D shut ok C]
	shut: nothing; APPCLOSEWAIT2 = = =; -
	close: cdc+D+C; APPCLOSEWAIT2 CLOSED = =; in order
	abort: cdc+D+A; PEERABORTWAIT CLOSED = =; aborted
	D: nothing; APPCLOSEWAIT2 = = =; -
	C: nothing; APPCLOSEWAIT2 = = =; -
	A: cdc+D+A; PROCESSABORT CLOSED = =; reset
	fin: nothing; APPCLOSEWAIT2 = = =; -
	rst: nothing; APPCLOSEWAIT2 = = =; -
	fail: nothing; CLOSED = = =; reset
PEERFINCLOSEWAIT [D close ok]
	shut: nothing; PEERFINCLOSEWAIT = = CLOSED; timeout
	close: nothing; PEERFINCLOSEWAIT = = CLOSED; timeout
	abort: cdc+C+A; PEERABORTWAIT = = CLOSED; aborted
	D: nothing; PEERFINCLOSEWAIT = = CLOSED; timeout
	C: nothing; CLOSED = = =; in order
	A: nothing; CLOSED = = =; reset
	fin: nothing; PEERFINCLOSEWAIT = = CLOSED; timeout
	rst: nothing; PEERFINCLOSEWAIT = PEERABORTWAIT CLOSED; reset
	fail: nothing; CLOSED = = =; reset
PEERABORTWAIT [abort ok]
	shut: nothing; PEERABORTWAIT = = CLOSED; aborted
	close: nothing; PEERABORTWAIT = = CLOSED; aborted
	abort: nothing; PEERABORTWAIT = = CLOSED; aborted
	D: nothing; PEERABORTWAIT = = CLOSED; aborted
	C: nothing; CLOSED = = =; aborted
	A: nothing; CLOSED = = =; aborted
	fin: nothing; PEERABORTWAIT = = CLOSED; aborted
	rst: nothing; PEERABORTWAIT = = CLOSED; aborted
	fail: nothing; CLOSED = = =; aborted
PROCESSABORT [A]
	shut: nothing; PROCESSABORT CLOSED = =; reset
	close: nothing; PROCESSABORT CLOSED = =; reset
	abort: nothing; PROCESSABORT CLOSED = =; reset
	D: nothing; PROCESSABORT CLOSED = =; reset
	C: nothing; PROCESSABORT CLOSED = =; reset
	A: nothing; PROCESSABORT CLOSED = =; reset
	fin: nothing; PROCESSABORT CLOSED = =; reset
	rst: nothing; PROCESSABORT CLOSED = =; reset
	fail: nothing; CLOSED = = =; reset
`

// TestStateMatrix tries every event in every state.
func TestStateMatrix(t *testing.T) {
	var where, steps string
	states := 0
	for line := range strings.Lines(strings.TrimSpace(stateMatrix)) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "\t") {
			where, steps, _ = strings.Cut(strings.TrimSuffix(line, "]"), " [")
			states++
			continue
		}
		ev, want, _ := strings.Cut(strings.TrimSpace(line), ": ")
		for _, role := range []smc.Role{smc.Server, smc.Client} {
			r := newRig(t, role, noTest)
			r.open()
			for _, e := range strings.Fields(steps) {
				r.do(e)
			}
			r.acts = nil
			if got := r.c.State().String(); got != where {
				t.Fatalf("%s: state %s, want %s", steps, got, where)
			}
			r.do(ev)
			msg := r.sent()
			if msg == "" {
				msg = "nothing"
			}
			var chain []string
			last := ""
			for _, wait := range []string{"0s", "ok", "3s", "2m"} {
				r.do(wait)
				s := r.c.State().String()
				if chain = append(chain, s); s == last {
					chain[len(chain)-1] = "="
				}
				last = s
			}
			end := "-"
			switch {
			case len(r.close) > 1:
				end = "twice"
			case len(r.close) == 0:
			case r.close[0] == nil:
				end = "in order"
			case errors.Is(r.close[0], conn.ErrCloseTimeout):
				end = "timeout"
			case errors.Is(r.close[0], conn.ErrAborted):
				end = "aborted"
			case errors.Is(r.close[0], conn.ErrReset):
				end = "reset"
			}
			if got := fmt.Sprintf("%s; %s; %s", msg, strings.Join(chain, " "), end); got != want {
				t.Errorf("%s: %s [%s], %s\n\t%s, want\n\t%s", role, where, steps, ev, got, want)
			}
		}
	}
	if states != 13 {
		t.Errorf("%d states in the table", states)
	}
}
