// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
)

// DevicePrefix begins the names of software RoCE devices, as listings show them
// and pnetids name them: the device on netdev eth0 is soft-eth0.
const DevicePrefix = "soft-"

// ErrNoDevice means that no RoCE device serves the network of a connection.
var ErrNoDevice = errors.New("userstack: no RoCE device for this network")

// device is an opened RDMA device.
type device struct {
	id   int
	name string
	dev  string // netdev
	rdma rdmaverbs.Device
	// paged: memory registered with it may be given back page by page.
	paged bool
	done  chan struct{} // event loop ended
}

// core describes the device to the protocol core as it is now. subnet is as
// for sourceGID.
func (d *device) core(subnet netip.Prefix) (linkgroup.Device, error) {
	p, err := d.rdma.Port(1)
	if err != nil {
		return linkgroup.Device{}, err
	}
	_, gid, err := d.sourceGID(subnet)
	if err != nil {
		return linkgroup.Device{}, err
	}
	cd := linkgroup.Device{ID: d.id, Name: d.name, GID: smc.GID(gid), MTU: p.ActiveMTU, Up: p.State == rdmaverbs.PortActive}
	copy(cd.MAC[:], p.HWAddr)
	return cd, nil
}

// sourceGID picks the GID that CLC messages name.
//
// With the zero Prefix it is that of SMC-R version 1: the first RoCE version 1
// entry, which is the link-local one, or where the device offers RoCE version
// 2 only, its link-local entry. Otherwise it is that of SMC-R version 2: a RoCE
// version 2 entry that is an address in the subnet, the one of the prefix
// itself if there is a choice.
func (d *device) sourceGID(subnet netip.Prefix) (int, smc.GID, error) {
	gids, err := d.rdma.GIDs(1)
	if err != nil {
		return 0, smc.GID{}, err
	}
	if subnet.IsValid() {
		found := -1
		for i, e := range gids {
			switch a := e.GID.Addr(); {
			case e.Type != rdmaverbs.RoCEv2 || !subnet.Contains(a):
			case found < 0 || a == subnet.Addr():
				found = i
			}
		}
		if found < 0 {
			return 0, smc.GID{}, fmt.Errorf("%w: %s has no RoCE version 2 GID in %s", ErrNoDevice, d.name, subnet.Masked())
		}
		return found, gids[found].GID, nil
	}
	for _, want := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
		for i, e := range gids {
			if e.Type == want && e.GID.Addr().IsLinkLocalUnicast() && e.GID.Addr().Is6() {
				return i, e.GID, nil
			}
		}
	}
	return 0, smc.GID{}, fmt.Errorf("%w: %s has no link-local GID", ErrNoDevice, d.name)
}

// deviceByID returns an open device, or nil.
func (s *Stack) deviceByID(id int) *device {
	s.devMu.Lock()
	defer s.devMu.Unlock()
	for _, d := range s.devices {
		if d.id == id {
			return d
		}
	}
	return nil
}

