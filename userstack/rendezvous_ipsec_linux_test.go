// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net/netip"
	"testing"

	"smcr/smc"
	"smcr/userstack/network"
)

// secured is a Network in which IPsec must protect all connections.
type secured struct{ network.Network }

func (secured) Secured(_, _ netip.AddrPort) (bool, error) { return true, nil }

// TestIPsec: connections that IPsec must protect stay TCP, if either side has such a
// policy (RFC 7609, section 5.5).
func TestIPsec(t *testing.T) {
	protect := func(c *Config) { c.network = secured{c.network} }
	for _, tt := range []struct {
		name string
		cfg  bedConfig
	}{
		{"Client", bedConfig{client: protect}},
		{"Server", bedConfig{server: protect}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, tt.cfg)
				ct, st := b.tcp()
				_, _, cerr, serr := b.rendezvous(ct, st)
				wantDecline(t, "client", cerr, smc.DiagIPsec, tt.cfg.client == nil)
				wantDecline(t, "server", serr, smc.DiagIPsec, tt.cfg.server == nil)
				b.stillTCP(ct, st)
			})
		})
	}
}
