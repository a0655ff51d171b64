// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/printable"
	"smcr/nl"

	"github.com/spf13/cobra"
)

func newDevice(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "device",
		Aliases: []string{"dev"},
		Short:   "Show the RoCE devices that SMC-R can use",
		Example: "  smcr device list\n  smcr device list -o json",
	})
	cmd.AddCommand(newDeviceList(f))
	return cmd
}

// A devicePort is a line of the table of devices.
type devicePort struct {
	device *nl.Device
	port   *nl.Port
	number int // from 1
}

func newDeviceList(f *cmdutil.Factory) *cobra.Command {
	ports := portFilters{
		byNetDev("show only ports of this network `device`", func(p *nl.Port) []string { return []string{f.NetDev(p.NetDev)} }),
		byPNETID(f, "show only ports with this `pnetid`", func(p *nl.Port) string { return p.PNETID }),
		byChoice("state", "show only ports in this `state`", portState, "ACTIVE", "INACTIVE"),
	}
	cmd := list[nl.Device, deviceJSON]{
		source: traffic(nl.Control.Devices),
		naming: &naming[nl.Device]{
			what: "RoCE device",
			parse: func(s string) (shown, name string, err error) {
				if s == "" {
					err = errors.New("it is empty")
				}
				return strconv.Quote(s), s, err
			},
			of: func(d *nl.Device) []string {
				names := []string{d.Name}
				for _, p := range validPorts(d) {
					names = append(names, f.NetDev(p.port.NetDev))
				}
				return names
			},
			complete: f.CompleteIBDevs(),
		},
		filters: []*filter[nl.Device]{
			byIBDev(f, "show only this RoCE `device`", func(d *nl.Device) []string { return []string{d.Name} }),
		},
		flags:  ports.add,
		keep:   ports.keep,
		layout: lines[nl.Device, devicePort]{validPorts, deviceColumns(f.NetDev)},
		json:   func(r nl.Row[nl.Device]) deviceJSON { return newDeviceJSON(r, f.NetDev) },
	}.command(f, &cobra.Command{
		Use:     "list [DEVICE...]",
		Aliases: []string{"show"},
		Short:   "List RoCE devices, one line per port",
		Long: "List the RoCE devices that SMC-R can use, one line per port. Arguments select\n" +
			"devices by their name or the name of their network device.\n\n" +
			"Crit is Yes if the loss of the device would break connections, because their\n" +
			"link group has no other link. An asterisk before a PNET-ID means that a user\n" +
			"set it, not the hardware.\n\n" +
			"Version 2 of SMC-R uses the IPv4 addresses of devices. So connections over IPv6, and\n" +
			"all connections of a host without IPv4, use version 1, for which both hosts must be in\n" +
			"one subnet. If the devices of a stack have no RoCE version 2, because another program\n" +
			"has UDP port 4791, standard error says so, and 'smcr info' which program it could be.",
		Example: "  smcr device list\n  smcr device list eth0\n  smcr device list --state inactive\n  smcr device list -o json",
	})
	show := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := show(cmd, args)
		if err == nil {
			noteRoCEv1(cmd.Context(), f)
		}
		return err
	}
	return cmd
}

// noteRoCEv1 says of which stacks the devices lack RoCE version 2, although they should have it.
func noteRoCEv1(ctx context.Context, f *cmdutil.Factory) {
	// A stack that does not answer now did so for the list.
	_ = f.With(ctx, func(ctx context.Context, m nl.Multi) error {
		for _, b := range m {
			if info, err := b.SysInfo(ctx); err == nil && (&stackInfo{SysInfo: info}).onlyRoCEv1() && len(info.Problems) > 0 {
				printable.Fprintf(f.IO.ErrOut, "smcr: the devices of the %s stack have no RoCE version 2, so connections use version 1 of SMC: see 'smcr info'\n", b.Name)
			}
		}
		return nil
	})
}

// portFilters are the filters of smcr device list that select ports.
type portFilters []*filter[nl.Port]

func (s portFilters) add(cmd *cobra.Command) {
	for _, f := range s {
		f.add(cmd)
	}
}

// keep removes the ports of a device that the filters do not keep, and reports whether
// the device remains in the list.
func (s portFilters) keep(_ *options, d *nl.Device) bool {
	if !slices.ContainsFunc(s, func(f *filter[nl.Port]) bool { return f.Any() }) {
		return true
	}
	// The number of a port is its index: a port that is removed becomes invalid.
	d.Ports = slices.Clone(d.Ports)
	for i := range d.Ports {
		p := &d.Ports[i]
		p.Valid = p.Valid && !slices.ContainsFunc(s, func(f *filter[nl.Port]) bool { return !f.keep(p) })
	}
	return slices.ContainsFunc(d.Ports, func(p nl.Port) bool { return p.Valid })
}

// validPorts returns the ports of a device.
func validPorts(d *nl.Device) (ports []devicePort) {
	for i := range d.Ports {
		if d.Ports[i].Valid {
			ports = append(ports, devicePort{d, &d.Ports[i], i + 1})
		}
	}
	return ports
}

