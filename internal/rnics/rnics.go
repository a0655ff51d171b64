// SPDX-License-Identifier: Apache-2.0

package rnics

import (
	"context"
	"fmt"
	"io"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"

	"github.com/spf13/cobra"
)

type options struct {
	watch.ListOptions
	fs FS

	netdev, ibdev, pnetid, state cmdutil.Filter
}

// NewCmd returns the command smcr rnics.
func NewCmd(f *cmdutil.Factory) *cobra.Command { return newCmd(f, NewFS(DefaultRoot), nil) }

func newCmd(f *cmdutil.Factory, fs FS, runF func(*options) error) *cobra.Command {
	opts := &options{ListOptions: watch.ListOptions{Factory: f}, fs: fs}
	cmd := &cobra.Command{
		Use:   "rnics",
		Short: "List the RDMA devices of this host",
		Long: "List the kernel's RDMA devices of this host, one line per port, whether or not an\n" +
			"SMC stack can use them. 'smcr device list' lists the devices that SMC-R can use,\n" +
			"including those of the user-space stack.\n\n" +
			"SMC-R needs a port with link layer Ethernet whose state is ACTIVE. An asterisk\n" +
			"before a PNET-ID means that a user set it, not the hardware.",
		Example: "  smcr rnics\n  smcr rnics --state active -o wide",
		Args:    cmdutil.NoArgs,
		RunE:    cmdutil.RunE(opts, runF, run),
	}
	opts.AddFlags(cmd, cmdutil.FormatTable, cmdutil.FormatWide, cmdutil.FormatJSON)
	cmdutil.AddFilter(cmd, &opts.netdev, "netdev", "show only ports of this network `device`", cmdutil.CompleteNetDevs)
	cmdutil.AddFilter(cmd, &opts.ibdev, "ibdev", "show only this RDMA `device`", completeDevices(fs))
	cmdutil.AddUpperFilter(cmd, &opts.pnetid, "pnetid", "show only ports with this `pnetid`", f.CompletePNETIDs(false))
	cmdutil.AddChoiceFilter(cmd, &opts.state, "state", "show only ports in this `state`", "ACTIVE", "DOWN", "INIT", "ARMED")
	return cmd
}

func completeDevices(fs FS) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		devices, err := fs.Devices()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, d := range devices {
			names = append(names, d.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// A portJSON is a port in JSON.
type portJSON struct {
	IBDev     string    `json:"ibdev"`
	IBPort    int       `json:"ibport"`
	NetDev    string    `json:"netdev"`
	State     string    `json:"state"`
	LinkLayer string    `json:"link_layer"`
	Rate      string    `json:"rate"`
	PNETID    string    `json:"pnetid"`
	PNETUser  bool      `json:"pnetid_by_user"`
	Driver    string    `json:"driver,omitempty"`
	Firmware  string    `json:"firmware,omitempty"`
	Board     string    `json:"board,omitempty"`
	NodeGUID  string    `json:"node_guid,omitempty"`
	PCI       *pciJSON  `json:"pci,omitempty"`
	GIDs      []gidJSON `json:"gids"`
}

type pciJSON struct {
	Address  string `json:"address"`
	Vendor   string `json:"vendor"`
	Device   string `json:"device"`
	NUMANode int    `json:"numa_node"`
	FID      string `json:"fid,omitempty"`
	PCHID    string `json:"pchid,omitempty"`
}

type gidJSON struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"`
	NetDev string `json:"netdev"`
}

func run(ctx context.Context, opts *options) error {
	return watch.Loop(ctx, opts.IO, opts.Watch, opts.Format, func(ctx context.Context) (v watch.View[portJSON], err error) {
		devices, err := opts.fs.Devices()
		if err != nil {
			return v, err
		}
		given, err := pnetids(ctx, opts)
		if err != nil {
			return v, err
		}
		names := []string{"IB-Dev", ">IB-P", "Net-Dev", "State", "Link-Layer", "Rate", "Driver", "PNET-ID"}
		wide := opts.Format == cmdutil.FormatWide
		if wide {
			names = append(names, "PCI-Address", "PCI-ID", "FID", "PCHID", ">NUMA", "Firmware", "GID")
		}
		t := output.NewTable(names...)
		for i := range devices {
			for j := range devices[i].Ports {
				d, p := &devices[i], &devices[i].Ports[j]
				id, user := p.PNETID, false
				if id == "" {
					id = given[fmt.Sprintf("%s/%d", d.Name, p.Number)]
					user = id != ""
				}
				if !opts.ibdev.Keep(d.Name) || !opts.netdev.Keep(p.NetDev) || !opts.state.Keep(p.State) || !opts.pnetid.Keep(id) {
					continue
				}
				v.Rows = append(v.Rows, toJSON(d, p, id, user))
				t.Add(row(d, p, id, user, wide)...)
			}
		}
		v.Text = func(w io.Writer) error { return t.Print(w) }
		return v, nil
	})
}

// pnetids returns the pnetids that users gave to RoCE ports, by device and port.
// Without a stack there are none.
func pnetids(ctx context.Context, opts *options) (map[string]string, error) {
	m, err := opts.Dial(ctx, opts.Backend)
	if cmdutil.ExitCode(err) == cmdutil.ExitNoBackend {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer m.Close()
	rows, err := nl.All(ctx, m, nl.Control.PNETs)
	if err != nil {
		return nil, err
	}
	given := map[string]string{}
	for _, r := range rows {
		if r.Value.IBDev != "" {
			given[fmt.Sprintf("%s/%d", r.Value.IBDev, r.Value.IBPort)] = r.Value.ID
		}
	}
	return given, nil
}

func row(d *Device, p *Port, id string, user, wide bool) []any {
	if id = output.Or(id); user {
		id = "*" + id
	}
	cells := []any{
		d.Name, p.Number, output.Or(p.NetDev), output.Or(p.State), output.Or(p.LinkLayer), output.Or(p.Rate), output.Or(d.Driver), id,
	}
	if !wide {
		return cells
	}
	address, ids, fid, pchid, numa, gid := "-", "-", "-", "-", "-", "-"
	if pci := d.PCI; pci != nil {
		address, ids = output.Or(pci.Address), fmt.Sprintf("%04x:%04x", pci.Vendor, pci.Device)
		fid, pchid = output.Or(pci.FID), output.Or(pci.PCHID)
		if pci.NUMANode >= 0 {
			numa = fmt.Sprint(pci.NUMANode)
		}
	}
	if len(p.GIDs) > 0 {
		gid = p.GIDs[0].GID
	}
	return append(cells, address, ids, fid, pchid, numa, output.Or(d.Firmware), gid)
}

func toJSON(d *Device, p *Port, id string, user bool) portJSON {
	j := portJSON{
		IBDev: d.Name, IBPort: p.Number, NetDev: p.NetDev, State: p.State, LinkLayer: p.LinkLayer, Rate: p.Rate,
		PNETID: id, PNETUser: user, Driver: d.Driver, Firmware: d.Firmware, Board: d.Board, NodeGUID: d.NodeGUID, GIDs: []gidJSON{},
	}
	if pci := d.PCI; pci != nil {
		j.PCI = &pciJSON{pci.Address, fmt.Sprintf("%04x", pci.Vendor), fmt.Sprintf("%04x", pci.Device), pci.NUMANode, pci.FID, pci.PCHID}
	}
	for _, g := range p.GIDs {
		j.GIDs = append(j.GIDs, gidJSON(g))
	}
	return j
}
