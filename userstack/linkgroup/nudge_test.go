// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestNudge: from the failure of the link that the peer sends over until the server has deleted
// it, a client makes a server that may be Linux send what it holds back. No other connection
// and no other peer needs that.
func TestNudge(t *testing.T) {
	for _, tt := range []struct {
		name  string
		linux bool
		fails uint8 // link
		want  bool
	}{
		{"the peer's link", true, 1, true},
		{"another link", true, 2, false},
		{"another system", false, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, smc.Client, func(c *Config) {
				noTest(c)
				c.Devices = append(c.Devices, device(smc.Client, 1))
			})
			r.two(nil)
			if !tt.linux { // which version 1 cannot tell
				r.g.profile.holdsBack = false
			}
			r.g.LinkFailed(r.s.now, r.g.links.byID(tt.fails), errAny)
			r.done()
			r.acts = nil
			for range 20 {
				r.wait(100 * time.Millisecond)
				r.done()
			}
			if got := r.sent(); strings.Contains(got, "cdc+R") != tt.want {
				t.Errorf("sent %q, want requests for the cursor: %t", got, tt.want)
			}
			r.recv(r.g.links.best(nil), wire.DeleteLink{LinkNum: tt.fails, Reason: wire.DeleteLinkLostPath})
			r.done()
			r.acts = nil
			r.wait(3 * time.Second)
			if got := r.sent(); got != "" || len(r.g.links.list) != 1 {
				t.Errorf("%d links, sent %q after the deletion", len(r.g.links.list), got)
			}
		})
	}
}
