// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"
	"strings"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestDataDoesNotWaitForLLC: a CDC message is processed when it arrives, and data goes out,
// while an exchange of links is under way and LLC messages of this side wait for room in the
// send queue (RFC 7609, sections 3.5.5.1.1 and A.4).
func TestDataDoesNotWaitForLLC(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, noTest)
		r.open()
		r.g.DeviceUp(r.s.now, device(role, 1))
		if role == smc.Client {
			r.recv(r.link, wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 3, MTU: 3})
		}
		r.done()
		if r.g.llc.ex.kind != exAdd {
			t.Fatalf("%s: no exchange is under way", role)
		}
		r.acts = nil
		r.send(1000)
		if got := r.sent(); got != "cdc" {
			t.Errorf("%s: sent %q during the exchange, want data", role, got)
		}
		r.done()

		// The replies to more TEST LINK than the send queue takes.
		for range len(r.link.sq) + 8 {
			r.recv(r.link, wire.TestLink{})
		}
		if len(r.link.llcq) == 0 {
			t.Fatalf("%s: no LLC message waits", role)
		}
		r.acts = nil
		r.give(100, 0)
		if a, _ := r.c.RecvData(); len(a) != 100 {
			t.Errorf("%s: %d bytes can be read, want 100", role, len(a))
		}
		if !slices.ContainsFunc(r.acts, func(a Action) bool { return a.Kind == ActWakeRead && a.Conn == r.c }) {
			t.Errorf("%s: the program is not woken", role)
		}

		// There is room again: the LLC messages and, behind them, new data.
		r.send(1000)
		if got := r.sent(); got != "" {
			t.Errorf("%s: sent %q without room", role, got)
		}
		r.done()
		if got, want := r.sent(), strings.Repeat("re:test-link ", 8)+"cdc"; !strings.HasSuffix(got, want) {
			t.Errorf("%s: sent %q, want %q at its end", role, got, want)
		}
	}
}
