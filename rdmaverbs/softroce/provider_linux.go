// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
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
	p.c.siblings.opening.Lock() // see LacksV2
	defer p.c.siblings.opening.Unlock()
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

// LacksV2 returns why devices have no RoCE version 2, or nil if they have it or should not have
// it. As long as no device is open, it finds out by opening the UDP port for a moment.
func (p *Provider) LacksV2() error {
	if !p.c.wants(rdmaverbs.RoCEv2) || p.gone.Load() {
		return nil
	}
	// A device that is being opened must not find the port taken by the trial, nor the trial find it
	// taken by the device.
	p.c.siblings.opening.Lock()
	defer p.c.siblings.opening.Unlock()
	if why, some := p.c.siblings.whyLacking(); why != nil || some {
		return why
	}
	if p.c.inherited.has() {
		return nil // this process has the port, and no device uses it yet
	}
	fd, err := openUDP(udp4, "", header.UDPPortRoCE)
	if err == nil {
		_ = unix.Close(fd)
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return nil
	}
	return &portTakenError{err: err}
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
