// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// profile is what the version and the operating system of the peer change. It is made
// when the peer is known. No other code in this package looks at the version or the
// operating system.
//
//	field          | version 1 | version 2 | Linux
//	---------------+-----------+-----------+-----------------------------------------
//	layout         | V1        | V2        | V2 in the byte order of the peer
//	extended       | no        | yes       |
//	portByGID      | no        | yes       |
//	leastLinks     | 2         | 1         |
//	rkeysPerDelete | 8         | 9         |
//	slowLLC        | yes       |           | yes
//	pauses         | yes       |           | yes, if it is not of this module
//	lateDelete     |           |           | yes
//	rkeyFirst      |           |           | yes
//	abruptDelete   | yes       |           | yes
//	holdsBack      | yes       |           | yes
//	otherSubnets   | no        | if the peer is of this module, and no router is on the way
//	conns          | LosesCursor |         | LosesCursor; StopsAtUrgent from release 1 of version 2
type profile struct {
	// layout is the layout of LLC messages until a message of the peer has another.
	layout wire.LLCLayout
	// extended: ADD LINK carries the RTokens, so that no CONTINUATION follows, a
	// client reports a new device with REQUEST ADD LINK, and DELETE RKEY has the
	// format of version 2.
	extended bool
	// portByGID: the GID, an IP address, tells ports apart without the MAC
	// address. Proposals of Linux that offer version 2 alone come without one.
	portByGID bool
	// leastLinks is the least number of links that CONFIRM LINK may agree on.
	leastLinks int
	// rkeysPerDelete is how many RKeys fit into one DELETE RKEY. In version 2 the
	// message then has the same length as the others.
	rkeysPerDelete int
	// slowLLC: the peer may be Linux, which cannot be seen in version 1. Linux may take
	// longer for an exchange of links than any timer allows, and drops requests. So the
	// last link may work although an answer is missing: TEST LINK tells.
	slowLLC bool
	// pauses: the peer may be Linux, which drops ADD LINK and DELETE LINK, or rejects ADD LINK, if it
	// comes while Linux still ends the exchange of links before.
	pauses bool
	// lateDelete: the server may take minutes to delete a link, also if it has others.
	lateDelete bool
	// rkeyFirst: a client answers ADD LINK only after its CONFIRM RKEY is
	// answered, and leaves the connection to TCP if that is refused.
	rkeyFirst bool
	// abruptDelete: the peer may be Linux, which cannot be seen in version 1. When a link is
	// deleted that works, Linux moves its connections while writes of its own are under way
	// on the link. If these still complete, it counts their bytes twice, and later overwrites
	// data in its send buffer that it has not sent. So this side closes such a link first.
	abruptDelete bool
	// holdsBack: the peer may be Linux, which holds back data while a lost link keeps its
	// messages. See conn.Protocol.Nudge.
	holdsBack bool
	// otherSubnets: a link may be in another subnet than the TCP connections, see
	// Device.Subnet. Linux looks for a device in their subnet, and would put the link on a device
	// from which the other subnet cannot be reached.
	otherSubnets bool
	// conns is the profile for the connections.
	conns conn.Peer
}

func newProfile(cfg *Config) profile {
	linux := cfg.PeerOS == smc.OSLinux
	p := profile{
		layout:         wire.LLCLayoutFor(cfg.Version, cfg.PeerOS),
		leastLinks:     2,
		rkeysPerDelete: len(wire.DeleteRKey{}.RKeys),
		slowLLC:        linux || cfg.Version < wire.Version2,
		lateDelete:     linux,
		rkeyFirst:      linux,
	}
	p.pauses = p.slowLLC && !cfg.PeerOurs
	// Linux cannot be seen in version 1.
	p.conns.LosesCursor, p.holdsBack = p.slowLLC, p.slowLLC
	p.abruptDelete = linux || cfg.Version < wire.Version2 && cfg.PeerOS == 0
	if cfg.Version >= wire.Version2 {
		p.extended, p.portByGID, p.leastLinks, p.rkeysPerDelete = true, true, 1, 9
		p.otherSubnets = cfg.PeerOurs && !cfg.Routed
		// Linux 6.7 has release 1.
		p.conns.StopsAtUrgent = linux && cfg.PeerRelease >= wire.ReleaseV21
	}
	return p
}
