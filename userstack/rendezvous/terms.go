// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net/netip"

	"smcr/smc"
	"smcr/userstack/wire"
)

// What a link group of version 2 may have, in the bounds of Linux.
const (
	MinConnsV2 = 16  // least value of the maximum number of connections
	MaxConnsV2 = 255 // largest value of the maximum number of connections
	MaxLinksV2 = 2   // links
)

// Terms are what both sides agree on for a link group of version 2.
type Terms struct {
	// EID is the enterprise ID that both have.
	EID wire.EID
	// Local is this host's address with its prefix length: the GIDs of the devices are
	// addresses in this subnet.
	Local netip.Prefix
	// Routed says that the peer's GID is behind a router.
	Routed bool
	// Release is the release of version 2.
	Release uint8
	// MaxConns and MaxLinks are the most connections and links.
	MaxConns, MaxLinks uint8
	// Peer is what the peer tells of itself. A server learns it with CONFIRM.
	Peer PeerSystem
}

// PeerSystem is what a peer of version 2 tells of itself.
type PeerSystem struct {
	OS      smc.OS
	Release uint8
	Host    string
	// UDPPort is the UDP port from which the queue pair of the first link sends, with a
	// stack of this module; 0 otherwise.
	UDPPort uint16
}

// Version returns the version of SMC: 1 for no terms.
func (t *Terms) Version() uint8 {
	if t == nil {
		return wire.Version1
	}
	return wire.Version2
}

// Subnet returns where the GIDs of the devices are: the zero Prefix for the GIDs of
// version 1.
func (t *Terms) Subnet() netip.Prefix {
	if t == nil {
		return netip.Prefix{}
	}
	return t.Local
}

// PeerOurs reports whether the peer is a stack of this module. A server learns it with CONFIRM.
func (t *Terms) PeerOurs() bool { return t.PeerUDPPort() != 0 }

// PeerUDPPort returns the UDP port from which the peer's queue pair of the first link
// sends, or 0 if the peer did not tell it.
func (t *Terms) PeerUDPPort() uint16 {
	if t == nil {
		return 0
	}
	return t.Peer.UDPPort
}
