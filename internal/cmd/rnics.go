// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"fmt"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/sysfs"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// A rnicPort is a line of smcr rnics: a port of an RDMA device.
type rnicPort struct {
	device *sysfs.Device
	port   *sysfs.Port
	pnetid string
	byUser bool // a user set the pnetid, not the hardware
}

func newRNICs(f *cmdutil.Factory, fs sysfs.FS) *cobra.Command {
	return list[rnicPort, rnicJSON]{
		source: func(ctx context.Context, f *cmdutil.Factory) ([]nl.Row[rnicPort], error) {
			return readRNICs(ctx, f, fs)
		},
		filters: []*filter[rnicPort]{
			byNetDev("show only ports of this network `device`", func(p *rnicPort) []string { return []string{p.port.NetDev} }),
			byText("ibdev", "show only this RDMA `device`", completeRNICs(fs), func(p *rnicPort) []string { return []string{p.device.Name} }),
			byPNETID(f, "show only ports with this `pnetid`", func(p *rnicPort) string { return p.pnetid }),
			byChoice("state", "show only ports in this `state`", func(p *rnicPort) string { return p.port.State },
				"ACTIVE", "DOWN", "INIT", "ARMED"),
		},
		layout: rnicColumns,
		json:   newRNICJSON,
	}.command(f, &cobra.Command{
		Use:   "rnics",
		Short: "List the RDMA devices of this host",
		Long: "List the kernel's RDMA devices of this host, one line per port, whether or not an\n" +
			"SMC stack can use them. 'smcr device list' lists the devices that SMC-R can use,\n" +
			"including those of the user-space stack.\n\n" +
			"SMC-R needs a port with link layer Ethernet whose state is ACTIVE. An asterisk\n" +
			"before a PNET-ID means that a user set it, not the hardware.",
		Example: "  smcr rnics\n  smcr rnics --state active -o wide",
		Args:    cmdutil.NoArgs,
	})
}

