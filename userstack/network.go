// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net/netip"

	"smcr/userstack/internal/inside"
)

// ErrNotOnLink means that SMC-R does not reach a destination: it is this host
// itself, there is no route to it, or it is behind a router and there is no
// version 2 of SMC to speak with it.
var ErrNotOnLink = errors.New("userstack: destination is not on a directly attached network")

// What the stack asks about its host. Simulations have a network of their own.
type (
	network      = inside.Network
	route        = inside.Route
	netDev       = inside.NetDev
	optionMarker = inside.OptionMarker
)

// samePrefix reports whether a and b, an address each with its prefix
// length, are in the same subnet by RFC 7609's rule: the same subnet number
// and the same prefix length.
func samePrefix(a, b netip.Prefix) bool {
	return a.IsValid() && b.IsValid() && a.Bits() == b.Bits() && a.Masked() == b.Masked()
}
