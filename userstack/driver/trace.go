// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"slices"

	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/userstack/internal/tracing"
	"smcr/userstack/linkgroup"
)

// showMessage shows a message on a link to those who trace the stack. It is called only if
// somebody does.
func showMessage(g *Group, cl *linkgroup.Link, msg []byte, out bool) {
	local, peer := cl.Local(), cl.Peer()
	version := rdmaverbs.RoCEv1
	if l, _ := cl.Data.(*link); l != nil {
		version = l.roce
	}
	g.s.Trace.Message(tracing.Message{
		Out: out, Group: g.ID(), RoCE: uint8(version), Local: local.GID, Remote: peer.GID, QPN: local.QPN, PeerQPN: peer.QPN, Bytes: msg,
	})
}

// TraceConns returns what a trace must know about the connections that there are.
func (d *Driver) TraceConns() (rows []nl.TraceConn) {
	d.each(func(g *Group) {
		first := len(rows)
		for m := range g.conns {
			if row, ok := m.traced(); ok {
				rows = append(rows, row)
			}
		}
		slices.SortFunc(rows[first:], func(a, b nl.TraceConn) int { return cmp.Compare(a.Token, b.Token) })
	})
	return rows
}

// traced implements member.
func (c *Conn) traced() (row nl.TraceConn, ok bool) {
	cl := c.core.Link()
	if cl == nil || c.End.over {
		return row, false
	}
	local, peer := cl.Local(), cl.Peer()
	return nl.TraceConn{
		Local: c.local, Remote: c.remote, Role: c.g.core.Role(), Group: c.g.ID(),
		GID: local.GID, PeerGID: peer.GID, QPN: uint32(local.QPN), PeerQPN: uint32(peer.QPN),
		Token: c.core.Token(), PeerToken: c.core.PeerToken(),
	}, true
}
