// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/netip"
	"testing"
)

// A traffic is a number of connections between both sides, with the server on either
// side.
type traffic struct {
	version  int   // version of SMC-R
	sizes    []int // bytes of connections that are made one after another
	parallel int   // number of connections at the same time
	each     int   // bytes of each of these
	short    int   // number of connections of 500 bytes, one after another
}

// resets is the number of connections that end with a reset, and of connections after
// them.
const resets = 5

// conns returns the number of connections in each direction.
func (x traffic) conns() int { return 1 + len(x.sizes) + x.parallel + x.short + 2*resets }

// flow makes the connections in both directions. All connections of one direction must be
// on one link group, and none may use TCP.
func (x traffic) flow(t *testing.T, kernel, user *side) {
	for i, d := range directions(kernel, user) {
		t.Run(d.name, func(t *testing.T) {
			at := func(port int) netip.AddrPort {
				return netip.AddrPortFrom(netip.MustParseAddr(d.server.addr), uint16(5000+100*i+port))
			}
			t.Run("One", func(t *testing.T) { testOne(t, d.client, d.server, at(1), x.version) })
			if t.Failed() {
				return
			}
			stop := d.server.start(t, "listening", "serve", at(2).String())
			for _, size := range x.sizes {
				t.Run(fmt.Sprint("Bytes", size), func(t *testing.T) {
					d.client.connect(t, "echo", at(2), "-bytes", fmt.Sprint(size))
				})
			}
			t.Run("Parallel", func(t *testing.T) {
				d.client.connect(t, "echo", at(2), "-n", fmt.Sprint(x.parallel), "-parallel", "-bytes", fmt.Sprint(x.each))
			})
			t.Run("Short", func(t *testing.T) {
				d.client.connect(t, "echo", at(2), "-n", fmt.Sprint(x.short), "-bytes", "500")
			})
			t.Run("Reset", func(t *testing.T) {
				d.client.connect(t, "reset", at(2), "-n", fmt.Sprint(resets))
				// The link group continues.
				d.client.connect(t, "echo", at(2), "-n", fmt.Sprint(resets))
			})
			t.Logf("server: %s", stop().Stdout)
			for _, s := range []*side{kernel, user} {
				eventually(t, s.backend+": no connection is left", func() bool { return len(active(t, s)) == 0 })
				// All connections were on one link group.
				if n := len(query[linkGroup](t, s, "linkgroup", "list")); n != i+1 {
					t.Errorf("%s: %d link groups, want one for each direction so far", s.backend, n)
				}
			}
		})
	}
	t.Run("Counters", func(t *testing.T) {
		for _, s := range []*side{kernel, user} {
			got, want := stats(t, s), counters{}
			if x.version == 1 {
				want.SMCR.ClientV1, want.SMCR.ServerV1 = x.conns(), x.conns()
			} else {
				want.SMCR.ClientV2, want.SMCR.ServerV2 = x.conns(), x.conns()
			}
			if got != want {
				t.Errorf("%s: %+v, want %d connections of version %d in each direction, and no fallback", s.backend, got, x.conns(), x.version)
			}
		}
	})
}

// testEnd stops the user-space stack: the kernel's link groups end with it.
func testEnd(t *testing.T, kernel *side) {
	kernel.stop(t, kernel.stack)
	groupsGone(t, kernel)
}
