// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"fmt"
	"slices"

	"smcr/rdmaverbs"
)

// Facts is what can be known about a device that is not open.
type Facts struct {
	Attr rdmaverbs.DeviceAttr
	Port rdmaverbs.PortAttr // port 1
	GIDs []rdmaverbs.GIDEntry
}

// Look returns the facts about a device without opening it: it takes no
// privilege, no socket and no port from a program that uses the device. An
// unknown name gives an error for which errors.Is(err, rdmaverbs.ErrNoDevice)
// holds.
func (p *Provider) Look(ctx context.Context, name string) (*Facts, error) {
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
	d := Device{name: name, types: p.c.types, maxQP: p.c.maxQP}
	d.setInfo(*info)
	port, err := d.Port(1)
	if err != nil {
		return nil, err
	}
	return &Facts{Attr: d.Attr(), Port: port, GIDs: slices.Clone(d.gids)}, nil
}
