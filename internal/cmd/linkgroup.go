// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/nl"

	"github.com/spf13/cobra"
)

func newLinkGroup(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "linkgroup",
		Aliases: []string{"lgr"},
		Short:   "Show and end SMC-R link groups",
		Long: "A link group connects two hosts. All their SMC-R connections that were set up in\n" +
			"the same direction share its links and its memory (RFC 7609, section 2.2).",
		Example: "  smcr linkgroup list -o wide\n  smcr linkgroup del 100",
	})
	cmd.AddCommand(newLinkGroupDelete(f, nil), newLinkGroupList(f))
	return cmd
}

// A group is a link group with the devices of its links.
type group struct {
	nl.LinkGroup
	netdevs, ibdevs []string // empty if no filter needs them
}

func newLinkGroupList(f *cmdutil.Factory) *cobra.Command {
	netdev := byNetDev("show only link groups with a link over this network `device`", func(g *group) []string { return g.netdevs })
	ibdev := byIBDev(f, "show only link groups with a link over this RoCE `device`", func(g *group) []string { return g.ibdevs })
	return list[group, groupJSON]{
		source: traffic(func(c nl.Control, ctx context.Context) ([]group, error) {
			return readGroups(ctx, c, netdev.Any() || ibdev.Any(), f.NetDev)
		}),
		naming: &naming[group]{
			what: "link group", hex: true, parse: groupName, complete: f.CompleteLinkGroups(),
			of: func(g *group) []string { return []string{(g.ID &^ 0xff).String()} },
		},
		filters: []*filter[group]{
			byRole(func(g *group) string { return g.Role.Short() }),
			byChoice("type", "show only link groups of this `type`", func(g *group) string { return g.Type.String() },
				"NONE", "SINGLE", "SYM", "ASYMP", "ASYML"),
			byPNETID(f, "show only link groups with this `pnetid`", func(g *group) string { return g.PNETID }),
			byPeer(f, "show only link groups with this `peer`: address, prefix, peer ID or host name", groupPeer),
			netdev,
			ibdev,
		},
		layout: groupColumns,
		json:   newGroupJSON,
	}.command(f, &cobra.Command{
		Use:     "list [ID...]",
		Aliases: []string{"show"},
		Short:   "List link groups",
		Long: "List the SMC-R link groups of this network namespace. Arguments select link groups\n" +
			"by ID.\n\n" +
			"LG-Role is SERV on the side that accepted the first connection, otherwise CLNT.\n" +
			"LG-Type shows how the links cover the RNICs of both sides: SINGLE is one link,\n" +
			"SYM two links that share no RNIC, ASYMP and ASYML two links that share the\n" +
			"peer's or the local one. Two hosts with two devices each get a second link by\n" +
			"themselves if the devices are in one subnet. In two subnets, all four netdevs need one\n" +
			"pnetid: 'smcr pnet add NET1 -I NETDEV'. Without it, SINGLE stays.",
		Example: "  smcr linkgroup list\n  smcr linkgroup list 100 -o json\n  smcr linkgroup list --role server --peer 10.1.0.0/16\n  smcr linkgroup list -o json --watch 5s",
	})
}

// readGroups returns the link groups of a stack, with the devices of their links if
// they are needed.
func readGroups(ctx context.Context, c nl.Control, devices bool, netdev func(uint32) string) ([]group, error) {
	list, err := c.LinkGroups(ctx)
	if err != nil {
		return nil, err
	}
	groups := make([]group, len(list))
	for i := range list {
		groups[i].LinkGroup = list[i]
	}
	if !devices {
		return groups, nil
	}
	at := make(map[nl.LinkGroupID]*group, len(groups))
	for i := range groups {
		at[groups[i].ID] = &groups[i]
	}
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if g := at[l.LinkGroup]; g != nil {
			g.netdevs = append(g.netdevs, netdev(l.NetDev))
			g.ibdevs = append(g.ibdevs, l.IBDev)
		}
	}
	return groups, nil
}

