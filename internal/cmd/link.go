// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"errors"
	"net/netip"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/nl"
	"smcr/smc"

	"github.com/spf13/cobra"
)

func newLink(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "link",
		Short: "Show and delete the links of SMC-R link groups",
		Long: "A link is one pair of queue pairs between two RNICs. A link group has one or\n" +
			"more, and moves its connections when one fails (RFC 7609, section 2.2).",
		Example: "  smcr link list --watch\n  smcr link del 100 2",
	})
	cmd.AddCommand(newLinkDelete(f, nil), newLinkList(f))
	return cmd
}

func newLinkList(f *cmdutil.Factory) *cobra.Command {
	return list[nl.Link, linkJSON]{
		source: traffic(nl.Control.Links),
		naming: &naming[nl.Link]{
			what: "link", hex: true,
			parse: func(s string) (shown, name string, err error) {
				id, err := cmdutil.LinkGroupID(s)
				return id.String(), id.String(), err
			},
			of:       func(l *nl.Link) []string { return []string{l.UID.String(), l.LinkGroup.String()} },
			complete: f.CompleteLinkGroups(),
		},
		filters: []*filter[nl.Link]{
			byLinkGroup(f, func(l *nl.Link) string { return l.LinkGroup.String() }),
			byRole(func(l *nl.Link) string { return l.Role.Short() }),
			byChoice("state", "show only links in this `state`", func(l *nl.Link) string { return l.State.String() },
				"UNUSED", "INACTIVE", "ACTIVATING", "ACTIVE"),
			newFilter(func(l *nl.Link) []string { return []string{l.PeerGID.String()} }, func(cmd *cobra.Command, fl *cmdutil.Filter) {
				cmdutil.AddCheckedFilter(cmd, fl, "peer", "show only links to this `GID` of the peer", parseGID, nil)
			}),
			byNetDev("show only links over this network `device`", func(l *nl.Link) []string { return []string{f.NetDev(l.NetDev)} }),
			byIBDev(f, "show only links over this RoCE `device`", func(l *nl.Link) []string { return []string{l.IBDev} }),
		},
		layout: columns[nl.Link]{
			always: []column[nl.Link]{
				col("LG-ID", func(l *nl.Link) any { return l.LinkGroup }),
				col("LG-Role", func(l *nl.Link) any { return l.Role.Short() }),
				col("LG-Type", func(l *nl.Link) any { return l.Type }),
				col(">Link", func(l *nl.Link) any { return l.ID }),
				col("Net-Dev", func(l *nl.Link) any { return output.Or(f.NetDev(l.NetDev)) }),
				col("IB-Dev", func(l *nl.Link) any { return output.Or(l.IBDev) }),
				col(">IB-P", func(l *nl.Link) any { return l.IBPort }),
				col("Link-State", func(l *nl.Link) any { return "LINK_" + l.State.String() }),
				col(">#Conns", func(l *nl.Link) any { return l.Conns }),
				col(">Resent", func(l *nl.Link) any {
					if l.Resent == nil {
						return "-"
					}
					return l.Resent.Packets
				}),
			},
			wide: []column[nl.Link]{
				col("Link-UID", func(l *nl.Link) any { return l.UID }),
				col("Peer-UID", func(l *nl.Link) any { return l.PeerUID }),
				col(">QPN", func(l *nl.Link) any { return l.QPN }),
				col(">Peer-QPN", func(l *nl.Link) any { return l.PeerQPN }),
				col(">MTU", func(l *nl.Link) any { return l.MTU }),
				col("Local-GID", func(l *nl.Link) any { return l.GID }),
				col("Peer-GID", func(l *nl.Link) any { return l.PeerGID }),
			},
		},
		json: func(r nl.Row[nl.Link]) linkJSON { return newLinkJSON(r, f.NetDev) },
	}.command(f, &cobra.Command{
		Use:     "list [ID...]",
		Aliases: []string{"show"},
		Short:   "List links",
		Long: "List the links of all SMC-R link groups of this network namespace. Arguments\n" +
			"select links by their ID (Link-UID) or by the ID of their link group.",
		Example: "  smcr link list -o wide\n  smcr link list 100\n  smcr link list --state activating,inactive --watch",
	})
}

// parseGID returns a GID in the form in which the list prints it.
func parseGID(s string) (string, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return "", errors.New("a GID has the form of an IPv6 address")
	}
	return smc.GID(a.As16()).String(), nil
}

// A linkJSON is a link in JSON.
type linkJSON struct {
	Stack     string `json:"stack"`
	LinkGroup string `json:"linkgroup"`
	Role      string `json:"role"`
	Type      string `json:"type"`
	ID        uint8  `json:"id"`
	NetDev    string `json:"netdev"`
	IfIndex   uint32 `json:"ifindex"`
	IBDev     string `json:"ibdev"`
	IBPort    uint8  `json:"ibport"`
	State     string `json:"state"`
	Conns     uint32 `json:"conns"`
	UID       string `json:"uid"`
	PeerUID   string `json:"peer_uid"`
	GID       string `json:"gid"`
	PeerGID   string `json:"peer_gid"`
	QPN       uint32 `json:"qpn,omitempty"`
	PeerQPN   uint32 `json:"peer_qpn,omitempty"`
	MTU       uint32 `json:"mtu,omitempty"`

	Resent *resentJSON `json:"resent,omitempty"`
}

func newLinkJSON(r nl.Row[nl.Link], netdev func(uint32) string) linkJSON {
	l := &r.Value
	j := linkJSON{
		Stack: r.Stack, LinkGroup: l.LinkGroup.String(), Role: l.Role.Short(), Type: l.Type.String(),
		ID: l.ID, NetDev: netdev(l.NetDev), IfIndex: l.NetDev, IBDev: l.IBDev, IBPort: l.IBPort,
		State: l.State.String(), Conns: l.Conns, UID: l.UID.String(), PeerUID: l.PeerUID.String(),
		GID: l.GID.String(), PeerGID: l.PeerGID.String(), QPN: l.QPN, PeerQPN: l.PeerQPN, MTU: l.MTU,
	}
	if l.Resent != nil {
		resent := resentJSON(*l.Resent)
		j.Resent = &resent
	}
	return j
}
