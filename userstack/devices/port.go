// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"net/netip"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/linkgroup"
)

// A Device is an open RDMA device. It is the same pointer as long as the device is
// open.
type Device struct {
	key
	rdma  rdmaverbs.Device
	attr  rdmaverbs.DeviceAttr // when it was opened
	ports []*Port              // ports[0] is port 1; never empty
	done  chan struct{}        // closed when no more events are reported
}

// Name returns the name of the device, as listings show it and pnetids name it.
func (d *Device) Name() string { return d.rdma.Name() }

// RDMA returns the verbs of the device. Only the set closes it.
func (d *Device) RDMA() rdmaverbs.Device { return d.rdma }

// OnDemandPaging reports whether pages of registered memory may be given back to the
// system. See rdmaverbs.DeviceAttr.
func (d *Device) OnDemandPaging() bool { return d.attr.OnDemandPaging }

// Ports returns the ports in the order of their numbers.
func (d *Device) Ports() []*Port { return d.ports }

// port returns the port that c names.
func (d *Device) port(c candidate) (*Port, error) {
	if c.num < 1 || c.num > len(d.ports) {
		return nil, fmt.Errorf("%s has no port %d: %w", d.Name(), c.num, rdmaverbs.ErrNoDevice)
	}
	return d.ports[c.num-1], nil
}

// A Port is a port of an open device. It is the same pointer as long as the device is
// open.
type Port struct {
	id  int
	num int // from 1
	dev *Device
}

// ID returns a number that no other port of the set has or had.
func (p *Port) ID() int { return p.id }

// Num returns the number of the port in its device, from 1.
func (p *Port) Num() int { return p.num }

// Device returns the device of the port.
func (p *Port) Device() *Device { return p.dev }

// Name returns the name of the device.
func (p *Port) Name() string { return p.dev.Name() }

// Attr returns the state of the port.
func (p *Port) Attr() (rdmaverbs.PortAttr, error) { return p.dev.rdma.Port(p.num) }

// Active reports whether the port is active now.
func (p *Port) Active() bool {
	a, err := p.Attr()
	return err == nil && a.State == rdmaverbs.PortActive
}

// IfIndex returns the interface index of the netdev of the port, 0 if there is none.
func (p *Port) IfIndex() int {
	if p.num == 1 { // also known when the netdev is gone
		return p.dev.rdma.Attr().IfIndex
	}
	a, _ := p.Attr()
	return a.IfIndex
}

// Describe describes the port to the protocol core as it is now. subnet is as for
// SourceGID.
func (p *Port) Describe(subnet netip.Prefix) (linkgroup.Device, error) {
	a, err := p.Attr()
	if err != nil {
		return linkgroup.Device{}, err
	}
	_, gid, err := p.SourceGID(subnet)
	if err != nil {
		return linkgroup.Device{}, err
	}
	d := linkgroup.Device{ID: p.id, Name: p.Name(), GID: gid, MTU: a.ActiveMTU, Up: a.State == rdmaverbs.PortActive}
	copy(d.MAC[:], a.HWAddr)
	return d, nil
}

// SourceGID picks the GID that CLC messages name, and returns its index in the GID
// table, too.
//
// With the zero Prefix it is the GID of SMC-R version 1: the link-local entry of RoCE
// version 1. If the port offers RoCE version 2 only, it is the link-local entry of
// that. Otherwise it is the GID of SMC-R version 2: a RoCE version 2 entry that is an
// address in subnet, preferably the address of subnet itself.
//
// The error is ErrNoDevice if there is no such entry.
func (p *Port) SourceGID(subnet netip.Prefix) (int, smc.GID, error) {
	gids, err := p.dev.rdma.GIDs(p.num)
	if err != nil {
		return 0, smc.GID{}, err
	}
	if subnet.IsValid() {
		found := -1
		for i, e := range gids {
			switch a := e.GID.Addr(); {
			case e.Type != rdmaverbs.RoCEv2 || !subnet.Contains(a):
			case found < 0 || a == subnet.Addr():
				found = i
			}
		}
		if found < 0 {
			return 0, smc.GID{}, fmt.Errorf("%w: %s has no RoCE version 2 GID in %s", ErrNoDevice, p.Name(), subnet.Masked())
		}
		return found, gids[found].GID, nil
	}
	for _, want := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
		for i, e := range gids {
			if e.Type == want && e.GID.Addr().IsLinkLocalUnicast() && e.GID.Addr().Is6() {
				return i, e.GID, nil
			}
		}
	}
	return 0, smc.GID{}, fmt.Errorf("%w: %s has no link-local GID", ErrNoDevice, p.Name())
}