func completeRNICs(fs sysfs.FS) cobra.CompletionFunc {
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

// readRNICs returns the ports of the RDMA devices, with the pnetids that users set in
// the stacks.
func readRNICs(ctx context.Context, f *cmdutil.Factory, fs sysfs.FS) ([]nl.Row[rnicPort], error) {
	devices, err := fs.Devices()
	if err != nil {
		return nil, fmt.Errorf("rnics: %w", err)
	}
	given, err := userPNETIDs(ctx, f)
	if err != nil {
		return nil, err
	}
	var rows []nl.Row[rnicPort]
	for i := range devices {
		d := &devices[i]
		for j := range d.Ports {
			line := rnicPort{device: d, port: &d.Ports[j], pnetid: d.Ports[j].PNETID}
			if line.pnetid == "" {
				line.pnetid = given[portKey{d.Name, line.port.Number}]
				line.byUser = line.pnetid != ""
			}
			rows = append(rows, nl.Row[rnicPort]{Value: line})
		}
	}
	return rows, nil
}

// A portKey names a port of an RDMA device.
type portKey struct {
	device string
	port   int
}

// userPNETIDs returns the pnetids that users gave to RoCE ports. Without a stack there
// are none.
func userPNETIDs(ctx context.Context, f *cmdutil.Factory) (map[portKey]string, error) {
	m, err := f.Dial(ctx, f.Backend)
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
	given := map[portKey]string{}
	for _, r := range rows {
		if r.Value.IBDev != "" {
			given[portKey{r.Value.IBDev, int(r.Value.IBPort)}] = r.Value.ID
		}
	}
	return given, nil
}

// rnicColumns are the columns of smcr rnics.
var rnicColumns = columns[rnicPort]{
	local: true,
	always: []column[rnicPort]{
		col("IB-Dev", func(p *rnicPort) any { return p.device.Name }),
		col(">IB-P", func(p *rnicPort) any { return p.port.Number }),
		col("Net-Dev", func(p *rnicPort) any { return output.Or(p.port.NetDev) }),
		col("State", func(p *rnicPort) any { return output.Or(p.port.State) }),
		col("Link-Layer", func(p *rnicPort) any { return output.Or(p.port.LinkLayer) }),
		col("Rate", func(p *rnicPort) any { return output.Or(p.port.Rate) }),
		col("Driver", func(p *rnicPort) any { return output.Or(p.device.Driver) }),
		col("PNET-ID", func(p *rnicPort) any { return pnetidCell(p.pnetid, p.byUser) }),
	},
	wide: []column[rnicPort]{
		col("PCI-Address", rnicPCICell(func(pci *sysfs.PCI) string { return pci.Address })),
		col("PCI-ID", rnicPCICell(func(pci *sysfs.PCI) string { return fmt.Sprintf("%04x:%04x", pci.Vendor, pci.Device) })),
		col("FID", rnicPCICell(func(pci *sysfs.PCI) string { return pci.FID })),
		col("PCHID", rnicPCICell(func(pci *sysfs.PCI) string { return pci.PCHID })),
		col(">NUMA", rnicPCICell(func(pci *sysfs.PCI) string {
			if pci.NUMANode < 0 {
				return ""
			}
			return fmt.Sprint(pci.NUMANode)
		})),
		col("Firmware", func(p *rnicPort) any { return output.Or(p.device.Firmware) }),
		col("GID", func(p *rnicPort) any {
			if len(p.port.GIDs) == 0 {
				return "-"
			}
			return p.port.GIDs[0].GID
		}),
	},
}

// rnicPCICell returns a cell of the PCI function of a device. Devices in software have
// none.
func rnicPCICell(text func(*sysfs.PCI) string) func(*rnicPort) any {
	return func(p *rnicPort) any {
		if p.device.PCI == nil {
			return "-"
		}
		return output.Or(text(p.device.PCI))
	}
}

// A rnicJSON is a port in JSON.
type rnicJSON struct {
	IBDev     string        `json:"ibdev"`
	IBPort    int           `json:"ibport"`
	NetDev    string        `json:"netdev"`
	State     string        `json:"state"`
	LinkLayer string        `json:"link_layer"`
	Rate      string        `json:"rate"`
	PNETID    string        `json:"pnetid"`
	PNETUser  bool          `json:"pnetid_by_user"`
	Driver    string        `json:"driver,omitempty"`
	Firmware  string        `json:"firmware,omitempty"`
	Board     string        `json:"board,omitempty"`
	NodeGUID  string        `json:"node_guid,omitempty"`
	PCI       *rnicPCIJSON  `json:"pci,omitempty"`
	GIDs      []rnicGIDJSON `json:"gids"`
}

type rnicPCIJSON struct {
	Address  string `json:"address"`
	Vendor   string `json:"vendor"`
	Device   string `json:"device"`
	NUMANode int    `json:"numa_node"`
	FID      string `json:"fid,omitempty"`
	PCHID    string `json:"pchid,omitempty"`
}

type rnicGIDJSON struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"`
	NetDev string `json:"netdev"`
}

func newRNICJSON(r nl.Row[rnicPort]) rnicJSON {
	d, p := r.Value.device, r.Value.port
	j := rnicJSON{
		IBDev: d.Name, IBPort: p.Number, NetDev: p.NetDev, State: p.State, LinkLayer: p.LinkLayer, Rate: p.Rate,
		PNETID: r.Value.pnetid, PNETUser: r.Value.byUser, Driver: d.Driver, Firmware: d.Firmware, Board: d.Board, NodeGUID: d.NodeGUID, GIDs: []rnicGIDJSON{},
	}
	if pci := d.PCI; pci != nil {
		j.PCI = &rnicPCIJSON{pci.Address, fmt.Sprintf("%04x", pci.Vendor), fmt.Sprintf("%04x", pci.Device), pci.NUMANode, pci.FID, pci.PCHID}
	}
	for _, g := range p.GIDs {
		j.GIDs = append(j.GIDs, rnicGIDJSON(g))
	}
	return j
}