// openDevice returns the device on netdev, opening it at first use.
func (s *Stack) openDevice(netdev string) (*device, error) {
	s.devMu.Lock()
	defer s.devMu.Unlock()
	if d := s.devices[netdev]; d != nil {
		return d, nil
	}
	if s.devClosed {
		return nil, ErrStackClosed
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rdma, err := s.cfg.Provider.Open(ctx, DevicePrefix+netdev)
	if err != nil {
		s.cannotOpen(netdev, err)
		return nil, fmt.Errorf("%w: open %s%s: %w", ErrNoDevice, DevicePrefix, netdev, err)
	}
	delete(s.noDevice, netdev)
	s.lastDev++
	d := &device{id: s.lastDev, name: rdma.Name(), dev: netdev, rdma: rdma, paged: rdma.Attr().OnDemandPaging, done: make(chan struct{})}
	s.devices[netdev] = d
	go s.watchDevice(d)
	s.log.Debug("opened device", "dev", d.name)
	return d, nil
}

// cannotOpen warns, once for a reason, that connections over a netdev stay TCP.
// devMu is held.
func (s *Stack) cannotOpen(netdev string, err error) {
	why := err.Error()
	if s.noDevice[netdev] == why {
		return
	}
	if s.noDevice == nil {
		s.noDevice = map[string]string{}
	}
	s.noDevice[netdev] = why
	s.log.Warn("no RoCE device on this netdev: its connections stay TCP", "netdev", netdev, "err", err)
}

// watchDevice tells the link groups when a device comes or goes, until the
// device is closed.
func (s *Stack) watchDevice(d *device) {
	defer close(d.done)
	s.deviceChanged(d, false) // one that was plugged in is news to older groups
	for ev := range d.rdma.Events() {
		fatal := ev.Type == rdmaverbs.EventDeviceFatal
		s.deviceChanged(d, fatal || ev.Type == rdmaverbs.EventPortErr)
		if fatal {
			s.devMu.Lock()
			if s.devices[d.dev] == d { // else the stack closes it
				delete(s.devices, d.dev)
				// Close ends this loop: it closes the event channel.
				s.leaving.Go(func() {
					_ = d.rdma.Close()
					<-d.done
				})
			}
			s.devMu.Unlock()
		}
	}
}

// deviceChanged tells the link groups on the device's LAN whether it is up.
func (s *Stack) deviceChanged(d *device, lost bool) {
	p, err := d.rdma.Port(1)
	lost = lost || err != nil || p.State != rdmaverbs.PortActive
	s.log.Info("device", "dev", d.name, "up", !lost)
	for _, g := range s.groupList() {
		// The GID of a port that comes up may come later: an IPv6 address is
		// checked for duplicates first.
		cd, err := d.core(g.terms.subnet())
		down := lost || err != nil
		if !down && !s.onLAN(g, d) {
			continue
		}
		g.do(func(now time.Time) {
			switch {
			case g.dead:
			case down:
				g.core.DeviceDown(now, d.id)
			default:
				g.core.DeviceUp(now, cd)
			}
		})
	}
}

// closeDevices closes all devices and waits for their event loops.
func (s *Stack) closeDevices() error {
	s.devMu.Lock()
	s.devClosed = true
	devs := slices.SortedFunc(maps.Values(s.devices), func(a, b *device) int { return cmp.Compare(a.id, b.id) })
	s.devices = map[string]*device{}
	s.devMu.Unlock()
	var errs []error
	for _, d := range devs {
		errs = append(errs, d.rdma.Close())
		<-d.done
	}
	s.leaving.Wait()
	return errors.Join(errs...)
}

// devicesFor returns the devices that may serve a connection over rt, the
// preferred one first, and their pnetid.
//
// As in the kernel, a pnetid on the route's netdev picks the RoCE devices
// with the same pnetid. Without one the device on that netdev serves; the
// netdevs beside it in the same subnet give the alternates.
func (s *Stack) devicesFor(rt network.Route) ([]*device, string, error) {
	names, id, err := s.netDevsFor(rt)
	if err != nil {
		return nil, "", err
	}
	var out []*device
	var errs []error
	for _, n := range names {
		d, err := s.openDevice(n)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if p, err := d.rdma.Port(1); err != nil || p.State != rdmaverbs.PortActive {
			errs = append(errs, fmt.Errorf("%s is down", d.name))
			continue
		}
		out = append(out, d)
	}
	if len(out) == 0 {
		if id != "" && len(errs) == 0 {
			errs = append(errs, fmt.Errorf("no device has pnetid %q of netdev %s", id, rt.NetDev))
		}
		return nil, id, fmt.Errorf("%w: %w", ErrNoDevice, errors.Join(errs...))
	}
	return out, id, nil
}

// netDevsFor returns the netdevs whose devices may serve a connection over rt,
// and their pnetid.
func (s *Stack) netDevsFor(rt network.Route) ([]string, string, error) {
	netdevs, err := s.net.NetDevs()
	if err != nil {
		return nil, "", err
	}
	at := pnet.NetDev{Name: rt.NetDev}
	ports := make([]pnet.Port, len(netdevs))
	for i, n := range netdevs {
		if n.Name == rt.NetDev {
			at.Lower = n.Lower
		}
		ports[i] = portOn(n)
	}
	match, id := s.pnets.Match(at, ports)
	var names []string
	for _, p := range match {
		if n := inVLAN(netdevs, p.NetDev, rt); n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if id == "" {
		if len(names) == 0 {
			names = append(names, rt.NetDev) // opening it says what is wrong
		}
		names = append(names, rt.Peers...)
	}
	return slices.DeleteFunc(names, func(n string) bool { return !s.allowed(n) }), id, nil
}

// portOn describes the port of the device on a netdev for the choice by pnetid.
// The device is software: it has the pnetid of its netdev, see pnet.Port.
func portOn(n network.NetDev) pnet.Port {
	return pnet.Port{Device: DevicePrefix + n.Name, Port: 1, NetDev: n.Name, Active: n.Up, Software: true}
}

// inVLAN returns the netdev through which a netdev takes part in the VLAN of a
// route (0: without tag): itself, or a VLAN upon it, which has a device and GIDs
// of its own. It returns "" where there is none.
func inVLAN(netdevs []network.NetDev, name string, rt network.Route) string {
	for _, n := range netdevs {
		if n.Name == rt.NetDev && (name == rt.NetDev || slices.Contains(n.Lower, name)) {
			return rt.NetDev
		}
	}
	for _, n := range netdevs {
		if n.VLAN == rt.VLAN && (n.Name == name || n.Up && len(n.Lower) > 0 && n.Lower[0] == name) {
			return n.Name
		}
	}
	return ""
}

// lan is where the connection of a first contact runs, and with it all links of
// its group: on devices of one LAN and one VLAN.
type lan struct {
	rt            network.Route
	local, remote netip.Addr
	pnetID        string
}

// onLAN reports whether d may carry links of g. What has been plugged in since
// the first contact may too.
func (s *Stack) onLAN(g *group, d *device) bool {
	rt, err := s.net.Route(g.lan.local, g.lan.remote)
	if err != nil || rt.VLAN != g.lan.rt.VLAN {
		rt = g.lan.rt // its netdev is down
	}
	names, _, err := s.netDevsFor(rt)
	return err == nil && slices.Contains(names, d.dev)
}

// allowed reports whether the configuration lets netdev carry RoCE.
func (s *Stack) allowed(netdev string) bool {
	if len(s.cfg.NetDevs) == 0 {
		return true
	}
	for _, n := range s.cfg.NetDevs {
		if n == netdev {
			return true
		}
	}
	return false
}
