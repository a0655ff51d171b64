// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"

	"smcr/nl"
	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/engine"
	"smcr/userstack/network"
	"smcr/userstack/wire"
)

var _ nl.Control = (*control)(nil)

// control implements nl.Control for a Stack, with the meanings and errors of the kernel.
type control struct {
	s      *Stack
	closed atomic.Bool
}

// Control returns the control interface of the stack. Closing the interface does not affect
// the stack.
func (s *Stack) Control() nl.Control { return &control{s: s} }

// usable returns an error if an operation cannot begin.
func (c *control) usable(ctx context.Context) error {
	if c.closed.Load() {
		return os.ErrClosed
	}
	return ctx.Err()
}

// SysInfo implements nl.Control.
func (c *control) SysInfo(ctx context.Context) (nl.SysInfo, error) {
	if err := c.usable(ctx); err != nil {
		return nl.SysInfo{}, err
	}
	info := nl.SysInfo{
		Version: wire.Version1, LocalHost: c.s.cfg.Hostname,
		Stack: "smcr", PID: uint32(os.Getpid()), UID: uint32(os.Geteuid()),
	}
	if !c.s.cfg.NoVersion2 {
		info.Version, info.Release, info.SMCRv2 = wire.Version2, wire.ReleaseV21, true
	}
	info.RoCEv1, info.RoCEv2 = c.s.devices.RoCEVersions()
	return info, nil
}

// LinkGroups implements nl.Control.
func (c *control) LinkGroups(ctx context.Context) ([]nl.LinkGroup, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	return c.s.driver.LinkGroups(), nil
}

// Links implements nl.Control.
func (c *control) Links(ctx context.Context) ([]nl.Link, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	return c.s.driver.Links(), nil
}

// DeleteLink implements nl.Control.
func (c *control) DeleteLink(ctx context.Context, group nl.LinkGroupID, link uint8) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	return c.s.driver.DeleteLink(group, link)
}

// DeleteLinkGroup implements nl.Control.
func (c *control) DeleteLinkGroup(ctx context.Context, group nl.LinkGroupID) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	return c.s.driver.DeleteLinkGroup(group)
}

// Trace implements nl.Control.
func (c *control) Trace(ctx context.Context, r nl.TraceRequest) (nl.Trace, error) {
	if err := c.usable(ctx); err != nil {
		return nl.Trace{}, err
	}
	return c.s.trace.Trace(ctx, r, c.s.driver.TraceConns)
}

// Devices implements nl.Control. It lists the devices with a port on a netdev that may carry
// RoCE, also if no connection has used them yet.
func (c *control) Devices(ctx context.Context) ([]nl.Device, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	listed, err := c.s.devices.List()
	if err != nil {
		return nil, err
	}
	groups, links := c.s.driver.PortUse()
	var out []nl.Device
	for _, d := range listed {
		row := nl.Device{Name: d.Name, Provider: d.Provider}
		var first *devices.Device
		for _, p := range d.Ports {
			port := c.describePort(p)
			if p.Open != nil {
				port.Links, first = links[p.Open.ID()], p.Open.Device()
			}
			row.Ports = append(row.Ports, port)
		}
		row.UseCount = groups[first]
		if first != nil {
			row.Refused, row.Resent = refused(first), resent(first)
		}
		out = append(out, row)
	}
	return out, nil
}

// refused returns the counters of what a device has refused. It is zero for a device without
// such counters.
func refused(d *devices.Device) nl.Refused {
	if c, ok := d.RDMA().(rdmaverbs.RefusalCounter); ok {
		return nl.Refused(c.Refused())
	}
	return nl.Refused{}
}

// resent returns what a device has sent again, or nil if it does not count it.
func resent(d *devices.Device) *nl.Resent {
	c, ok := d.RDMA().(rdmaverbs.ResentCounter)
	if !ok {
		return nil
	}
	r := nl.Resent(c.Resent())
	return &r
}

// describePort returns the row of a port for the listing. It is zero if the port is not on a
// netdev of the stack.
func (c *control) describePort(p devices.ListedPort) nl.Port {
	if p.NetDev.Name == "" {
		return nl.Port{}
	}
	id := c.s.pnets.PortID(p.PNET)
	port := nl.Port{PNETID: id, PNETUser: id != "" && p.PNET.Hardware == "", NetDev: uint32(p.NetDev.Index), Active: p.PNET.Active, Valid: true}
	if p.Open == nil {
		return port
	}
	if a, err := p.Open.Attr(); err == nil {
		port.Active, port.MTU = a.State == rdmaverbs.PortActive, uint32(a.ActiveMTU.Bytes())
	}
	if _, gid, err := p.Open.SourceGID(netip.Prefix{}); err == nil {
		port.GID = gid
	}
	return port
}

// Stats implements nl.Control.
func (c *control) Stats(ctx context.Context) (nl.Stats, error) {
	if err := c.usable(ctx); err != nil {
		return nl.Stats{}, err
	}
	st := c.s.stats.Snapshot()
	st.SMCR.TXUsage, st.SMCR.RXUsage = c.s.driver.Usage()
	for _, l := range c.s.cfg.Engines {
		load := engine.LoadOf(l)
		st.Engine.Threads++
		st.Engine.CPU += uint64(load.CPU)
		st.Engine.Rounds += load.Rounds
		st.Engine.Sleeps += load.Sleeps
	}
	return st, nil
}

