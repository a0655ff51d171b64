// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/typo"
	"smcr/nl"
	"smcr/pnet"

	"github.com/spf13/cobra"
)

func newPNET(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "pnet",
		Short: "Show and change physical network IDs (pnetids)",
		Long: "A pnetid names a physical network. It has 1 to 16 letters and digits, kept in upper\n" +
			"case. A network device and a RoCE port with the same pnetid belong together, and\n" +
			"connections over the network device may use the RoCE port for SMC-R. A network\n" +
			"device without a pnetid uses its own RoCE port.",
		Example: "  smcr pnet list\n  smcr pnet add NET1 -I eth0 -D mlx5_0\n  smcr pnet del NET1",
	})
	cmd.AddCommand(newPNETAdd(f, nil), newPNETDel(f, nil), newPNETList(f), f.Action("pnet", "flush", "Remove all pnetids", nl.Control.FlushPNET))
	return cmd
}

type pnetAddOptions struct {
	*cmdutil.Factory
	entry nl.PNET
}

func newPNETAdd(f *cmdutil.Factory, runF func(*pnetAddOptions) error) *cobra.Command {
	opts := &pnetAddOptions{Factory: f}
	cmd := &cobra.Command{
		Use:     "add PNETID {-I NETDEV | -D IBDEV [-P PORT]}",
		Short:   "Give a pnetid to a network device, a RoCE port, or both",
		Example: "  smcr pnet add NET1 -I eth0\n  smcr pnet add NET1 -D mlx5_0 -P 2",
		Args:    cmdutil.OneArg("PNETID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parsePNETID(args[0])
			if err != nil {
				return err
			}
			opts.entry.ID = id
			switch port := cmd.Flags().Changed("ibport"); {
			case opts.entry.NetDev == "" && opts.entry.IBDev == "":
				return cmdutil.UsageError("name a network device with -I or a RoCE device with -D")
			case port && opts.entry.IBDev == "":
				return cmdutil.UsageError("-P needs -D: name the RoCE device of the port")
			case port && (opts.entry.IBPort < 1 || opts.entry.IBPort > pnet.MaxIBPort):
				return cmdutil.UsageError("invalid port %d: a RoCE port is 1 or 2", opts.entry.IBPort)
			}
			if runF != nil {
				return runF(opts)
			}
			return addPNET(cmd.Context(), opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.entry.NetDev, "netdev", "I", "", "network `device`")
	flags.StringVarP(&opts.entry.IBDev, "ibdev", "D", "", "RoCE `device`")
	flags.Uint8VarP(&opts.entry.IBPort, "ibport", "P", 1, "`port` of the RoCE device")
	// An error is returned for unknown flags only.
	_ = cmd.RegisterFlagCompletionFunc("netdev", cmdutil.CompleteNetDevs)
	_ = cmd.RegisterFlagCompletionFunc("ibdev", f.CompleteIBDevs())
	_ = cmd.RegisterFlagCompletionFunc("ibport", cobra.FixedCompletions([]string{"1", "2"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.ValidArgsFunction = f.CompletePNETIDs(true)
	return cmd
}

// parsePNETID returns a pnetid as it is stored, or an error of usage.
func parsePNETID(arg string) (string, error) {
	id, err := pnet.Normalize(arg)
	var invalid *pnet.InvalidError
	if errors.As(err, &invalid) {
		return "", cmdutil.UsageError("invalid pnetid %q: %s", arg, invalid.Reason)
	}
	return id, err
}

func addPNET(ctx context.Context, opts *pnetAddOptions) error {
	e := opts.entry
	if e.IBDev == "" {
		e.IBPort = 0
	}
	return opts.Change(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.AddPNET(ctx, e)
		switch {
		case errors.Is(err, os.ErrExist):
			return cmdutil.Say(err, "%s already has a pnetid: see 'smcr pnet list'", pnetDevices(e))
		case errors.Is(err, syscall.ENODEV) && e.NetDev != "" && e.IBDev == "":
			return cmdutil.Say(err, "no netdev %q: %s", e.NetDev, typo.Meant(e.NetDev, cmdutil.NetDevs(), "see 'ip link'"))
		case errors.Is(err, syscall.ENODEV) && e.NetDev == "":
			return cmdutil.Say(err, "no RoCE device %q: %s", e.IBDev, typo.Meant(e.IBDev, ibDevs(ctx, c), "see 'smcr device list'"))
		case errors.Is(err, syscall.ENODEV) && slices.Contains(cmdutil.NetDevs(), e.NetDev):
			return cmdutil.Say(err, "no RoCE device %q: %s", e.IBDev, typo.Meant(e.IBDev, ibDevs(ctx, c), "see 'smcr device list'"))
		case errors.Is(err, syscall.ENODEV):
			return cmdutil.Say(err, "no netdev %q, or no RoCE device %q: see 'ip link' and 'smcr device list'", e.NetDev, e.IBDev)
		}
		return err
	})
}

// ibDevs returns the names of the RoCE devices of a stack.
func ibDevs(ctx context.Context, c nl.Control) (names []string) {
	devices, _ := c.Devices(ctx) // without them there is no suggestion
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names
}

// pnetDevices returns the names of the devices of an entry.
func pnetDevices(e nl.PNET) string {
	switch {
	case e.IBDev == "":
		return e.NetDev
	case e.NetDev == "":
		return e.IBDev
	}
	return e.NetDev + " or " + e.IBDev
}

type pnetDelOptions struct {
	*cmdutil.Factory
	id string
}

func newPNETDel(f *cmdutil.Factory, runF func(*pnetDelOptions) error) *cobra.Command {
	opts := &pnetDelOptions{Factory: f}
	return &cobra.Command{
		Use:     "del PNETID",
		Aliases: []string{"delete"},
		Short:   "Remove a pnetid from all its devices",
		Example: "  smcr pnet del NET1",
		Args:    cmdutil.OneArg("PNETID"),

		ValidArgsFunction: f.CompletePNETIDs(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parsePNETID(args[0])
			if err != nil {
				return err
			}
			opts.id = id
			if runF != nil {
				return runF(opts)
			}
			return removePNET(cmd.Context(), opts)
		},
	}
}

func removePNET(ctx context.Context, opts *pnetDelOptions) error {
	return opts.Change(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.RemovePNET(ctx, opts.id)
		if errors.Is(err, os.ErrNotExist) {
			pnets, _ := c.PNETs(ctx) // without them there is no suggestion
			var ids []string
			for _, p := range pnets {
				ids = append(ids, p.ID)
			}
			return cmdutil.Say(err, "no pnetid %q: %s", opts.id, typo.Meant(opts.id, ids, "see 'smcr pnet list'"))
		}
		return err
	})
}

// A pnetJSON is an entry of the table of pnetids in JSON.
type pnetJSON struct {
	Stack  string `json:"stack"`
	PNETID string `json:"pnetid"`
	NetDev string `json:"netdev,omitempty"`
	IBDev  string `json:"ibdev,omitempty"`
	IBPort uint8  `json:"ibport,omitempty"`
}

func newPNETList(f *cmdutil.Factory) *cobra.Command {
	return list[nl.PNET, pnetJSON]{
		source: tables(nl.Control.PNETs),
		naming: &naming[nl.PNET]{
			what: "pnetid",
			parse: func(s string) (shown, name string, err error) {
				name, err = parsePNETID(s)
				return strconv.Quote(name), name, err
			},
			of:       func(e *nl.PNET) []string { return []string{e.ID} },
			complete: f.CompletePNETIDs(false),
		},
		filters: []*filter[nl.PNET]{
			byPNETID(f, "show only this `pnetid`", func(e *nl.PNET) string { return e.ID }),
			byNetDev("show only entries of this network `device`", func(e *nl.PNET) []string { return []string{e.NetDev} }),
			byIBDev(f, "show only entries of this RoCE `device`", func(e *nl.PNET) []string { return []string{e.IBDev} }),
		},
		layout: columns[nl.PNET]{always: []column[nl.PNET]{
			col("PNET-ID", func(e *nl.PNET) any { return e.ID }),
			col("Net-Dev", func(e *nl.PNET) any { return output.Or(e.NetDev) }),
			col("IB-Dev", func(e *nl.PNET) any { return output.Or(e.IBDev) }),
			col("IB-P", func(e *nl.PNET) any {
				if e.IBDev == "" {
					return "-"
				}
				return e.IBPort
			}),
		}},
		json: func(r nl.Row[nl.PNET]) pnetJSON {
			return pnetJSON{r.Stack, r.Value.ID, r.Value.NetDev, r.Value.IBDev, r.Value.IBPort}
		},
	}.command(f, &cobra.Command{
		Use:     "list [PNETID...]",
		Aliases: []string{"show"},
		Short:   "List the pnetids that users set",
		Example: "  smcr pnet list\n  smcr pnet list --netdev eth0\n  smcr pnet list NET1 -o json",
	})
}
