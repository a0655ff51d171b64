// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr device.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "device",
		Aliases: []string{"dev"},
		Short:   "Show the RoCE devices that SMC-R can use",
	})
	cmd.AddCommand(newCmdList(f, nil))
	return cmd
}

type listOptions struct {
	watch.ListOptions

	netdev, ibdev, pnetid, state cmdutil.Filter
}

func newCmdList(f *cmdutil.Factory, runF func(*listOptions) error) *cobra.Command {
	opts := &listOptions{ListOptions: watch.ListOptions{Factory: f}}
	cmd := &cobra.Command{
		Use:     "list [DEVICE...]",
		Aliases: []string{"show"},
		Short:   "List RoCE devices, one line per port",
		Long: "List the RoCE devices that SMC-R can use, one line per port. Arguments select\n" +
			"devices by their name or the name of their network device.\n\n" +
			"Crit is Yes if the loss of the device would break connections, because their\n" +
			"link group has no other link. An asterisk before a PNET-ID means that a user\n" +
			"set it, not the hardware.",
		Example: "  smcr device list\n  smcr device list eth0\n  smcr device list --state inactive\n  smcr device list -o json",
		RunE:    cmdutil.RunE(opts, runF, listRun),
	}
	opts.AddFlags(cmd, cmdutil.FormatTable, cmdutil.FormatWide, cmdutil.FormatJSON)
	opts.AddNames(cmd, "RoCE device", func(s string) (told, key string, err error) {
		if s == "" {
			err = errors.New("it is empty")
		}
		return strconv.Quote(s), s, err
	}, f.CompleteIBDevs())
	cmdutil.AddFilter(cmd, &opts.netdev, "netdev", "show only ports of this network `device`", cmdutil.CompleteNetDevs)
	cmdutil.AddFilter(cmd, &opts.ibdev, "ibdev", "show only this RoCE `device`", f.CompleteIBDevs())
	cmdutil.AddUpperFilter(cmd, &opts.pnetid, "pnetid", "show only ports with this `pnetid`", f.CompletePNETIDs(false))
	cmdutil.AddChoiceFilter(cmd, &opts.state, "state", "show only ports in this `state`", "ACTIVE", "INACTIVE")
	return cmd
}

// A deviceJSON is a device in JSON.
type deviceJSON struct {
	Stack    string     `json:"stack"`
	Name     string     `json:"ibdev"`
	Type     string     `json:"type"`
	Critical bool       `json:"critical"`
	UseCount uint32     `json:"use_count"`
	Provider string     `json:"provider,omitempty"`
	PCI      *pciJSON   `json:"pci,omitempty"`
	Ports    []portJSON `json:"ports"`
}

type pciJSON struct {
	ID     string `json:"id"`
	FID    uint32 `json:"fid"`
	CHID   uint16 `json:"pchid"`
	Vendor uint16 `json:"vendor"`
	Device uint16 `json:"device"`
}

type portJSON struct {
	Port     int    `json:"ibport"`
	NetDev   string `json:"netdev"`
	IfIndex  uint32 `json:"ifindex"`
	State    string `json:"state"`
	PNETID   string `json:"pnetid"`
	PNETUser bool   `json:"pnetid_by_user"`
	Links    uint32 `json:"links"`
	GID      string `json:"gid,omitempty"`
	MTU      uint32 `json:"mtu,omitempty"`
}

// kind names a device by its PCI device ID, as smc-tools does, or by what
// implements it.
func kind(d *nl.Device) string {
	switch {
	case d.PCI == nil:
		return d.Provider
	case d.PCI.Device == 0x1004:
		return "RoCE_Express"
	case d.PCI.Device == 0x1016:
		return "RoCE_Express2"
	case d.PCI.Device == 0x101e:
		return "RoCE_Express3"
	case d.PCI.Device == 0x04ed:
		return "ISM"
	}
	return fmt.Sprintf("%#x", d.PCI.Device)
}

func state(p *nl.Port) string {
	if p.Active {
		return "ACTIVE"
	}
	return "INACTIVE"
}

