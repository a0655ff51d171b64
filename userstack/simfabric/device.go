// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// namePrefix begins the names of RDMA devices: the device on netdev eth0 is sim-eth0.
const namePrefix = "sim-"

// Limits of every device.
const (
	maxInline = 256     // bytes
	maxMsg    = 1 << 30 // bytes
	maxQPWR   = 1 << 14
	maxReads  = 16
	numEvents = 64
)

// Provider returns the RDMA devices of the host: one on each netdev, with the name that
// [DeviceOn] gives.
func (h *Host) Provider() rdmaverbs.Provider { return provider{h: h} }

// DeviceOn returns the name of the device of [Host.Provider] on a netdev.
func DeviceOn(netdev string) string { return namePrefix + netdev }

// Adapter returns a provider of one device with this name and with a port on each of the
// netdevs. The port of a netdev that was removed is down, and the device fails with the
// last of its netdevs. Like a hardware adapter, the device does not have the pnetids of
// its netdevs.
func (h *Host) Adapter(name string, netdevs ...string) rdmaverbs.Provider {
	return adapter{provider{h: h}, name, netdevs}
}

type provider struct {
	h *Host
	l *Loop // may be nil
}

// Name implements rdmaverbs.Provider.
func (provider) Name() string { return "sim" }

// Devices implements rdmaverbs.Provider.
func (p provider) Devices(context.Context) ([]rdmaverbs.DeviceInfo, error) {
	p.h.w.mu.Lock()
	defer p.h.w.mu.Unlock()
	var out []rdmaverbs.DeviceInfo
	for _, n := range p.h.devs {
		if n.hasRDMA() {
			out = append(out, rdmaverbs.DeviceInfo{Name: DeviceOn(n.Name), Software: true, Ports: []rdmaverbs.PortInfo{{NetDev: n.Name}}})
		}
	}
	return out, nil
}

// Open implements rdmaverbs.Provider.
func (p provider) Open(_ context.Context, name string) (rdmaverbs.Device, error) {
	dev, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return nil, p.noDevice(name)
	}
	return p.open(name, dev)
}

func (p provider) noDevice(name string) error {
	return fmt.Errorf("simfabric: open %s on %s: %w", name, p.h.name, rdmaverbs.ErrNoDevice)
}

// open opens a device with ports on the netdevs that exist.
func (p provider) open(name string, netdevs ...string) (rdmaverbs.Device, error) {
	w := p.h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	d := &Device{w: w, name: name, loop: p.l, events: make(chan rdmaverbs.AsyncEvent, numEvents)}
	for _, netdev := range netdevs {
		n := p.h.find(netdev)
		if n == nil || !n.hasRDMA() {
			return nil, p.noDevice(name)
		}
		d.ports = append(d.ports, n)
	}
	for _, n := range d.ports {
		n.opened = append(n.opened, d)
	}
	w.count.Devices++
	return d, nil
}

// adapter is a provider with one device.
type adapter struct {
	provider
	name    string
	netdevs []string
}

// Name implements rdmaverbs.Provider.
func (adapter) Name() string { return "sim-adapter" }

// Devices implements rdmaverbs.Provider.
func (a adapter) Devices(context.Context) ([]rdmaverbs.DeviceInfo, error) {
	a.h.w.mu.Lock()
	defer a.h.w.mu.Unlock()
	d := rdmaverbs.DeviceInfo{Name: a.name}
	for _, netdev := range a.netdevs {
		n := a.h.find(netdev)
		if n == nil || !n.hasRDMA() {
			return nil, nil
		}
		d.Ports = append(d.Ports, rdmaverbs.PortInfo{NetDev: netdev})
	}
	return []rdmaverbs.DeviceInfo{d}, nil
}

// Open implements rdmaverbs.Provider.
func (a adapter) Open(_ context.Context, name string) (rdmaverbs.Device, error) {
	if name != a.name {
		return nil, a.noDevice(name)
	}
	return a.open(name, a.netdevs...)
}

// Device is an RDMA device.
type Device struct {
	w      *World
	name   string
	ports  []*netdev // ports[0] is port 1
	loop   *Loop     // announces completions and sends what is posted; may be nil
	events chan rdmaverbs.AsyncEvent
	gone   bool
	closed bool
}

var _ rdmaverbs.Device = (*Device)(nil)

// Name implements rdmaverbs.Device.
func (d *Device) Name() string { return d.name }

// Attr implements rdmaverbs.Device.
func (d *Device) Attr() rdmaverbs.DeviceAttr {
	n := d.ports[0]
	return rdmaverbs.DeviceAttr{
		Provider: "sim", NodeGUID: guid(n.mac), NumPorts: len(d.ports), MaxQP: 1 << 16, MaxMR: 1 << 20, MaxMsg: maxMsg,
		MaxSGE: 2, MaxQPWR: maxQPWR, MaxRead: maxReads, OnDemandPaging: !d.w.cfg.Pinned,
		NetDev: n.Name, IfIndex: n.index, HWAddr: slices.Clone(n.mac),
	}
}

