// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// each calls f for each living link group in the order of the IDs, with its lock held.
func (d *Driver) each(f func(g *Group)) {
	for _, g := range d.Groups() {
		g.do(func(time.Time) {
			if !g.end.dead {
				f(g)
			}
		})
	}
}

// LinkGroups lists the link groups.
func (d *Driver) LinkGroups() (rows []nl.LinkGroup) {
	d.each(func(g *Group) { rows = append(rows, groupRow(g)) })
	return rows
}

// Links lists the links of all link groups.
func (d *Driver) Links() (rows []nl.Link) {
	d.each(func(g *Group) { rows = append(rows, linkRows(g)...) })
	return rows
}

// Connections lists the connections, the oldest first.
func (d *Driver) Connections() (rows []nl.Connection) {
	d.each(func(g *Group) {
		for c := range g.conns {
			rows = append(rows, c.row())
		}
	})
	slices.SortFunc(rows, func(a, b nl.Connection) int { return cmp.Compare(a.Inode, b.Inode) })
	return rows
}

// Usage returns how many bytes of send memory and of RMB elements connections use.
func (d *Driver) Usage() (tx, rx uint64) {
	d.each(func(g *Group) {
		tx += uint64(g.mem.slab.used)
		for c := range g.conns {
			rx += uint64(c.rmbe())
		}
	})
	return tx, rx
}

// PortUse counts the link groups of each device, and the links of each port by its ID.
func (d *Driver) PortUse() (groups map[*devices.Device]uint32, links map[int]uint32) {
	groups, links = map[*devices.Device]uint32{}, map[int]uint32{}
	d.each(func(g *Group) {
		seen := map[*devices.Device]bool{}
		for _, cl := range g.core.Links() {
			l, _ := cl.Data.(*link)
			if l == nil {
				continue
			}
			links[l.port.ID()]++
			if d := l.port.Device(); !seen[d] {
				seen[d] = true
				groups[d]++
			}
		}
	})
	return groups, links
}

// LinkedPorts returns the IDs of the ports that carry active links of this stack as a
// client to remote, in groups that take connections.
func (d *Driver) LinkedPorts(remote netip.Addr) map[int]bool {
	linked := map[int]bool{}
	d.each(func(g *Group) {
		if g.role != smc.Client || g.peerAddr != remote || !g.core.CanAccept() {
			return
		}
		for _, l := range g.core.Links() {
			if l.State() == smc.LinkActive {
				linked[l.Dev().ID] = true
			}
		}
	})
	return linked
}

// groupRow returns the row of a link group. Its lock is held.
func groupRow(g *Group) nl.LinkGroup {
	row := nl.LinkGroup{
		ID: g.ID(), Role: g.core.Role(), Type: g.core.Type(),
		PNETID: g.lan.PNETID, VLAN: g.core.VLAN(), Conns: uint32(g.core.Conns()),
		BufType: nl.BufVirtual, Sndbuf: g.mem.sendBytes, RMB: g.mem.rmbBytes,
		PeerID: g.core.PeerID(), Peer: g.peerAddr.String(), Links: uint32(len(g.core.Links())),
	}
	describeTerms(g.terms, &row)
	return row
}

// describeTerms adds the terms of version 2 to a row. t is nil in version 1.
func describeTerms(t *rendezvous.Terms, row *nl.LinkGroup) {
	if t == nil {
		return
	}
	row.V2 = &nl.V2Common{
		Version: wire.Version2, Release: t.Peer.Release, OS: t.Peer.OS, EID: t.EID.String(), PeerHost: t.Peer.Host,
	}
	row.V2R = &nl.V2R{Direct: !t.Routed, MaxConns: t.MaxConns, MaxLinks: t.MaxLinks}
}

// linkRows returns the rows of the links of a group. Its lock is held.
func linkRows(g *Group) (rows []nl.Link) {
	for _, cl := range g.core.Links() {
		rows = append(rows, linkRow(g, cl))
	}
	return rows
}

