// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"smcr/pnet"
	"smcr/userstack/network"
)

// candidate is a port that a provider has listed, of a device that may not be open.
type candidate struct {
	key
	num      int
	NetDev   string
	PNETID   string // that the hardware reports
	Software bool
}

// pnetPort describes the port for the choice by pnetid. Until a device is open, its
// port counts as active when its netdev is up.
func (c candidate) pnetPort(netdevUp bool) pnet.Port {
	return pnet.Port{Device: c.name, Port: uint8(c.num), NetDev: c.NetDev, Hardware: c.PNETID, Active: netdevUp, Software: c.Software}
}

// place is a netdev on which a connection may run, and the ports there, the preferred
// one first.
type place struct {
	netdev string
	ports  []candidate
}

// add adds a port that is not there yet.
func (p *place) add(c candidate) {
	if !slices.Contains(p.ports, c) {
		p.ports = append(p.ports, c)
	}
}

// For returns the active ports that may serve a connection over rt, the preferred one
// first and one for each netdev, and the pnetid of the connection. It opens their
// devices. If there are none, the error is ErrNoDevice.
//
// As in the kernel, a pnetid on the route's netdev selects the ports with the same
// pnetid. Without a pnetid the ports on that netdev serve; the netdevs beside it in
// the same subnet give the alternates.
func (s *Set) For(rt network.Route) ([]*Port, string, error) {
	places, id, err := s.places(rt)
	if err != nil {
		return nil, "", err
	}
	var out []*Port
	var errs []error
	for _, pl := range places {
		p, err := s.portAt(pl)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		if id != "" && len(errs) == 0 {
			errs = append(errs, fmt.Errorf("no device has pnetid %q of netdev %s", id, rt.NetDev))
		}
		return nil, id, fmt.Errorf("%w: %w", ErrNoDevice, errors.Join(errs...))
	}
	return out, id, nil
}

// ForAtOnce is For where the preferred port of each netdev is that of an open device, and is active. Otherwise it returns no ports: For
// may have to open a device, which takes its time.
func (s *Set) ForAtOnce(rt network.Route) ([]*Port, string) {
	places, id, err := s.places(rt)
	if err != nil || len(places) == 0 {
		return nil, ""
	}
	out := make([]*Port, 0, len(places))
	for _, pl := range places {
		if len(pl.ports) == 0 {
			return nil, ""
		}
		p := s.isOpen(pl.ports[0])
		if p == nil || !p.Active() {
			return nil, ""
		}
		out = append(out, p)
	}
	return out, id
}

// Offers reports whether there are devices that may serve a connection over rt. It opens none, so one that cannot be
// opened, or is down, counts.
func (s *Set) Offers(rt network.Route) (bool, error) {
	places, _, err := s.places(rt)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(places, func(p place) bool { return len(p.ports) > 0 }), nil
}

// Serves reports whether For returns p for a connection over rt, or would if the
// devices of better ports were not closed.
func (s *Set) Serves(rt network.Route, p *Port) bool {
	places, _, err := s.places(rt)
	if err != nil {
		return false
	}
	for _, pl := range places {
		for _, c := range pl.ports {
			if o := s.isOpen(c); o == p {
				return true
			} else if o != nil && o.Active() {
				break
			}
		}
	}
	return false
}

// Subnet returns a subnet of the netdev of a port, with the address of the netdev there, in which the
// port has a GID for version 2. The error is ErrNoDevice if there is none.
func (s *Set) Subnet(p *Port) (netip.Prefix, error) {
	netdevs, err := s.cfg.Network.NetDevs()
	if err != nil {
		return netip.Prefix{}, err
	}
	i := slices.IndexFunc(netdevs, func(n network.NetDev) bool { return n.Index == p.IfIndex() })
	if i < 0 {
		return netip.Prefix{}, fmt.Errorf("%w: the netdev of %s is gone", ErrNoDevice, p.Name())
	}
	for _, a := range netdevs[i].Addrs {
		if !a.Addr().Is4() {
			continue
		}
		if _, _, err := p.SourceGID(a); err == nil {
			return a, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("%w: %s has no RoCE version 2 GID that is an IPv4 address", ErrNoDevice, p.Name())
}

// portAt returns the first port of a place that can be opened and is active.
func (s *Set) portAt(pl place) (*Port, error) {
	var errs, failures []error
	for _, c := range pl.ports {
		p, err := s.port(c)
		switch {
		case errors.Is(err, ErrClosed):
			return nil, err
		case err != nil:
			failures = append(failures, err)
			errs = append(errs, fmt.Errorf("%w: open %s: %w", ErrNoDevice, c.name, err))
		case !p.Active():
			errs = append(errs, fmt.Errorf("%s is down", p.Name()))
		default:
			return p, nil
		}
	}
	if len(pl.ports) == 0 {
		err := s.whyNone(pl.netdev)
		failures = append(failures, err)
		errs = append(errs, fmt.Errorf("%w: %w", ErrNoDevice, err))
	}
	if len(failures) == len(errs) {
		s.warn("no RoCE device on this netdev: its connections stay TCP", "netdev", pl.netdev, errors.Join(failures...))
	}
	return nil, errors.Join(errs...)
}

// places returns the netdevs whose ports may serve a connection over rt, the
// preferred one first, and the pnetid of the connection.
func (s *Set) places(rt network.Route) ([]place, string, error) {
	netdevs, err := s.cfg.Network.NetDevs()
	if err != nil {
		return nil, "", err
	}
	found := s.candidates(netdevs)
	at := pnet.NetDev{Name: rt.NetDev}
	ports := make([]pnet.Port, 0, len(netdevs))
	for _, n := range netdevs {
		if n.Name == rt.NetDev {
			at.Lower = n.Lower
		}
		for _, c := range found[n.Name] {
			ports = append(ports, c.pnetPort(n.Up))
		}
	}
	match, id := s.cfg.PNETs.Match(at, ports)
	var out []place
	on := func(netdev string) *place {
		i := slices.IndexFunc(out, func(p place) bool { return p.netdev == netdev })
		if i < 0 {
			i, out = len(out), append(out, place{netdev: netdev})
		}
		return &out[i]
	}
	for _, p := range match {
		own := found[p.NetDev]
		c := own[slices.IndexFunc(own, func(c candidate) bool { return c.name == p.Device && c.num == int(p.Port) })]
		netdev := inVLAN(netdevs, c.NetDev, rt)
		switch netdev {
		case "":
		case c.NetDev:
			on(netdev).add(c)
		default:
			// The VLAN is a netdev of its own.
			pl := on(netdev)
			for _, o := range found[netdev] {
				if o.provider == c.provider {
					pl.add(o)
				}
			}
		}
	}
	if id == "" {
		also := rt.Peers
		if len(out) == 0 {
			also = append([]string{rt.NetDev}, rt.Peers...) // a failure there is reported
		}
		for _, netdev := range also {
			pl := on(netdev)
			for _, c := range found[netdev] {
				pl.add(c)
			}
		}
	}
	return slices.DeleteFunc(out, func(p place) bool { return !s.allowed(p.netdev) }), id, nil
}

// inVLAN returns the netdev through which a netdev takes part in the VLAN of a route
// (0: without tag): itself, or a VLAN netdev on it. It returns "" if there is none.
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

// allowed reports whether the configuration lets netdev carry RoCE.
func (s *Set) allowed(netdev string) bool {
	return len(s.cfg.NetDevs) == 0 || slices.Contains(s.cfg.NetDevs, netdev)
}
