// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net/netip"
	"slices"

	"smcr/smc"
	"smcr/userstack/wire"
)

// version1 is SMC version 1: RFC 7609.
type version1 struct{}

var _ version = (*version1)(nil)

func (*version1) number() uint8 { return wire.Version1 }

// propose implements version. Without a port PROPOSAL says that version 1 is not
// offered, and has no prefixes.
func (*version1) propose(p *wire.Proposal, h *Host) *Refusal {
	if h.NoPort != nil {
		p.TypeV1 = wire.ModeNone
		return h.NoPort
	}
	p.GID, p.MAC = h.Port.GID, h.Port.MAC
	p.IPv4, p.IPv6 = h.IPv4, h.IPv6
	return nil
}

func (*version1) accepted(*answer) (bool, *Refusal) { return false, nil }

func (*version1) path(*answer, bool) *Refusal { return nil }

func (*version1) choose(p *wire.Proposal, h *Host) *Refusal {
	if !sameSubnet(p, h.Subnets, h.Local) {
		return &Refusal{Code: smc.DiagPrefixMismatch}
	}
	return nil
}

// sameSubnet is the check of RFC 7609, section 3.5.1.2: the client's IPv4 subnet is one
// of the netdev's, or one of its IPv6 prefixes is.
func sameSubnet(p *wire.Proposal, subnets []netip.Prefix, local netip.Addr) bool {
	if local.Unmap().Is4() {
		return slices.ContainsFunc(subnets, func(own netip.Prefix) bool { return own.Addr().Is4() && smc.SamePrefix(own, p.IPv4) })
	}
	for _, q := range p.IPv6 {
		for _, own := range subnets {
			if own.Addr().Is6() && smc.SamePrefix(own, q) {
				return true
			}
		}
	}
	// Two link-local addresses of one link share the prefix fe80::/64, which
	// no proposal lists.
	return local.Is6() && local.IsLinkLocalUnicast() && len(p.IPv6) == 0 && !p.IPv4.IsValid()
}

func (*version1) port(p *wire.Proposal) (smc.GID, smc.MAC) { return p.GID, p.MAC }

func (*version1) confirmed(*answer) *Refusal { return nil }

func (*version1) accept(local wire.Endpoint) wire.CLC { return wire.Accept{Endpoint: local} }

func (*version1) acceptFirst(made GroupMade) wire.CLC {
	return wire.Accept{FirstContact: true, Endpoint: made.Local}
}

func (*version1) confirm(local wire.Endpoint) wire.CLC { return wire.Confirm{Endpoint: local} }

func (*version1) confirmFirst(made GroupMade) wire.CLC {
	return wire.Confirm{FirstContact: true, Endpoint: made.Local}
}

func (*version1) decline(d wire.Decline) wire.Decline { return d }

func (*version1) terms() *Terms { return nil }
