// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"

	"smcr/rdmaverbs"
	"smcr/userstack/network"
)

// InNetNS returns a provider with the devices that p has in the network namespace ns,
// whatever thread calls it.
func InNetNS(p rdmaverbs.Provider, ns *network.NetNS) rdmaverbs.Provider { return inNetNS{p, ns} }

type inNetNS struct {
	rdmaverbs.Provider
	ns *network.NetNS
}

// Open implements rdmaverbs.Provider.
func (p inNetNS) Open(ctx context.Context, name string) (d rdmaverbs.Device, err error) {
	err = p.ns.Do(func() error { d, err = p.Provider.Open(ctx, name); return err })
	return d, err
}

// Devices implements rdmaverbs.Provider.
func (p inNetNS) Devices(ctx context.Context) (list []rdmaverbs.DeviceInfo, err error) {
	err = p.ns.Do(func() error { list, err = p.Provider.Devices(ctx); return err })
	return list, err
}

// WhyNone implements rdmaverbs.Explainer.
func (p inNetNS) WhyNone(ctx context.Context, netdev string) (device string, err error) {
	x, ok := p.Provider.(rdmaverbs.Explainer)
	if !ok {
		return "", fmt.Errorf("%s has no device on netdev %s: %w", p.Name(), netdev, rdmaverbs.ErrNoDevice)
	}
	err = p.ns.Do(func() error { device, err = x.WhyNone(ctx, netdev); return err })
	return device, err
}
