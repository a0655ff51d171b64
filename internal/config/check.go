// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"smcr/nl"
)

// A Host answers questions about the host of a user-space stack. If the stack is on
// another host, both functions return true.
type Host struct {
	// NetDev reports whether the stack could use a netdev of that name.
	NetDev func(name string) bool
	// RoCEDevice reports whether the host has a RoCE device of that name. The
	// stack knows it even if it does not list it because of --netdev.
	RoCEDevice func(name string) bool
}

// Check checks, without a change, whether the stack would refuse the plan. If so, it
// returns the [ApplyError] that Apply would return.
func (p *Plan) Check(ctx context.Context, ctl nl.Control, host Host) error {
	if len(p.Changes) == 0 {
		return nil
	}
	info, err := ctl.SysInfo(ctx)
	if err != nil {
		return err
	}
	var devices []nl.Device
	if info.Stack != "" {
		if devices, err = ctl.Devices(ctx); err != nil {
			return err
		}
	}
	roce := func(name string) bool {
		return slices.ContainsFunc(devices, func(d nl.Device) bool { return d.Name == name })
	}
	refuse := func(ch Change, err error) error { return &ApplyError{Step: ch.step(), Err: err, of: ch} }
	unknown := func(what, name string) error {
		return &nl.OpError{Op: "add pnetid", Err: syscall.ENODEV, ExtAck: fmt.Sprintf("no %s %q", what, name)}
	}
	for _, ch := range p.Changes {
		n := ch.PNET
		switch {
		case ch.Action == Remove:
		case ch.Object == "pnetid" && info.Stack == "":
			// The kernel keeps entries of devices that do not exist yet.
		case ch.Object == "pnetid" && n.NetDev != "" && !host.NetDev(n.NetDev):
			return refuse(ch, unknown("netdev", n.NetDev))
		case ch.Object == "pnetid" && n.IBDev != "" && !roce(n.IBDev) && !host.RoCEDevice(n.IBDev):
			return refuse(ch, unknown("RoCE device", n.IBDev))
		case ch.Object == "ueid" && (info.Version < 2 || p.before.UEIDs == nil),
			ch.Object == "seid" && p.before.SEID == nil,
			ch.Object == "handshake_limitation" && p.before.HSLimitation == nil:
			return refuse(ch, nl.ErrNotSupported)
		}
	}
	return nil
}

// step returns the name of the change in an [ApplyError].
func (c Change) step() string {
	switch {
	case c.Object == "pnetid":
		return fmt.Sprintf("give pnetid %s to %s", c.PNET.ID, c.PNET.NetDev+c.PNET.IBDev)
	case c.Object == "ueid":
		return "define enterprise ID " + c.Value
	}
	return fmt.Sprintf("set %s to %s", c.Object, c.Value)
}
