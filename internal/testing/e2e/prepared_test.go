// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"strings"
	"testing"
)

// TestPreparedSockets: a user passes the stack sockets whose options, filters, signals or other
// readers and writers make the handshake go wrong. Each harms that connection alone, which soon
// has an outcome.
func TestPreparedSockets(t *testing.T) {
	ofLauncher(t, "nobody passes the stack a socket")
	l := newLab(t, "setpriv")
	stack := l.serve(l.A)
	other := l.serve(l.B)
	addr := l.B.Addr() + ":5001"
	server, before := l.busy(addr)
	// Each has a user of its own, because what a handshake shows of a peer is remembered for
	// the user.
	const firstUser = 65000
	for i := 0; ; i++ {
		out, err := l.asUser(strconv.Itoa(firstUser+i), bin("hostile"), "prepared", addr, strconv.Itoa(i), strconv.Itoa(stack.Pid()))
		if err != nil || strings.Contains(out, "no answer") {
			t.Errorf("want an outcome: %v\n%s", err, out)
		}
		if out == "no more\n" {
			break
		}
		t.Logf("%s", out)
	}
	for _, uid := range []string{"0", otherUser, hostileUser} {
		l.exchanges(uid, addr)
	}
	endUndisturbed(t, before)
	terminate(t, server)
	terminate(t, stack)
	terminate(t, other)
}