// Fallbacks implements nl.Control.
func (c *control) Fallbacks(ctx context.Context) (nl.Fallbacks, error) {
	if err := c.usable(ctx); err != nil {
		return nl.Fallbacks{}, err
	}
	return c.s.stats.Fallbacks(), nil
}

// Connections implements nl.Control.
func (c *control) Connections(ctx context.Context) ([]nl.Connection, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	// A connection that is decided meanwhile is in both lists, not in none.
	others, err := c.s.tcpSockets.Rows()
	if err != nil {
		// The rest is no less true without them.
		c.s.log.Debug("cannot list the connections that are TCP", "err", err)
	}
	out := c.s.driver.Connections()
	out = append(out, withoutDecided(others, out)...)
	c.s.reg.mu.Lock()
	for l := range c.s.reg.listeners {
		out = append(out, nl.Connection{State: smc.StateListen, Local: addrPort(l.Addr())})
	}
	c.s.reg.mu.Unlock()
	return out, nil
}

// withoutDecided returns TCP sockets without those that were undecided and that the stack carries now.
func withoutDecided(others, carried []nl.Connection) []nl.Connection {
	undecided := func(c nl.Connection) bool { return c.State == smc.StateInit && c.Mode != nl.ModeTCP }
	if !slices.ContainsFunc(others, undecided) {
		return others
	}
	has := map[uint64]bool{}
	for i := range carried {
		has[carried[i].Cookie] = true
	}
	return slices.DeleteFunc(others, func(c nl.Connection) bool { return undecided(c) && has[c.Cookie] })
}

// PNETs implements nl.Control.
func (c *control) PNETs(ctx context.Context) ([]nl.PNET, error) {
	return c.s.pnets.Entries(), c.usable(ctx)
}

// AddPNET implements nl.Control. It refuses a device that does not exist, because the stack
// knows all devices. The kernel stores such an entry.
func (c *control) AddPNET(ctx context.Context, p nl.PNET) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	if err := new(pnet.Table).Add(p); err != nil {
		return err // malformed, whether or not the device exists
	}
	netdevs, err := c.s.net.NetDevs()
	if err != nil {
		return err
	}
	known := func(name string) bool {
		return slices.ContainsFunc(netdevs, func(n network.NetDev) bool { return n.Name == name })
	}
	if p.NetDev != "" && !known(p.NetDev) {
		return fmt.Errorf("no netdev %q: %w", p.NetDev, syscall.ENODEV)
	}
	if p.IBDev != "" {
		if ok, err := c.s.devices.Has(p.IBDev); err != nil {
			return err
		} else if !ok {
			return fmt.Errorf("no RoCE device %q: %w", p.IBDev, syscall.ENODEV)
		}
	}
	return c.s.pnets.Add(p)
}

// RemovePNET implements nl.Control.
func (c *control) RemovePNET(ctx context.Context, id string) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	return c.s.pnets.Remove(id)
}

// FlushPNET implements nl.Control.
func (c *control) FlushPNET(ctx context.Context) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	c.s.pnets.Flush()
	return nil
}

// errVersion1 is the error of operations that need version 2 of SMC, in a stack without it.
func errVersion1(what string) error {
	return fmt.Errorf("%s: this stack supports only SMC-R version 1, because it uses RoCE version 1: %w", what, nl.ErrNotSupported)
}

// UEIDs implements nl.Control.
func (c *control) UEIDs(ctx context.Context) ([]string, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	var out []string
	for _, id := range c.s.eids.list() {
		out = append(out, id.String())
	}
	return out, nil
}

// AddUEID implements nl.Control. After the first one, the stack offers version 2. Existing
// link groups do not change.
func (c *control) AddUEID(ctx context.Context, eid string) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	if c.s.cfg.NoVersion2 {
		return errVersion1("enterprise IDs")
	}
	return c.s.eids.add(eid)
}

// RemoveUEID implements nl.Control.
func (c *control) RemoveUEID(ctx context.Context, eid string) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	return c.s.eids.remove(eid)
}

// FlushUEID implements nl.Control.
func (c *control) FlushUEID(ctx context.Context) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	c.s.eids.flush()
	return nil
}

// SEID implements nl.Control. Only s390 has a system enterprise ID.
func (c *control) SEID(context.Context) (nl.SEID, error) { return nl.SEID{}, nil }

// SetSEID implements nl.Control.
func (c *control) SetSEID(context.Context, bool) error {
	return fmt.Errorf("this host has no system enterprise ID (IBM Z only): %w", nl.ErrNotSupported)
}

// HSLimitation implements nl.Control.
func (c *control) HSLimitation(ctx context.Context) (bool, error) {
	return c.s.limit.on.Load(), c.usable(ctx)
}

// SetHSLimitation implements nl.Control. While it is set, new listeners and accepted
// connections get plain TCP if many handshakes are under way.
func (c *control) SetHSLimitation(ctx context.Context, on bool) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	c.s.limit.on.Store(on)
	return nil
}

// Close implements nl.Control.
func (c *control) Close() error {
	c.closed.Store(true)
	return nil
}
