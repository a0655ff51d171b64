// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"fmt"
	"slices"

	"smcr/rdmaverbs"
)

// Facts has the attributes of a device that can be read without opening it.
type Facts struct {
	Attr rdmaverbs.DeviceAttr
	Port rdmaverbs.PortAttr // port 1
	GIDs []rdmaverbs.GIDEntry
}

// Query returns information about the device of that name without opening it.
// It needs no privileges, and it does not disturb a program that uses the
// device. For an unknown name the error wraps rdmaverbs.ErrNoDevice.
func (p *Provider) Query(ctx context.Context, name string) (*Facts, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	netdev, ok := p.netdev(name)
	if !ok {
		return nil, fmt.Errorf("softroce: device %q: %w", name, rdmaverbs.ErrNoDevice)
	}
	f, err := newFacts()
	if err != nil {
		return nil, err
	}
	defer f.close()
	info, err := f.byName(netdev)
	if err != nil {
		return nil, err
	}
	d := Device{name: name, maxQP: p.c.maxQP, port: port{types: p.c.types}}
	d.port.set(*info)
	attr, err := d.Port(1)
	if err != nil {
		return nil, err
	}
	return &Facts{Attr: d.Attr(), Port: attr, GIDs: slices.Clone(d.port.gids)}, nil
}
