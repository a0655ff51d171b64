// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr linkgroup.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "linkgroup",
		Aliases: []string{"lgr"},
		Short:   "Show SMC-R link groups",
		Long: "A link group connects two hosts. All their SMC-R connections that were set up in\n" +
			"the same direction share its links and its memory (RFC 7609, section 2.2).",
	})
	cmd.AddCommand(newCmdList(f, nil))
	return cmd
}

type listOptions struct {
	watch.ListOptions

	role, typ, pnetid, peer, netdev, ibdev cmdutil.Filter
}

func newCmdList(f *cmdutil.Factory, runF func(*listOptions) error) *cobra.Command {
	opts := &listOptions{ListOptions: watch.ListOptions{Factory: f}}
	cmd := &cobra.Command{
		Use:     "list [ID...]",
		Aliases: []string{"show"},
		Short:   "List link groups",
		Long: "List the SMC-R link groups of this network namespace. Arguments select link groups\n" +
			"by ID.\n\n" +
			"LG-Role is SERV on the side that accepted the first connection, otherwise CLNT.\n" +
			"LG-Type shows how the links cover the RNICs of both sides: SINGLE is one link,\n" +
			"SYM two links that share no RNIC, ASYMP and ASYML two links that share the\n" +
			"peer's or the local one.",
		Example: "  smcr linkgroup list\n  smcr linkgroup list 100 -o json\n  smcr linkgroup list --role server --peer 10.1.0.0/16\n  smcr linkgroup list -o json --watch 5s",
		RunE:    cmdutil.RunE(opts, runF, listRun),
	}
	opts.AddFlags(cmd, cmdutil.FormatTable, cmdutil.FormatWide, cmdutil.FormatJSON)
	opts.AddNames(cmd, "link group", identifier, f.CompleteLinkGroups())
	cmdutil.AddRoleFilter(cmd, &opts.role)
	cmdutil.AddChoiceFilter(cmd, &opts.typ, "type", "show only link groups of this `type`", "NONE", "SINGLE", "SYM", "ASYMP", "ASYML")
	cmdutil.AddUpperFilter(cmd, &opts.pnetid, "pnetid", "show only link groups with this `pnetid`", f.CompletePNETIDs(false))
	cmdutil.AddFilter(cmd, &opts.peer, "peer", "show only link groups with this `peer`: address, prefix, peer ID or host name", f.CompletePeers())
	cmdutil.AddFilter(cmd, &opts.netdev, "netdev", "show only link groups with a link over this network `device`", cmdutil.CompleteNetDevs)
	cmdutil.AddFilter(cmd, &opts.ibdev, "ibdev", "show only link groups with a link over this RoCE `device`", f.CompleteIBDevs())
	return cmd
}

// identifier reads the ID of a link group, or of one of its links, as smc-tools
// does: they differ in the last two digits.
func identifier(s string) (told, key string, err error) {
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

func toJSON(r nl.Row[nl.LinkGroup]) groupJSON {
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

func listRun(ctx context.Context, opts *listOptions) error {
	return watch.List[nl.LinkGroup, groupJSON]{
		Read:   nl.Control.LinkGroups,
		Names:  func(g *nl.LinkGroup) []string { return []string{(g.ID &^ 0xff).String()} },
		Filter: opts.filter,
		JSON:   toJSON,
		Table:  table,
	}.Show(ctx, &opts.ListOptions)
}

// filter keeps the link groups that were asked for.
func (opts *listOptions) filter(ctx context.Context, m nl.Multi, rows []nl.Row[nl.LinkGroup]) ([]nl.Row[nl.LinkGroup], error) {
	type key struct {
		stack string
		id    nl.LinkGroupID
	}
	netdevs, ibdevs := map[key][]string{}, map[key][]string{}
	if opts.netdev.Any() || opts.ibdev.Any() {
		links, err := nl.All(ctx, m, nl.Control.Links)
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			k := key{l.Stack, l.Value.LinkGroup}
			netdevs[k] = append(netdevs[k], opts.NetDev(l.Value.NetDev))
			ibdevs[k] = append(ibdevs[k], l.Value.IBDev)
		}
	}
	return slices.DeleteFunc(rows, func(r nl.Row[nl.LinkGroup]) bool {
		g, k := &r.Value, key{r.Stack, r.Value.ID}
		names := []string{g.Peer}
		if g.PeerID != [8]byte{} {
			names = append(names, hex.EncodeToString(g.PeerID[:]))
		}
		if g.V2 != nil {
			names = append(names, g.V2.PeerHost)
		}
		peer, _ := netip.ParseAddr(g.Peer)
		return !opts.role.Keep(g.Role.Short()) || !opts.typ.Keep(g.Type.String()) || !opts.pnetid.Keep(g.PNETID) ||
			!opts.peer.KeepAddr(netip.AddrPortFrom(peer, 0), names...) ||
			!opts.netdev.Keep(netdevs[k]...) || !opts.ibdev.Keep(ibdevs[k]...)
	}), nil
}

func table(rows []nl.Row[nl.LinkGroup], wide bool) *output.Table {
	names := []string{"LG-ID", "LG-Role", "LG-Type", "VLAN", ">#Conns", "PNET-ID"}
	if wide {
		names = append(names, "Version", ">#Links", ">Sndbuf", ">RMB", "Peer", "Peer-Host")
	}
	t := output.NewTable(append(names, "Stack")...)
	for _, r := range rows {
		g := &r.Value
		vlan := "0"
		if g.VLAN != 0 {
			vlan = fmt.Sprintf("%#x", g.VLAN)
		}
		cells := []any{g.ID, g.Role.Short(), g.Type, vlan, g.Conns, output.Or(g.PNETID)}
		if wide {
			host := ""
			if g.V2 != nil {
				host = g.V2.PeerHost
			}
			cells = append(cells, g.Version(), g.Links, g.Sndbuf, g.RMB, output.Or(g.Peer), output.Or(host))
		}
		t.Add(append(cells, r.Stack)...)
	}
	return t
}
