// SPDX-License-Identifier: Apache-2.0

package smc

// Role is the side of a host in a rendezvous and in a link group: the host that
// accepted the TCP connection of the first contact is the server (RFC 7609,
// section 3.3). The numbers are those of SMC_NLA_LGR_R_ROLE and of the kernel's
// fallback statistics.
type Role uint8

// Client is the role of the host that connected.
const Client Role = 0

// Server is the role of the host that accepted.
const Server Role = 1

// String returns "client" or "server".
func (r Role) String() string { return name("Role", r, "client", "server") }

// Short returns CLNT or SERV, as listings and the kernel's tools print it.
func (r Role) Short() string { return name("Role", r, "CLNT", "SERV") }

// GroupType says how redundant the links of a link group are (RFC 7609, section
// 2.2). The numbers are those of SMC_NLA_LGR_R_TYPE.
type GroupType uint8

// GroupNone is a link group without an active link.
const GroupNone GroupType = 0

// GroupSingle is a link group with one link.
const GroupSingle GroupType = 1

// GroupSymmetric is a link group with two or more links that share no port.
const GroupSymmetric GroupType = 2

// GroupAsymmetricPeer is a link group whose links share the peer's port.
const GroupAsymmetricPeer GroupType = 3

// GroupAsymmetricLocal is a link group whose links share the local port.
const GroupAsymmetricLocal GroupType = 4

// String returns NONE, SINGLE, SYM, ASYMP or ASYML, as the kernel's tools print
// it.
func (t GroupType) String() string {
	return name("GroupType", t, "NONE", "SINGLE", "SYM", "ASYMP", "ASYML")
}

// LinkState is the state of a link. The numbers are those of
// SMC_NLA_LINK_STATE.
type LinkState uint32

// LinkUnused is a place for a link that has none.
const LinkUnused LinkState = 0

// LinkInactive is the state of a link that failed or is being deleted.
const LinkInactive LinkState = 1

// LinkActivating is the state of a link that is not confirmed yet.
const LinkActivating LinkState = 2

// LinkActive is the state of a link that carries connections.
const LinkActive LinkState = 3

// String returns UNUSED, INACTIVE, ACTIVATING or ACTIVE, as the kernel's tools
// print it.
func (s LinkState) String() string {
	return name("LinkState", s, "UNUSED", "INACTIVE", "ACTIVATING", "ACTIVE")
}
