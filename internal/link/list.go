// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"fmt"
	"net/netip"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"
	"smcr/smc"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr link.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "link",
		Short: "Show the links of SMC-R link groups",
		Long: "A link is one pair of queue pairs between two RNICs. A link group has one or\n" +
			"more, and moves its connections when one fails (RFC 7609, section 2.2).",
	})
	cmd.AddCommand(newCmdList(f, nil))
	return cmd
}

type listOptions struct {
	watch.ListOptions

	group, role, state, peer, netdev, ibdev cmdutil.Filter
}

func newCmdList(f *cmdutil.Factory, runF func(*listOptions) error) *cobra.Command {
	opts := &listOptions{ListOptions: watch.ListOptions{Factory: f}}
	cmd := &cobra.Command{
		Use:     "list [ID...]",
		Aliases: []string{"show"},
		Short:   "List links",
		Long: "List the links of all SMC-R link groups of this network namespace. Arguments\n" +
			"select links by their ID (Link-UID) or by the ID of their link group.",
		Example: "  smcr link list -o wide\n  smcr link list 100\n  smcr link list --state activating,inactive --watch",
		RunE:    cmdutil.RunE(opts, runF, listRun),
	}
	opts.AddFlags(cmd, cmdutil.FormatTable, cmdutil.FormatWide, cmdutil.FormatJSON)
	opts.AddNames(cmd, "link", func(s string) (told, key string, err error) {
		id, err := cmdutil.LinkGroupID(s)
		return id.String(), id.String(), err
	}, f.CompleteLinkGroups())
	cmdutil.AddLinkGroupFilter(cmd, &opts.group, f)
	cmdutil.AddRoleFilter(cmd, &opts.role)
	cmdutil.AddChoiceFilter(cmd, &opts.state, "state", "show only links in this `state`", "UNUSED", "INACTIVE", "ACTIVATING", "ACTIVE")
	cmdutil.AddCheckedFilter(cmd, &opts.peer, "peer", "show only links to this `GID` of the peer", gid, nil)
	cmdutil.AddFilter(cmd, &opts.netdev, "netdev", "show only links over this network `device`", cmdutil.CompleteNetDevs)
	cmdutil.AddFilter(cmd, &opts.ibdev, "ibdev", "show only links over this RoCE `device`", f.CompleteIBDevs())
	return cmd
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
}

func listRun(ctx context.Context, opts *listOptions) error {
	return watch.List[nl.Link, linkJSON]{
		Read:   nl.Control.Links,
		Names:  func(l *nl.Link) []string { return []string{l.UID.String(), l.LinkGroup.String()} },
		Filter: watch.Keep(opts.keep),
		JSON:   func(r nl.Row[nl.Link]) linkJSON { return toJSON(r, opts.NetDev) },
		Table:  func(rows []nl.Row[nl.Link], wide bool) *output.Table { return table(rows, wide, opts.NetDev) },
	}.Show(ctx, &opts.ListOptions)
}

// keep reports whether a link is one of those that were asked for.
func (o *listOptions) keep(l *nl.Link) bool {
	return o.group.Keep(l.LinkGroup.String()) && o.role.Keep(l.Role.Short()) && o.state.Keep(l.State.String()) &&
		o.peer.Keep(l.PeerGID.String()) && o.netdev.Keep(o.NetDev(l.NetDev)) && o.ibdev.Keep(l.IBDev)
}

// gid returns a GID as it is listed.
func gid(s string) (string, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return "", fmt.Errorf("a GID has the form of an IPv6 address")
	}
	return smc.GID(a.As16()).String(), nil
}

func toJSON(r nl.Row[nl.Link], netdev func(uint32) string) linkJSON {
	l := &r.Value
	return linkJSON{
		Stack: r.Stack, LinkGroup: l.LinkGroup.String(), Role: l.Role.Short(), Type: l.Type.String(),
		ID: l.ID, NetDev: netdev(l.NetDev), IfIndex: l.NetDev, IBDev: l.IBDev, IBPort: l.IBPort,
		State: l.State.String(), Conns: l.Conns, UID: l.UID.String(), PeerUID: l.PeerUID.String(),
		GID: l.GID.String(), PeerGID: l.PeerGID.String(), QPN: l.QPN, PeerQPN: l.PeerQPN, MTU: l.MTU,
	}
}

func table(rows []nl.Row[nl.Link], wide bool, netdev func(uint32) string) *output.Table {
	names := []string{"LG-ID", "LG-Role", "LG-Type", ">Link", "Net-Dev", "IB-Dev", ">IB-P", "Link-State", ">#Conns"}
	if wide {
		names = append(names, "Link-UID", "Peer-UID", ">QPN", ">Peer-QPN", ">MTU", "Local-GID", "Peer-GID")
	}
	t := output.NewTable(append(names, "Stack")...)
	for _, r := range rows {
		l := &r.Value
		cells := []any{
			l.LinkGroup, l.Role.Short(), l.Type, l.ID, output.Or(netdev(l.NetDev)), output.Or(l.IBDev), l.IBPort,
			"LINK_" + l.State.String(), l.Conns,
		}
		if wide {
			cells = append(cells, l.UID, l.PeerUID, l.QPN, l.PeerQPN, l.MTU, l.GID, l.PeerGID)
		}
		t.Add(append(cells, r.Stack)...)
	}
	return t
}
