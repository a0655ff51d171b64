// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"smcr/nl"
)

// A Stack is a stack that a scrape asks, or one that could not be reached.
type Stack struct {
	Name    string // "kernel", "user", "ending-N" or "unix:ADDRESS": the value of the label stack
	Control nl.Control
	Err     error // why there is no Control
}

// A Source connects to the stacks that a scrape shall ask. The scrape closes their Controls. It
// leaves out stacks that do not exist. Names must be unique. It returns when ctx ends.
type Source func(ctx context.Context) []Stack

// A view is what one scrape reads of one stack. What the stack does not support is nil.
type view struct {
	user      bool // the stack is one in user space
	info      nl.SysInfo
	stats     *nl.Stats
	fallbacks *nl.Fallbacks
	groups    []nl.LinkGroup
	links     []nl.Link
	devices   []nl.Device
}

// look asks a stack. It is an error if the stack does not answer, not if it does not support
// a question.
func look(ctx context.Context, c nl.Control) (v view, err error) {
	if v.info, err = c.SysInfo(ctx); supported(&err) != nil {
		return v, err
	}
	v.user = v.info.Stack != ""
	st, err := c.Stats(ctx)
	if err == nil {
		v.stats = &st
	}
	if supported(&err) != nil {
		return v, err
	}
	f, err := c.Fallbacks(ctx)
	if err == nil {
		v.fallbacks = &f
	}
	if supported(&err) != nil {
		return v, err
	}
	if v.groups, err = c.LinkGroups(ctx); supported(&err) != nil {
		return v, err
	}
	if v.links, err = c.Links(ctx); supported(&err) != nil {
		return v, err
	}
	if v.devices, err = c.Devices(ctx); supported(&err) != nil {
		return v, err
	}
	if !v.user {
		countUse(v.devices, v.links)
	}
	v.devices = limitDevices(v.devices)
	return v, nil
}

// countUse sets how many link groups use each device: those that have a link on it. A kernel
// says it only for devices of SMC-D.
func countUse(devices []nl.Device, links []nl.Link) {
	groups := make(map[string]map[nl.LinkGroupID]bool)
	for i := range links {
		l := &links[i]
		if groups[l.IBDev] == nil {
			groups[l.IBDev] = make(map[nl.LinkGroupID]bool)
		}
		groups[l.IBDev][l.LinkGroup] = true
	}
	for i := range devices {
		devices[i].UseCount = uint32(len(groups[devices[i].Name]))
	}
}

// supported clears an error that says that a stack does not support a question, such as an
// older kernel, and returns the error.
func supported(err *error) error {
	if errors.Is(*err, nl.ErrNotSupported) {
		*err = nil
	}
	return *err
}

// maxDevices is how many devices of a stack have series of their own. A host may have
// thousands of netdevs for containers.
const maxDevices = 64

// otherDevices is the name of the devices beyond maxDevices, taken together.
const otherDevices = "other"

// limitDevices returns at most maxDevices devices, those first that link groups use, and one
// more that has the sums of the others.
func limitDevices(all []nl.Device) []nl.Device {
	if len(all) <= maxDevices {
		return all
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b nl.Device) int {
		return cmp.Or(cmp.Compare(b.UseCount, a.UseCount), cmp.Compare(a.Name, b.Name))
	})
	other := nl.Device{Name: otherDevices, Provider: all[maxDevices].Provider, Resent: new(nl.Resent)}
	for _, d := range all[maxDevices:] {
		other.UseCount += d.UseCount
		other.Refused.Source += d.Refused.Source
		other.Refused.PSN += d.Refused.PSN
		other.Refused.Key += d.Refused.Key
		if d.Resent != nil {
			other.Resent.Packets += d.Resent.Packets
			other.Resent.Timeouts += d.Resent.Timeouts
		}
	}
	return append(all[:maxDevices:maxDevices], other)
}
