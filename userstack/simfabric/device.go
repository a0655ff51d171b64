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

// DevicePrefix begins the names of RDMA devices: the one on netdev eth0 is
// soft-eth0, as with software RoCE.
const DevicePrefix = "soft-"

// Limits of every device.
const (
	maxInline = 256     // bytes
	maxMsg    = 1 << 30 // bytes
	maxQPWR   = 1 << 14
	maxReads  = 16
	numEvents = 64
)

// Provider returns the RDMA devices of the host.
func (h *Host) Provider() rdmaverbs.Provider { return provider{h: h} }

type provider struct {
	h *Host
	l *Loop // may be nil
}

// Name implements rdmaverbs.Provider.
func (provider) Name() string { return "sim" }

// Devices implements rdmaverbs.Provider.
func (p provider) Devices(context.Context) ([]string, error) {
	p.h.w.mu.Lock()
	defer p.h.w.mu.Unlock()
	var out []string
	for _, n := range p.h.devs {
		if !n.gone && !n.NoRDMA {
			out = append(out, DevicePrefix+n.Name)
		}
	}
	return out, nil
}

// Open implements rdmaverbs.Provider.
func (p provider) Open(_ context.Context, name string) (rdmaverbs.Device, error) {
	w := p.h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	dev, ok := strings.CutPrefix(name, DevicePrefix)
	n := p.h.find(dev)
	if !ok || n == nil || n.gone || n.NoRDMA {
		return nil, fmt.Errorf("simfabric: open %s on %s: %w", name, p.h.name, rdmaverbs.ErrNoDevice)
	}
	d := &Device{w: w, n: n, loop: p.l, events: make(chan rdmaverbs.AsyncEvent, numEvents)}
	n.opened = append(n.opened, d)
	w.count.Devices++
	return d, nil
}

// Device is an RDMA device with one port.
type Device struct {
	w      *World
	n      *netdev
	loop   *Loop // announces what comes, and sends what is posted; may be nil
	events chan rdmaverbs.AsyncEvent
	gone   bool
	closed bool
}

var _ rdmaverbs.Device = (*Device)(nil)

// Name implements rdmaverbs.Device.
func (d *Device) Name() string { return DevicePrefix + d.n.Name }

// Attr implements rdmaverbs.Device.
func (d *Device) Attr() rdmaverbs.DeviceAttr {
	return rdmaverbs.DeviceAttr{
		Provider: "sim", NodeGUID: guid(d.n.mac), NumPorts: 1, MaxQP: 1 << 16, MaxMR: 1 << 20, MaxMsg: maxMsg,
		MaxSGE: 2, MaxQPWR: maxQPWR, MaxRead: maxReads, OnDemandPaging: true,
		NetDev: d.n.Name, IfIndex: d.n.index, HWAddr: slices.Clone(d.n.mac),
	}
}

func checkPort(num int) error {
	if num != 1 {
		return fmt.Errorf("simfabric: port %d, there is only port 1: %w", num, rdmaverbs.ErrInvalid)
	}
	return nil
}

// Port implements rdmaverbs.Device.
func (d *Device) Port(num int) (rdmaverbs.PortAttr, error) {
	if err := checkPort(num); err != nil {
		return rdmaverbs.PortAttr{}, err
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	p := rdmaverbs.PortAttr{
		State: rdmaverbs.PortDown, MaxMTU: smc.MTU4096, ActiveMTU: d.n.MTU,
		NetDev: d.n.Name, IfIndex: d.n.index, HWAddr: slices.Clone(d.n.mac), VLAN: d.n.VLAN,
	}
	if d.n.up && d.usable() == nil {
		p.State = rdmaverbs.PortActive
	}
	return p, nil
}

// GIDs implements rdmaverbs.Device: the table has one RoCE version 1 entry, and
// one of RoCE version 2 for each IPv4 address.
func (d *Device) GIDs(port int) ([]rdmaverbs.GIDEntry, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.n.noGIDs {
		return nil, nil
	}
	return slices.Clone(d.n.gids), nil
}

// Events implements rdmaverbs.Device.
func (d *Device) Events() <-chan rdmaverbs.AsyncEvent { return d.events }

// event reports ev unless the reader is behind. mu is held.
func (d *Device) event(ev rdmaverbs.AsyncEvent) {
	if d.closed {
		return
	}
	select {
	case d.events <- ev:
	default:
	}
}

// lost ends the device. mu is held.
func (d *Device) lost() {
	if d.gone || d.closed {
		return
	}
	d.gone = true
	d.event(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventPortErr, Port: 1})
	d.event(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventDeviceFatal})
	for _, q := range d.qps() {
		q.forget()
		q.fail("device lost")
	}
}

// qps returns the device's queue pairs by number, so that what is done to
// them has the same order each time. mu is held.
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
	d.n.opened = slices.DeleteFunc(d.n.opened, func(o *Device) bool { return o == d })
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
