// SPDX-License-Identifier: Apache-2.0

package pnet

import "slices"

// A Port is a RoCE port that may serve connections.
type Port struct {
	Device   string // name of the RoCE device
	Port     uint8  // 1 or 2
	NetDev   string // network device that the port belongs to, or ""
	Hardware string // pnetid that the hardware reports, or ""
	Active   bool   // the port can carry traffic

	// Software says that the port is software RoCE on NetDev. A port without an
	// entry then has the pnetid of NetDev, unless the table has an entry for a RoCE
	// port with this pnetid: an operator who names ports names all that are to be
	// used. The devices below NetDev do not count, because the port is not in their
	// other VLANs.
	Software bool
}

// A NetDev is the network device of a route.
type NetDev struct {
	Name string // name of the device

	// Lower has the names of the devices below it, the nearest first: for a VLAN or
	// macvlan device its parent, for a bond its members.
	Lower []string

	// Hardware is the pnetid that the hardware of the lowest device reports,
	// or "".
	Hardware string
}

// names returns the names of the device and of those below it.
func (d NetDev) names() []string { return append([]string{d.Name}, d.Lower...) }

// ID returns the pnetid of a network device: the one that its hardware reports,
// otherwise the one that the table has for the device or for the nearest device below
// it. It returns "" if there is none.
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
// otherwise the one that the table has for the port. It returns "" if there is none.
// As in the kernel, a port does not have the pnetid of its network device, unless it
// is Software.
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

// Match returns the active ports that may serve connections over a network device,
// the most suitable first, and the pnetid of the device. If it has a pnetid, these are
// the ports with the same pnetid, on any network device. Otherwise they are the ports
// of the network device itself and of the devices below it.
//
// Ports of the network device itself come first, so that a connection uses the path of
// its route if it can.
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
