// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"testing"

	"smcr/userstack/rendezvous"
)

// TestHopLimits: packets to a neighbour pass no router. If there is a router, they may
// pass it, and the IP stack finds the route without the MAC address of the peer.
func TestHopLimits(t *testing.T) {
	for _, tt := range []struct {
		terms *rendezvous.Terms
		hops  uint8
		dmac  int
	}{
		{nil, 1, 6},
		{&rendezvous.Terms{}, 1, 6},
		{&rendezvous.Terms{Routed: true}, 64, 0},
	} {
		l := &link{terms: tt.terms}
		if p := l.path(); p.HopLimit != tt.hops || len(p.DMAC) != tt.dmac {
			t.Errorf("terms %+v: path %+v", tt.terms, p)
		}
	}
}
