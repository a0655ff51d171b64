// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"fmt"

	"smcr/rdmaverbs"
)

// Devices lists the devices of the netdevs that exist, in the order of their names.
func (p *Provider) Devices(ctx context.Context) ([]rdmaverbs.DeviceInfo, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f, err := newFacts()
	if err != nil {
		return nil, err
	}
	defer f.close()
	netdevs, err := f.netdevs()
	if err != nil {
		return nil, err
	}
	var out []rdmaverbs.DeviceInfo
	for _, n := range netdevs {
		name := namePrefix + n
		if _, ok := p.netdev(name); ok {
			out = append(out, rdmaverbs.DeviceInfo{Name: name, Software: true, Ports: []rdmaverbs.PortInfo{{NetDev: n}}})
		}
	}
	return out, nil
}

// WhyNone returns why there is no device on netdev, and the name that the device
// would have.
func (p *Provider) WhyNone(ctx context.Context, netdev string) (device string, err error) {
	device = DeviceName(netdev)
	_, err = p.Query(ctx, device)
	return device, err
}

// Open opens the device of that name. It needs CAP_NET_RAW. If the provider
// does not offer the device, or the netdev does not exist, the error wraps
// rdmaverbs.ErrNoDevice.
func (p *Provider) Open(ctx context.Context, name string) (rdmaverbs.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	netdev, ok := p.netdev(name)
	if !ok {
		return nil, fmt.Errorf("softroce: device %q: %w", name, rdmaverbs.ErrNoDevice)
	}
	if p.gone.Load() {
		return nil, fmt.Errorf("softroce: device %q: another process has the devices now: %w", name, rdmaverbs.ErrNoDevice)
	}
	w, info, lacks, err := openWire(netdev, p.c)
	if err != nil {
		return nil, err
	}
	c := p.c
	if lacks != nil {
		// This holds for the life of the device.
		c.types = []rdmaverbs.GIDType{rdmaverbs.RoCEv1}
		p.warnNoV2(lacks)
	}
	d, err := newDevice(name, w, *info, c)
	if err != nil {
		w.close()
		return nil, err
	}
	if err := d.follow(info.Index); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// follow watches the netdev, then reads its facts once more: they may have
// changed between the opening of the wire and the watch.
func (d *Device) follow(index int) error {
	watch, err := watchNetdev(index, d.guard, d.netdevChanged)
	if err != nil {
		return err
	}
	d.watch = watch
	f, err := newFacts()
	if err != nil {
		return err
	}
	defer f.close()
	info, err := f.byIndex(index)
	if err != nil {
		return err
	}
	d.netdevChanged(netdevChange{Info: *info})
	return nil
}
