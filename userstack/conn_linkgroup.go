// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
	"net/netip"

	"smcr/nl"
	"smcr/smc"
)

// LinkGroup describes the link group that carries a connection. All connections to a peer
// share one, up to Config.MaxConns.
type LinkGroup struct {
	ID      nl.LinkGroupID // as 'smcr linkgroup list' shows it
	Role    smc.Role       // what this stack is in the group: client or server
	Version uint8          // of SMC: 1 or 2
	PNETID  string         // pnetid of the network, or ""
	VLAN    uint16         // VLAN id, 0 for none
	Peer    netip.Addr     // address of the peer in the first connection of the group
	PeerID  [8]byte        // the peer's ID: instance and MAC address (RFC 7609, appendix A.2.1)
	Conns   int            // connections in the group now, this one included
	Links   []nl.Link      // the links, as 'smcr link list' shows them; none once the group has ended
	Link    uint8          // ID of the link that this connection writes on, 0 for none
}

// LinkGroup returns the current link group of the connection. Links can be added and deleted,
// and a connection moves to another link when its link fails.
func (c *Conn) LinkGroup() LinkGroup {
	row, peer, links, link := c.d.Carrier()
	return LinkGroup{
		ID: row.ID, Role: row.Role, Version: row.Version(), PNETID: row.PNETID, VLAN: row.VLAN,
		Peer: peer, PeerID: row.PeerID, Conns: int(row.Conns), Links: links, Link: link,
	}
}

// maxWraps is how many layers [AsConn] looks through. A net.Conn may wrap itself.
const maxWraps = 16

// AsConn returns the SMC-R connection that c is or wraps. It looks through each net.Conn that
// has a method NetConn() net.Conn, such as tls.Conn. ok is false for a connection that uses
// TCP.
func AsConn(c net.Conn) (conn *Conn, ok bool) {
	for range maxWraps {
		if conn, ok = c.(*Conn); ok {
			return conn, true
		}
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil, false
		}
		c = w.NetConn()
	}
	return nil, false
}

// IsSMC reports whether the data of c uses SMC-R and not TCP. It looks through the same
// layers as [AsConn].
func IsSMC(c net.Conn) bool {
	_, ok := AsConn(c)
	return ok
}