func toJSON(r nl.Row[nl.Device], netdev func(uint32) string) deviceJSON {
	d := &r.Value
	j := deviceJSON{
		Stack: r.Stack, Name: d.Name, Type: kind(d), Critical: d.Critical, UseCount: d.UseCount,
		Provider: d.Provider, Ports: []portJSON{},
	}
	if d.PCI != nil {
		j.PCI = &pciJSON{d.PCI.ID, d.PCI.FID, d.PCI.CHID, d.PCI.Vendor, d.PCI.Device}
	}
	for i := range d.Ports {
		p := &d.Ports[i]
		if !p.Valid {
			continue
		}
		pj := portJSON{
			Port: i + 1, NetDev: netdev(p.NetDev), IfIndex: p.NetDev, State: state(p),
			PNETID: p.PNETID, PNETUser: p.PNETUser, Links: p.Links, MTU: p.MTU,
		}
		if !p.GID.IsZero() {
			pj.GID = p.GID.String()
		}
		j.Ports = append(j.Ports, pj)
	}
	return j
}

func listRun(ctx context.Context, opts *listOptions) error {
	return watch.List[nl.Device, deviceJSON]{
		Read: nl.Control.Devices,
		Names: func(d *nl.Device) []string {
			names := []string{d.Name}
			for i := range d.Ports {
				if d.Ports[i].Valid {
					names = append(names, opts.NetDev(d.Ports[i].NetDev))
				}
			}
			return names
		},
		Filter: watch.Keep(opts.keep),
		JSON:   func(r nl.Row[nl.Device]) deviceJSON { return toJSON(r, opts.NetDev) },
		Table:  func(rows []nl.Row[nl.Device], wide bool) *output.Table { return table(rows, wide, opts.NetDev) },
	}.Show(ctx, &opts.ListOptions)
}

// keep leaves those ports of a device that were asked for, and reports whether
// there are any.
func (o *listOptions) keep(d *nl.Device) bool {
	if !o.ibdev.Keep(d.Name) {
		return false
	}
	asked := o.netdev.Any() || o.pnetid.Any() || o.state.Any()
	left := !asked
	// The number of a port is its place: those left out become invalid.
	d.Ports = slices.Clone(d.Ports)
	for i := range d.Ports {
		p := &d.Ports[i]
		if p.Valid = p.Valid && o.netdev.Keep(o.NetDev(p.NetDev)) && o.pnetid.Keep(p.PNETID) && o.state.Keep(state(p)); p.Valid {
			left = true
		}
	}
	return left
}

func table(rows []nl.Row[nl.Device], wide bool, netdev func(uint32) string) *output.Table {
	names := []string{"Net-Dev", "IB-Dev", ">IB-P", "IB-State", "Type", "Crit", ">#Links", "PNET-ID"}
	if wide {
		names = append(names, "FID", "PCI-ID", "PCHID", ">MTU", "GID")
	}
	t := output.NewTable(append(names, "Stack")...)
	for _, r := range rows {
		d := &r.Value
		crit := "No"
		if d.Critical {
			crit = "Yes"
		}
		for i := range d.Ports {
			p := &d.Ports[i]
			if !p.Valid {
				continue
			}
			id := output.Or(p.PNETID)
			if p.PNETUser && p.PNETID != "" {
				id = "*" + id
			}
			cells := []any{output.Or(netdev(p.NetDev)), d.Name, i + 1, state(p), output.Or(kind(d)), crit, p.Links, id}
			if wide {
				fid, pci, pchid, gid := "-", "-", "-", "-"
				if d.PCI != nil {
					fid, pci, pchid = fmt.Sprintf("%04x", d.PCI.FID), output.Or(d.PCI.ID), fmt.Sprintf("%04x", d.PCI.CHID)
				}
				if !p.GID.IsZero() {
					gid = p.GID.String()
				}
				cells = append(cells, fid, pci, pchid, p.MTU, gid)
			}
			t.Add(append(cells, r.Stack)...)
		}
	}
	return t
}
