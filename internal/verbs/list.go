// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"fmt"
	"io"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce"

	"github.com/spf13/cobra"
)

// look returns the facts about all software devices, or that of one netdev or
// device. Devices that go away meanwhile are left out.
func look(ctx context.Context, only cmdutil.Filter) (all []*softroce.Facts, names []string, err error) {
	p := softroce.New()
	devices, err := p.Devices(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range devices {
		name := d.Name
		f, err := p.Query(ctx, name)
		if err != nil || !only.Keep(name) && !only.Keep(f.Attr.NetDev) {
			continue
		}
		all, names = append(all, f), append(names, name)
	}
	return all, names, nil
}

// A deviceJSON is a device in JSON.
type deviceJSON struct {
	Device    string `json:"device"`
	NetDev    string `json:"netdev"`
	State     string `json:"state"`
	ActiveMTU int    `json:"active_mtu"`
	MaxMTU    int    `json:"max_mtu"`
	NodeGUID  string `json:"node_guid"`
	GIDs      int    `json:"gids"`
}

func newDevices(f *cmdutil.Factory) *cobra.Command {
	return newList(f, &cobra.Command{
		Use:   "devices",
		Short: "List the software RDMA devices",
		Long: "List the software RDMA devices of this network namespace, one for each Ethernet\n" +
			"device. The devices need no setup.",
		Example: "  smcr verbs devices",
	}, printDevices)
}

// newList gives cmd what lists of devices have in common, and print the rows.
func newList(f *cmdutil.Factory, cmd *cobra.Command, print func(io.Writer, string, []*softroce.Facts, []string) error) *cobra.Command {
	var format string
	var only cmdutil.Filter
	cmd.Args = cmdutil.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, names, err := look(cmd.Context(), only)
		if err != nil {
			return err
		}
		return print(f.IO.Out, format, all, names)
	}
	cmdutil.AddFormatFlag(cmd, &format, cmdutil.FormatTable, cmdutil.FormatJSON)
	cmdutil.AddFilter(cmd, &only, "device", "show only this `device`, or the device of this netdev", cmdutil.CompleteNetDevs)
	return cmd
}

func printDevices(w io.Writer, format string, all []*softroce.Facts, names []string) error {
	var rows []deviceJSON
	t := output.NewTable("Device", "Net-Dev", "State", ">MTU", "GUID", ">GIDs")
	for i, f := range all {
		state := "DOWN"
		if f.Port.State == rdmaverbs.PortActive {
			state = "ACTIVE"
		}
		g := f.Attr.NodeGUID
		guid := fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x", g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7])
		rows = append(rows, deviceJSON{names[i], f.Attr.NetDev, state, f.Port.ActiveMTU.Bytes(), f.Port.MaxMTU.Bytes(), guid, len(f.GIDs)})
		t.Add(names[i], f.Attr.NetDev, state, f.Port.ActiveMTU.Bytes(), guid, len(f.GIDs))
	}
	if format == cmdutil.FormatJSON {
		return output.JSON(w, rows)
	}
	return t.Print(w)
}

// A gidJSON is an entry of a GID table in JSON.
type gidJSON struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Addr   string `json:"address"`
	Type   string `json:"type"`
	NetDev string `json:"netdev"`
}

func newGIDs(f *cmdutil.Factory) *cobra.Command {
	return newList(f, &cobra.Command{
		Use:   "gids",
		Short: "List the GID tables of the software RDMA devices",
		Long: "List the GID tables of the software RDMA devices. Pass the index to the option\n" +
			"--gid-index of the tests.",
		Example: "  smcr verbs gids --device eth0",
	}, printGIDs)
}

func printGIDs(w io.Writer, format string, all []*softroce.Facts, names []string) error {
	var rows []gidJSON
	t := output.NewTable("Device", ">Port", ">Index", "GID", "Address", "Type")
	for i, f := range all {
		for j, g := range f.GIDs {
			typ := fmt.Sprintf("RoCEv%d", g.Type)
			rows = append(rows, gidJSON{names[i], 1, j, g.GID.String(), g.GID.Addr().String(), typ, g.NetDev})
			t.Add(names[i], 1, j, g.GID, g.GID.Addr(), typ)
		}
	}
	if format == cmdutil.FormatJSON {
		return output.JSON(w, rows)
	}
	return t.Print(w)
}
