// SPDX-License-Identifier: Apache-2.0

package pnet

import "slices"

// A Port is a RoCE port that may serve connections.
type Port struct {
	Device   string // name of the RoCE device
	Port     uint8  // 1 or 2
	NetDev   string // network device that the port belongs to, or ""
	Hardware string // pnetid that the hardware reports, or ""
	Active   bool

	// Software tells that the port is nothing but software upon NetDev.
	// Without an entry of its own it has the pnetid in the entry of NetDev,
	// as long as no RoCE port was given that one: whoever names ports names
	// all that are to be used. A device beneath NetDev does not count, in
	// whose other VLANs the port is not.
	Software bool
}

// A NetDev is the network device of a route.
type NetDev struct {
	Name string

	// Lower names the devices it is stacked upon, nearest first: of a VLAN
	// or macvlan device the one beneath, of a bond its members.
	Lower []string

	// Hardware is the pnetid that the hardware of the lowest device reports,
	// or "".
	Hardware string
}

// names returns the device and those beneath it.
func (d NetDev) names() []string { return append([]string{d.Name}, d.Lower...) }

// ID returns the pnetid of a network device: the one that its hardware reports,
// else the one in the table of the device itself, or of the nearest device
// beneath it. It returns "" where there is none.
func (t *Table) ID(d NetDev) string {
	if d.Hardware != "" {
		return d.Hardware
	}
	for _, name := range d.names() {
		if id := t.NetDev(name); id != "" {
			return id
		}
	}
	return ""
}

// PortID returns the pnetid of a RoCE port: the one that its hardware reports,
// else the one in the table. It returns "" where there is none. As in the
// kernel, the pnetid of the port's network device is not the port's, except
// where the port is Software.
func (t *Table) PortID(p Port) string {
	if p.Hardware != "" {
		return p.Hardware
	}
	id := t.IBPort(p.Device, p.Port)
	if id != "" || !p.Software || p.NetDev == "" {
		return id
	}
	id = t.NetDev(p.NetDev)
	if t.find(func(e Entry) bool { return e.IBDev != "" && e.ID == id }) != "" {
		return ""
	}
	return id
}

// Match returns the active ports that may serve connections over a network
// device, the most suitable first. With a pnetid they are those of the same
// pnetid, in any network device; without one, those of the network device itself
// and of the devices beneath it. The pnetid is returned too.
//
// Ports of the network device itself come before others, so that a connection
// takes the way its route names as long as it can.
func (t *Table) Match(d NetDev, ports []Port) ([]Port, string) {
	id := t.ID(d)
	names := d.names()
	var own, other []Port
	for _, p := range ports {
		here := p.NetDev != "" && slices.Contains(names, p.NetDev)
		switch {
		case !p.Active:
		case id == "" && !here, id != "" && t.PortID(p) != id:
		case here:
			own = append(own, p)
		default:
			other = append(other, p)
		}
	}
	return append(own, other...), id
}
