// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"smcr/nl"
)

// softPrefix begins the names of the RoCE devices of a stack in user space: that
// of a network device, with this before it.
const softPrefix = "soft-"

// Check finds out, without a change, whether the stack would refuse the plan, and
// returns the [ApplyError] of Apply then. netdev reports whether a stack in user
// space could know a network device that is not among its RoCE devices.
func (p *Plan) Check(ctx context.Context, ctl nl.Control, netdev func(string) bool) error {
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
	refuse := func(ch Change, err error) error { return &ApplyError{Step: ch.step(), Err: err} }
	unknown := func(what, name string) error {
		return &nl.OpError{Op: "add pnetid", Err: syscall.ENODEV, ExtAck: fmt.Sprintf("no %s %q", what, name)}
	}
	for _, ch := range p.Changes {
		n := ch.PNET
		switch {
		case ch.Action == Remove:
		case ch.Object == "pnetid" && info.Stack == "":
			// The kernel keeps entries of devices that are still to come.
		case ch.Object == "pnetid" && n.NetDev != "" && !roce(softPrefix+n.NetDev) && !netdev(n.NetDev):
			return refuse(ch, unknown("netdev", n.NetDev))
		case ch.Object == "pnetid" && n.IBDev != "" && !roce(n.IBDev):
			// One that --netdev keeps out is there nevertheless.
			if on, soft := strings.CutPrefix(n.IBDev, softPrefix); !soft || !netdev(on) {
				return refuse(ch, unknown("RoCE device", n.IBDev))
			}
		case ch.Object == "ueid" && (info.Version < 2 || p.before.UEIDs == nil),
			ch.Object == "seid" && p.before.SEID == nil,
			ch.Object == "handshake_limitation" && p.before.HSLimitation == nil:
			return refuse(ch, nl.ErrNotSupported)
		}
	}
	return nil
}

// step returns what the change is called in an [ApplyError].
func (c Change) step() string {
	switch {
	case c.Object == "pnetid":
		return fmt.Sprintf("give pnetid %s to %s", c.PNET.ID, c.PNET.NetDev+c.PNET.IBDev)
	case c.Object == "ueid":
		return "define enterprise ID " + c.Value
	}
	return fmt.Sprintf("set %s to %s", c.Object, c.Value)
}
