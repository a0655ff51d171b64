// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net/netip"

	"smcr/smc"
	"smcr/userstack/network"
)

// tcpOption is the part of a stack that announces SMC in the TCP handshake, and finds out
// whether a peer did. It does not change after New, so it has no lock.
type tcpOption struct {
	marker network.OptionMarker // nil: not permitted
	err    error                // why marker is nil
	assume []netip.Prefix       // peers that speak SMC where the handshake cannot tell
}

// assumed reports whether remote is in the list of peers that speak SMC. The list counts only
// if the TCP handshake cannot tell.
func (o *tcpOption) assumed(remote netip.Addr) bool {
	if o.marker != nil {
		return false
	}
	remote = remote.Unmap().WithZone("")
	for _, p := range o.assume {
		if p.Contains(remote) {
			return true
		}
	}
	return false
}

// notAnnounced is the reason for TCP if the peer did not announce SMC.
func (o *tcpOption) notAnnounced() *DeclineError {
	if o.marker == nil {
		return &DeclineError{Code: smc.DiagConfig, Err: ErrNoOption, uncounted: true}
	}
	return &DeclineError{Code: ReasonPeerNoSMC, uncounted: true}
}