// groupPeer returns the address of the peer of a link group, and its other names.
func groupPeer(g *group) (netip.AddrPort, []string) {
	names := []string{g.Peer}
	if g.PeerID != [8]byte{} {
		names = append(names, hex.EncodeToString(g.PeerID[:]))
	}
	if g.V2 != nil {
		names = append(names, g.V2.PeerHost)
	}
	peer, err := netip.ParseAddr(g.Peer)
	if err != nil {
		return netip.AddrPort{}, names
	}
	return netip.AddrPortFrom(peer, 0), names
}

// groupName parses the ID of a link group or of one of its links, which differ in the
// last two digits. smc-tools accepts both, too.
func groupName(s string) (shown, name string, err error) {
	id, err := cmdutil.LinkGroupID(s)
	if err != nil {
		return "", "", err
	}
	return id.String(), (id &^ 0xff).String(), nil
}

// A groupJSON is a link group in JSON.
type groupJSON struct {
	Stack     string    `json:"stack"`
	ID        string    `json:"id"`
	Role      string    `json:"role"`
	Type      string    `json:"type"`
	PNETID    string    `json:"pnetid"`
	VLAN      uint16    `json:"vlan"`
	Conns     uint32    `json:"conns"`
	Version   uint8     `json:"version"`
	Links     uint32    `json:"links,omitempty"`
	Peer      string    `json:"peer,omitempty"`
	PeerID    string    `json:"peer_id,omitempty"`
	BufType   string    `json:"buffer_type"`
	Sndbuf    uint64    `json:"sndbuf_bytes"`
	RMB       uint64    `json:"rmb_bytes"`
	NetCookie uint64    `json:"net_cookie"`
	V2        *groupV2  `json:"v2,omitempty"`
	V2R       *groupV2R `json:"v2_r,omitempty"`
}

type groupV2 struct {
	Release  uint8  `json:"peer_release"`
	OS       string `json:"peer_os"`
	PeerHost string `json:"peer_host"`
	EID      string `json:"eid"`
}

type groupV2R struct {
	Direct   bool  `json:"direct"`
	MaxConns uint8 `json:"max_conns"`
	MaxLinks uint8 `json:"max_links"`
}

func newGroupJSON(r nl.Row[group]) groupJSON {
	g := &r.Value
	j := groupJSON{
		Stack: r.Stack, ID: g.ID.String(), Role: g.Role.Short(), Type: g.Type.String(),
		PNETID: g.PNETID, VLAN: g.VLAN, Conns: g.Conns, Version: g.Version(), Links: g.Links, Peer: g.Peer,
		BufType: g.BufType.String(), Sndbuf: g.Sndbuf, RMB: g.RMB, NetCookie: g.NetCookie,
	}
	if g.PeerID != [8]byte{} {
		j.PeerID = hex.EncodeToString(g.PeerID[:])
	}
	if g.V2 != nil {
		j.V2 = &groupV2{g.V2.Release, g.V2.OS.String(), g.V2.PeerHost, g.V2.EID}
	}
	if g.V2R != nil {
		j.V2R = &groupV2R{g.V2R.Direct, g.V2R.MaxConns, g.V2R.MaxLinks}
	}
	return j
}

// groupColumns are the columns of smcr linkgroup list.
var groupColumns = columns[group]{
	always: []column[group]{
		col("LG-ID", func(g *group) any { return g.ID }),
		col("LG-Role", func(g *group) any { return g.Role.Short() }),
		col("LG-Type", func(g *group) any { return g.Type }),
		col("VLAN", func(g *group) any {
			if g.VLAN == 0 {
				return "0"
			}
			return fmt.Sprintf("%#x", g.VLAN)
		}),
		col(">#Conns", func(g *group) any { return g.Conns }),
		col("PNET-ID", func(g *group) any { return output.Or(g.PNETID) }),
	},
	wide: []column[group]{
		col("Version", func(g *group) any { return g.Version() }),
		col(">#Links", func(g *group) any { return g.Links }),
		col(">Sndbuf", func(g *group) any { return output.Size(g.Sndbuf) }),
		col(">RMB", func(g *group) any { return output.Size(g.RMB) }),
		col("Peer", func(g *group) any { return output.Or(g.Peer) }),
		col("Peer-Host", func(g *group) any {
			if g.V2 == nil {
				return "-"
			}
			return output.Or(g.V2.PeerHost)
		}),
	},
}
