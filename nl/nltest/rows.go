// SPDX-License-Identifier: Apache-2.0

package nltest

import (
	"encoding/binary"
	"net/netip"

	"smcr/nl"
	"smcr/smc"
)

// Rows returns the state of a busy stack: n link groups with one link each, and n
// connections, 200 in a link group. The same n gives the same state.
func Rows(n int) State {
	s := SampleState()
	s.LinkGroups = make([]nl.LinkGroup, n)
	s.Links = make([]nl.Link, n)
	s.Connections = make([]nl.Connection, n)
	gid := func(host int) (g smc.GID) {
		g[0], g[1] = 0xfe, 0x80
		binary.BigEndian.PutUint32(g[12:], uint32(host))
		return g
	}
	addr := func(host int, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(host >> 16), byte(host >> 8), byte(host)}), port)
	}
	const own, conns = 1, 200
	for i := range n {
		id, peer := nl.LinkGroupID(i+1)<<8, i+2
		s.LinkGroups[i] = nl.LinkGroup{
			ID: id, Role: smc.Server, Type: smc.GroupSingle, PNETID: "NET1", VLAN: uint16(i & 0xff), Conns: conns,
			NetCookie: 1, Sndbuf: 256 << 10 * conns, RMB: 256 << 10 * conns, Peer: addr(peer, 0).Addr().String(), Links: 1,
		}
		binary.BigEndian.PutUint64(s.LinkGroups[i].PeerID[:], uint64(peer))
		s.Links[i] = nl.Link{
			LinkGroup: id, Role: smc.Server, Type: smc.GroupSingle, ID: 1, IBDev: "srx_eth0", IBPort: 1,
			GID: gid(own), PeerGID: gid(peer), Conns: conns, State: smc.LinkActive, QPN: uint32(i + 2), PeerQPN: 2, MTU: 1024,
		}
		binary.BigEndian.PutUint32(s.Links[i].UID[:], uint32(i))
	}
	for i := range n {
		g := s.LinkGroups[i/conns]
		s.Connections[i] = nl.Connection{
			State: smc.StateActive, Mode: nl.ModeSMCR, Local: addr(own, 80), Remote: addr(i/conns+2, uint16(32768+i%conns)),
			NetDev: 1, Cookie: uint64(i + 1), Inode: uint64(100000 + i), LinkGroup: g.ID, PID: uint32(1000 + i/conns), Command: "nginx",
			TXBytes: 1 << 20, RXBytes: 1 << 10,
			Info: &nl.ConnInfo{Token: uint32(i + 1), Sndbuf: 256 << 10, RMBE: 256 << 10, PeerRMBE: 256 << 10},
			Link: &nl.ConnLink{LinkID: 1, IBDev: "srx_eth0", IBPort: 1, GID: gid(own), PeerGID: gid(i/conns + 2), Role: g.Role},
		}
	}
	return s
}
