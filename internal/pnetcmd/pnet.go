// SPDX-License-Identifier: Apache-2.0

package pnetcmd

import (
	"context"
	"errors"
	"os"
	"strconv"
	"syscall"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"
	"smcr/pnet"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr pnet.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "pnet",
		Short: "Show and change physical network IDs (pnetids)",
		Long: "A pnetid names a physical network. It has 1 to 16 letters and digits, kept in upper\n" +
			"case. A network device and a RoCE port with the same pnetid belong together, and\n" +
			"connections over the network device may use the RoCE port for SMC-R. A network\n" +
			"device without a pnetid uses its own RoCE port.",
	})
	cmd.AddCommand(newCmdAdd(f, nil), newCmdDel(f, nil), newCmdList(f, nil), f.Action("flush", "Remove all pnetids", nl.Control.FlushPNET))
	return cmd
}

type addOptions struct {
	*cmdutil.Factory
	entry nl.PNET
}

func newCmdAdd(f *cmdutil.Factory, runF func(*addOptions) error) *cobra.Command {
	opts := &addOptions{Factory: f}
	cmd := &cobra.Command{
		Use:     "add PNETID {-I NETDEV | -D IBDEV [-P PORT]}",
		Short:   "Give a pnetid to a network device, a RoCE port, or both",
		Example: "  smcr pnet add NET1 -I eth0\n  smcr pnet add NET1 -D mlx5_0 -P 2",
		Args:    cmdutil.OneArg("PNETID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := pnetid(args[0])
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
			return addRun(cmd.Context(), opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.entry.NetDev, "netdev", "I", "", "network `device`")
	flags.StringVarP(&opts.entry.IBDev, "ibdev", "D", "", "RoCE `device`")
	flags.Uint8VarP(&opts.entry.IBPort, "ibport", "P", 1, "`port` of the RoCE device")
	// The errors of unknown names are ones of the program, not of the user.
	_ = cmd.RegisterFlagCompletionFunc("netdev", cmdutil.CompleteNetDevs)
	_ = cmd.RegisterFlagCompletionFunc("ibdev", f.CompleteIBDevs())
	_ = cmd.RegisterFlagCompletionFunc("ibport", cobra.FixedCompletions([]string{"1", "2"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.ValidArgsFunction = f.CompletePNETIDs(true)
	return cmd
}

// pnetid returns a pnetid as it is stored, or an error of usage.
func pnetid(arg string) (string, error) {
	id, err := pnet.Normalize(arg)
	var invalid *pnet.InvalidError
	if errors.As(err, &invalid) {
		return "", cmdutil.UsageError("invalid pnetid %q: %s", arg, invalid.Reason)
	}
	return id, err
}

func addRun(ctx context.Context, opts *addOptions) error {
	e := opts.entry
	if e.IBDev == "" {
		e.IBPort = 0
	}
	return opts.Change(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.AddPNET(ctx, e)
		switch {
		case errors.Is(err, os.ErrExist):
			return cmdutil.Say(err, "%s already has a pnetid: see 'smcr pnet list'", devices(e))
		case errors.Is(err, syscall.ENODEV) && e.NetDev != "" && e.IBDev == "":
			return cmdutil.Say(err, "no netdev %q: see 'ip link'", e.NetDev)
		case errors.Is(err, syscall.ENODEV) && e.NetDev == "":
			return cmdutil.Say(err, "no RoCE device %q: see 'smcr device list'", e.IBDev)
		case errors.Is(err, syscall.ENODEV):
			return cmdutil.Say(err, "no netdev %q or no RoCE device %q: see 'ip link' and 'smcr device list'", e.NetDev, e.IBDev)
		}
		return err
	})
}

func devices(e nl.PNET) string {
	switch {
	case e.IBDev == "":
		return e.NetDev
	case e.NetDev == "":
		return e.IBDev
	}
	return e.NetDev + " or " + e.IBDev
}

type delOptions struct {
	*cmdutil.Factory
	id string
}

func newCmdDel(f *cmdutil.Factory, runF func(*delOptions) error) *cobra.Command {
	opts := &delOptions{Factory: f}
	return &cobra.Command{
		Use:     "del PNETID",
		Aliases: []string{"delete"},
		Short:   "Remove a pnetid from all its devices",
		Args:    cmdutil.OneArg("PNETID"),

		ValidArgsFunction: f.CompletePNETIDs(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := pnetid(args[0])
			if err != nil {
				return err
			}
			opts.id = id
			if runF != nil {
				return runF(opts)
			}
			return delRun(cmd.Context(), opts)
		},
	}
}

func delRun(ctx context.Context, opts *delOptions) error {
	return opts.Change(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.RemovePNET(ctx, opts.id)
		if errors.Is(err, os.ErrNotExist) {
			return cmdutil.Say(err, "no pnetid %q: see 'smcr pnet list'", opts.id)
		}
		return err
	})
}

type listOptions struct {
	watch.ListOptions

	pnetid, netdev, ibdev cmdutil.Filter
}

func newCmdList(f *cmdutil.Factory, runF func(*listOptions) error) *cobra.Command {
	opts := &listOptions{ListOptions: watch.ListOptions{Factory: f}}
	cmd := &cobra.Command{
		Use:     "list [PNETID...]",
		Aliases: []string{"show"},
		Short:   "List the pnetids that users set",
		RunE:    cmdutil.RunE(opts, runF, listRun),
	}
	opts.AddFlags(cmd, cmdutil.FormatTable, cmdutil.FormatJSON)
	opts.AddNames(cmd, "pnetid", func(s string) (told, key string, err error) {
		key, err = pnetid(s)
		return strconv.Quote(key), key, err
	}, f.CompletePNETIDs(false))
	cmdutil.AddUpperFilter(cmd, &opts.pnetid, "pnetid", "show only this `pnetid`", f.CompletePNETIDs(false))
	cmdutil.AddFilter(cmd, &opts.netdev, "netdev", "show only entries of this network `device`", cmdutil.CompleteNetDevs)
	cmdutil.AddFilter(cmd, &opts.ibdev, "ibdev", "show only entries of this RoCE `device`", f.CompleteIBDevs())
	return cmd
}

// An entryJSON is an entry of the table in JSON.
type entryJSON struct {
	Stack  string `json:"stack"`
	PNETID string `json:"pnetid"`
	NetDev string `json:"netdev,omitempty"`
	IBDev  string `json:"ibdev,omitempty"`
	IBPort uint8  `json:"ibport,omitempty"`
}

func listRun(ctx context.Context, opts *listOptions) error {
	return watch.List[nl.PNET, entryJSON]{
		Read:   nl.Control.PNETs,
		Names:  func(e *nl.PNET) []string { return []string{e.ID} },
		Filter: watch.Keep(opts.keep),
		JSON: func(r nl.Row[nl.PNET]) entryJSON {
			return entryJSON{r.Stack, r.Value.ID, r.Value.NetDev, r.Value.IBDev, r.Value.IBPort}
		},
		Table: table,
	}.Show(ctx, &opts.ListOptions)
}

// keep reports whether an entry is one of those that were asked for.
func (o *listOptions) keep(e *nl.PNET) bool {
	return o.pnetid.Keep(e.ID) && o.netdev.Keep(e.NetDev) && o.ibdev.Keep(e.IBDev)
}

func table(rows []nl.Row[nl.PNET], _ bool) *output.Table {
	t := output.NewTable("PNET-ID", "Net-Dev", "IB-Dev", "IB-P", "Stack")
	for _, r := range rows {
		port := any("-")
		if r.Value.IBDev != "" {
			port = r.Value.IBPort
		}
		t.Add(r.Value.ID, output.Or(r.Value.NetDev), output.Or(r.Value.IBDev), port, r.Stack)
	}
	return t
}
