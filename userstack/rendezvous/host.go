// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net/netip"

	"smcr/smc"
	"smcr/userstack/wire"
)

// Host is what this host has for a connection.
type Host struct {
	// PeerID names this host in the messages. Zero leaves what the machine knows.
	PeerID smc.PeerID
	// Local is this end of the TCP connection.
	Local netip.Addr
	// Subnets are the addresses of the netdev that leads to the peer, with their prefix
	// lengths.
	Subnets []netip.Prefix
	// Port is the port that a client offers in version 1. If there is none, NoPort says
	// why, and DECLINE tells it.
	Port   Port
	NoPort *Refusal
	// IPv4 is the client's subnet, or IPv6 its prefixes.
	IPv4 netip.Prefix
	IPv6 []netip.Prefix

	// EIDs are the enterprise IDs of this host, in order; none without version 2.
	EIDs []wire.EID
	// PortV2 is what version 2 can use. If there is nothing, NoPortV2 says why.
	PortV2   PortV2
	NoPortV2 *Refusal
	// Release, MaxConns and MaxLinks are the most that this host takes in version 2.
	Release, MaxConns, MaxLinks uint8
	// Routed says that a router is on the way to Survey.PeerGID. If that cannot be found
	// out, NoPath says why.
	Routed bool
	NoPath *Refusal
}

// Port is the RoCE port that a PROPOSAL names.
type Port struct {
	GID smc.GID
	MAC smc.MAC
}

// PortV2 is what version 2 can use.
type PortV2 struct {
	// Port is zero on a server.
	Port
	// Local is this host's address with its prefix length: the GIDs of the devices are
	// addresses in this subnet.
	Local netip.Prefix
	// GIDs are those of the devices, in the order of preference.
	GIDs []smc.GID
}