// A deviceJSON is a device in JSON.
type deviceJSON struct {
	Stack    string           `json:"stack"`
	Name     string           `json:"ibdev"`
	Type     string           `json:"type"`
	Critical bool             `json:"critical"`
	UseCount uint32           `json:"use_count"`
	Provider string           `json:"provider,omitempty"`
	Refused  *refusedJSON     `json:"refused,omitempty"`
	Resent   *resentJSON      `json:"resent,omitempty"`
	PCI      *devicePCIJSON   `json:"pci,omitempty"`
	Ports    []devicePortJSON `json:"ports"`
}

// A refusedJSON is what a user-space device refused.
type refusedJSON struct {
	Source uint64 `json:"source"`
	PSN    uint64 `json:"psn"`
	Key    uint64 `json:"key"`
}

// A resentJSON is what a user-space device or link sent again.
type resentJSON struct {
	Packets  uint64 `json:"packets"`
	Timeouts uint64 `json:"timeouts"`
}

type devicePCIJSON struct {
	ID     string `json:"id"`
	FID    uint32 `json:"fid"`
	CHID   uint16 `json:"pchid"`
	Vendor uint16 `json:"vendor"`
	Device uint16 `json:"device"`
}

type devicePortJSON struct {
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

// deviceType returns the type of a device by its PCI device ID, with the names of
// smc-tools, or the provider of a device in software.
func deviceType(d *nl.Device) string {
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

func portState(p *nl.Port) string {
	if p.Active {
		return "ACTIVE"
	}
	return "INACTIVE"
}

func newDeviceJSON(r nl.Row[nl.Device], netdev func(uint32) string) deviceJSON {
	d := &r.Value
	j := deviceJSON{
		Stack: r.Stack, Name: d.Name, Type: deviceType(d), Critical: d.Critical, UseCount: d.UseCount,
		Provider: d.Provider, Ports: []devicePortJSON{},
	}
	if d.PCI != nil {
		j.PCI = &devicePCIJSON{d.PCI.ID, d.PCI.FID, d.PCI.CHID, d.PCI.Vendor, d.PCI.Device}
	}
	if d.Provider != "" {
		refused := refusedJSON(d.Refused)
		j.Refused = &refused
	}
	if d.Resent != nil {
		resent := resentJSON(*d.Resent)
		j.Resent = &resent
	}
	for _, line := range validPorts(d) {
		p := line.port
		pj := devicePortJSON{
			Port: line.number, NetDev: netdev(p.NetDev), IfIndex: p.NetDev, State: portState(p),
			PNETID: p.PNETID, PNETUser: p.PNETUser, Links: p.Links, MTU: p.MTU,
		}
		if !p.GID.IsZero() {
			pj.GID = p.GID.String()
		}
		j.Ports = append(j.Ports, pj)
	}
	return j
}

// deviceColumns returns the columns of smcr device list.
func deviceColumns(netdev func(uint32) string) columns[devicePort] {
	return columns[devicePort]{
		always: []column[devicePort]{
			col("Net-Dev", func(l *devicePort) any { return output.Or(netdev(l.port.NetDev)) }),
			col("IB-Dev", func(l *devicePort) any { return l.device.Name }),
			col(">IB-P", func(l *devicePort) any { return l.number }),
			col("IB-State", func(l *devicePort) any { return portState(l.port) }),
			col("Type", func(l *devicePort) any { return output.Or(deviceType(l.device)) }),
			col("Crit", func(l *devicePort) any { return output.YesNo(l.device.Critical) }),
			col(">#Links", func(l *devicePort) any { return l.port.Links }),
			col("PNET-ID", func(l *devicePort) any { return pnetidCell(l.port.PNETID, l.port.PNETUser) }),
		},
		wide: []column[devicePort]{
			col("FID", pciCell(func(p *nl.PCI) any { return fmt.Sprintf("%04x", p.FID) })),
			col("PCI-ID", pciCell(func(p *nl.PCI) any { return output.Or(p.ID) })),
			col("PCHID", pciCell(func(p *nl.PCI) any { return fmt.Sprintf("%04x", p.CHID) })),
			col(">MTU", func(l *devicePort) any { return l.port.MTU }),
			col("GID", func(l *devicePort) any {
				if l.port.GID.IsZero() {
					return "-"
				}
				return l.port.GID
			}),
			col(">Refused", func(l *devicePort) any {
				if l.device.Provider == "" {
					return "-"
				}
				return l.device.Refused.Total()
			}),
			col(">Resent", func(l *devicePort) any {
				if l.device.Resent == nil {
					return "-"
				}
				return l.device.Resent.Packets
			}),
		},
	}
}

// pciCell returns a cell of the PCI function of a device. Devices in software have
// none.
func pciCell(cell func(*nl.PCI) any) func(*devicePort) any {
	return func(l *devicePort) any {
		if l.device.PCI == nil {
			return "-"
		}
		return cell(l.device.PCI)
	}
}

// pnetidCell returns a pnetid, with an asterisk if a user set it.
func pnetidCell(id string, user bool) string {
	if user && id != "" {
		return "*" + id
	}
	return output.Or(id)
}
