// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"context"
	"encoding/hex"
	"fmt"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr linkgroup.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "linkgroup",
		Aliases: []string{"lgr"},
		Short:   "SMC-R link groups",
		Long: "A link group joins two hosts: all their SMC-R connections of one direction of\n" +
			"set-up share its links and its memory (RFC 7609, section 2.2).",
	})
	cmd.AddCommand(newCmdList(f, nil))
	return cmd
}

type listOptions struct {
	*cmdutil.Factory
	format string
}

func newCmdList(f *cmdutil.Factory, runF func(*listOptions) error) *cobra.Command {
	opts := &listOptions{Factory: f}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"show"},
		Short:   "List link groups",
		Long: "List the SMC-R link groups of this network namespace.\n\n" +
			"LG-Role is SERV on the side that accepted the first connection, else CLNT.\n" +
			"LG-Type tells how the links cover the RNICs of both sides: SINGLE is one link,\n" +
			"SYM two links that share no RNIC, ASYMP and ASYML two links that share the\n" +
			"peer's or the local one.",
		Example: "  smcr linkgroup list\n  smcr linkgroup list -o json",
		Args:    cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if runF != nil {
				return runF(opts)
			}
			return listRun(cmd.Context(), opts)
		},
	}
	cmdutil.AddFormatFlag(cmd, &opts.format, cmdutil.FormatTable, cmdutil.FormatWide, cmdutil.FormatJSON)
	return cmd
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
		Stack: r.Stack, ID: g.ID.String(), Role: g.Role.String(), Type: g.Type.String(),
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
	return opts.With(ctx, func(ctx context.Context, m nl.Multi) error {
		rows, err := nl.All(ctx, m, nl.Control.LinkGroups)
		if err != nil {
			return err
		}
		if opts.format == cmdutil.FormatJSON {
			list := make([]groupJSON, len(rows))
			for i, r := range rows {
				list[i] = toJSON(r)
			}
			return output.JSON(opts.IO.Out, list)
		}
		return table(rows, opts.format == cmdutil.FormatWide).Print(opts.IO.Out)
	})
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
		cells := []any{g.ID, g.Role, g.Type, vlan, g.Conns, output.Or(g.PNETID)}
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