func linkRow(g *Group, cl *linkgroup.Link) nl.Link {
	row := nl.Link{
		LinkGroup: g.ID(), Role: g.core.Role(), Type: g.core.Type(),
		ID: cl.ID(), IBDev: cl.Dev().Name,
		GID: cl.Local().GID, PeerGID: cl.Peer().GID,
		Conns: uint32(cl.ConnCount()), State: cl.State(),
		QPN: uint32(cl.Local().QPN), PeerQPN: uint32(cl.Peer().QPN),
		MTU: uint32(min(cl.Local().MTU, cl.Peer().MTU).Bytes()),
	}
	binary.BigEndian.PutUint32(row.UID[:], cl.UID())
	binary.BigEndian.PutUint32(row.PeerUID[:], cl.PeerUID())
	if l, _ := cl.Data.(*link); l != nil {
		row.IBPort, row.NetDev = uint8(l.port.Num()), uint32(l.port.IfIndex())
		if q, ok := l.qp.(rdmaverbs.QPResentCounter); ok {
			r := nl.Resent(q.Resent())
			row.Resent = &r
		}
	}
	return row
}

// row implements member.
func (c *Conn) row() nl.Connection {
	i := c.core.Info()
	cur := func(x wire.Cursor) nl.Cursor { return nl.Cursor{Wrap: x.Wrap, Count: x.Count} }
	row := nl.Connection{
		State: smc.ConnState(c.core.State()), Mode: nl.ModeSMCR,
		Local: c.local, Remote: c.remote,
		Cookie: c.owner.Cookie, Inode: c.ino, UID: c.owner.UID, PID: c.owner.PID, Command: c.owner.Command,
		LinkGroup: c.g.ID(), TXBytes: c.txBytes, RXBytes: c.rxBytes,
		Info: &nl.ConnInfo{
			Token: i.Token, Sndbuf: uint32(i.SendBuf), RMBE: uint32(i.RMBE), PeerRMBE: uint32(i.PeerRMBE),
			RXProd: cur(i.RxProd), RXCons: cur(i.RxCons), TXProd: cur(i.TxProd), TXCons: cur(i.TxCons),
			RXProdFlags: uint8(i.RxFlags), RXStateFlags: uint8(i.RxState),
			TXProdFlags: uint8(i.TxFlags), TXStateFlags: uint8(i.TxState),
			TXPrep: cur(i.TxPrep), TXSent: cur(i.TxSent), TXFin: cur(i.TxFin),
		},
	}
	if cl := c.core.Link(); cl != nil {
		row.Link = &nl.ConnLink{
			LinkID: cl.ID(), IBDev: cl.Dev().Name, Role: c.g.core.Role(),
			GID: cl.Local().GID, PeerGID: cl.Peer().GID,
		}
		if l, _ := cl.Data.(*link); l != nil {
			row.Link.IBPort, row.NetDev = uint8(l.port.Num()), uint32(l.port.IfIndex())
		}
	}
	return row
}

// Carrier describes the link group of a connection, its links as in listings, and the ID of
// the link on which the connection writes. If the group has ended, there are no links and the
// ID is 0.
func (c *Conn) Carrier() (group nl.LinkGroup, peer netip.Addr, links []nl.Link, link uint8) {
	g := c.g
	g.mu.Lock()
	defer g.unlock()
	if g.end.dead {
		group = nl.LinkGroup{ID: g.ID(), Role: g.role, PNETID: g.lan.PNETID, VLAN: g.core.VLAN(), PeerID: g.core.PeerID()}
		describeTerms(g.terms, &group)
		return group, g.peerAddr, nil, 0
	}
	if l := c.core.Link(); l != nil && !c.End.over {
		link = l.ID()
	}
	return groupRow(g), g.peerAddr, linkRows(g), link
}