// port returns the netdev below a port.
func (d *Device) port(num int) (*netdev, error) {
	if num < 1 || num > len(d.ports) {
		return nil, fmt.Errorf("simfabric: port %d of a device with %d: %w", num, len(d.ports), rdmaverbs.ErrInvalid)
	}
	return d.ports[num-1], nil
}

// Port implements rdmaverbs.Device.
func (d *Device) Port(num int) (rdmaverbs.PortAttr, error) {
	n, err := d.port(num)
	if err != nil {
		return rdmaverbs.PortAttr{}, err
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	p := rdmaverbs.PortAttr{
		State: rdmaverbs.PortDown, MaxMTU: smc.MTU4096, ActiveMTU: n.MTU,
		NetDev: n.Name, IfIndex: n.index, HWAddr: slices.Clone(n.mac), VLAN: n.VLAN,
	}
	if n.up && !n.gone && d.usable() == nil {
		p.State = rdmaverbs.PortActive
	}
	return p, nil
}

// GIDs implements rdmaverbs.Device: the table has one entry for RoCE version 1, and one
// for RoCE version 2 and each IPv4 address.
func (d *Device) GIDs(port int) ([]rdmaverbs.GIDEntry, error) {
	n, err := d.port(port)
	if err != nil {
		return nil, err
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if n.noGIDs {
		return nil, nil
	}
	return slices.Clone(n.gids), nil
}

// Events implements rdmaverbs.Device.
func (d *Device) Events() <-chan rdmaverbs.AsyncEvent { return d.events }

// event reports ev, or drops it if the reader is too slow. mu is held.
func (d *Device) event(ev rdmaverbs.AsyncEvent) {
	if d.closed {
		return
	}
	select {
	case d.events <- ev:
	default:
	}
}

// portEvent reports an event of the port on a netdev. mu is held.
func (d *Device) portEvent(t rdmaverbs.AsyncEventType, n *netdev) {
	d.event(rdmaverbs.AsyncEvent{Type: t, Port: slices.Index(d.ports, n) + 1})
}

// removed tells the device that one of its netdevs was removed. After the last one, the
// device fails. mu is held.
func (d *Device) removed(n *netdev) {
	if d.gone || d.closed {
		return
	}
	d.gone = !slices.ContainsFunc(d.ports, func(o *netdev) bool { return !o.gone })
	d.portEvent(rdmaverbs.EventPortErr, n)
	if d.gone {
		d.event(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventDeviceFatal})
	}
	for _, q := range d.qps() {
		if q.n == n {
			q.loseHeld()
			q.fail("device lost")
		}
	}
}

// qps returns the queue pairs of the device by number, so that their order is the same in
// each run. mu is held.
func (d *Device) qps() []*qp {
	var out []*qp
	for _, q := range d.w.qps {
		if q.dev == d {
			out = append(out, q)
		}
	}
	slices.SortFunc(out, func(a, b *qp) int { return int(a.qpn) - int(b.qpn) })
	return out
}

func (d *Device) usable() error {
	switch {
	case d.closed:
		return fmt.Errorf("simfabric: device %s: %w", d.Name(), rdmaverbs.ErrClosed)
	case d.gone:
		return fmt.Errorf("simfabric: netdev of device %s is gone: %w", d.Name(), rdmaverbs.ErrNoDevice)
	}
	return nil
}

// Close implements rdmaverbs.Device.
func (d *Device) Close() error {
	d.w.mu.Lock()
	defer d.w.unlock()
	if d.closed {
		return fmt.Errorf("simfabric: device %s: %w", d.Name(), rdmaverbs.ErrClosed)
	}
	for _, q := range d.qps() {
		q.toError()
	}
	d.event(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventDeviceFatal})
	d.closed = true
	d.w.count.Devices--
	for _, n := range d.ports {
		n.opened = slices.DeleteFunc(n.opened, func(o *Device) bool { return o == d })
	}
	close(d.events)
	return nil
}

// AllocPD implements rdmaverbs.Device.
func (d *Device) AllocPD() (rdmaverbs.PD, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	d.w.count.PDs++
	return &pd{dev: d, w: d.w}, nil
}

// CreateCQ implements rdmaverbs.Device.
func (d *Device) CreateCQ(depth int, notify func()) (rdmaverbs.CQ, error) {
	if depth <= 0 {
		return nil, fmt.Errorf("simfabric: completion queue of %d entries: %w", depth, rdmaverbs.ErrInvalid)
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	d.w.count.CQs++
	c := &cq{dev: d, w: d.w, notify: notify}
	if d.loop != nil && notify != nil {
		c.on = &watch{src: d.loop.src, f: notify}
	}
	return c, nil
}
