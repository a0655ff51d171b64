// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"fmt"
	"slices"

	"smcr/nl"
)

// Usable returns c without the entries that the stack behind ctl cannot use, and these. These are entries of devices that do not exist, of a
// version of SMC that the stack does not support, and programs if it takes no connections of cgroups. A file may be used for several stacks
// and network namespaces, and at boot the order in which devices appear should not
// matter. netdev reports whether a network device exists in the stack's network
// namespace.
func (c *Config) Usable(ctx context.Context, ctl nl.Control, netdev func(string) bool) (*Config, []Unused, error) {
	d := *c
	var left []Unused
	leave := func(of Change, format string, args ...any) {
		left = append(left, Unused{fmt.Sprintf(format, args...), of})
	}
	info, err := ctl.SysInfo(ctx)
	if err != nil {
		return nil, nil, err
	}
	if info.Version < 2 {
		if len(d.UEIDs) > 0 {
			leave(Change{Object: "ueid"}, "ueids: this stack supports only version 1 of SMC")
		}
		if d.SEID != nil {
			leave(Change{Object: "seid"}, "seid: this stack supports only version 1 of SMC")
		}
		d.UEIDs, d.SEID = nil, nil
	}
	if d.SEID != nil && info.Stack != "" {
		leave(Change{Object: "seid"}, "seid: a user-space stack has no system enterprise ID")
		d.SEID = nil
	}
	if len(d.Programs) > 0 {
		now, err := attached(ctx, ctl)
		if err != nil {
			return nil, nil, err
		}
		if now == nil {
			leave(Change{Object: "program"}, noPrograms)
			d.Programs = nil
		}
	}
	if len(d.PNETs) == 0 {
		return &d, left, nil
	}
	devices, err := ctl.Devices(ctx)
	if err != nil {
		return nil, nil, err
	}
	pnets := []nl.PNET{}
	for _, n := range d.PNETs {
		switch {
		case n.NetDev != "" && !netdev(n.NetDev):
			leave(Change{Object: "pnetid", PNET: n}, "pnetid %s: no netdev %s in this network namespace", n.ID, n.NetDev)
		case n.IBDev != "" && !slices.ContainsFunc(devices, func(x nl.Device) bool { return x.Name == n.IBDev }):
			leave(Change{Object: "pnetid", PNET: n}, "pnetid %s: this stack has no RoCE device %s", n.ID, n.IBDev)
		default:
			pnets = append(pnets, n)
		}
	}
	d.PNETs = pnets
	return &d, left, nil
}
