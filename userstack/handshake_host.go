// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"slices"

	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/driver"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// What a rendezvous needs to know about this host: what it can offer on the way to the peer,
// and whether one more handshake or connection is permitted.

// admit counts the rendezvous of a server after PROPOSAL has arrived.
func (h *handshake) admit() rendezvous.Event {
	h.place.leave()
	h.with = h.caller() // a socket that is reset later has no such address
	if no := h.s.limit.add(h.with); no != nil {
		return rendezvous.Failed{Failure: rendezvous.Failure{Why: *no}}
	}
	h.counted = true
	return rendezvous.Admitted{}
}

// caller returns how the peer is counted.
func (h *handshake) caller() rendezvous.Caller {
	return h.s.caller(addrPort(h.tcp.LocalAddr()).Addr(), addrPort(h.tcp.RemoteAddr()).Addr())
}

// takeTurn begins a first contact with the peer if no other is under way. Otherwise it
// returns nil, and the end of that one is an event.
func (h *handshake) takeTurn() rendezvous.Event {
	if err := h.path.blocked(); err != nil {
		return answerOf(nil, err)
	}
	end, busy, no := h.s.reg.enterFirst(h.turn.of, h.with)
	if no != nil {
		return rendezvous.Failed{Failure: rendezvous.Failure{Why: *no}}
	}
	if h.turn.busy = busy; busy != nil {
		return nil
	}
	h.turn.end = end
	if err := h.path.try(); err != nil {
		h.turn.leave()
		return answerOf(nil, err)
	}
	return rendezvous.Turn{PeerID: h.s.peerIDNow()}
}

// route finds the way to the peer. RoCE packets do not pass through IPsec, so SMC-R is not
// used there (RFC 7609, section 5.5).
func (s *Stack) route(local, remote netip.AddrPort) (network.Route, error) {
	rt, err := s.net.Route(local.Addr(), remote.Addr())
	if err != nil {
		return network.Route{}, &DeclineError{Code: smc.DiagNoRoute, Err: err}
	}
	secured, err := s.net.Secured(local, remote)
	if err != nil {
		return network.Route{}, &DeclineError{Code: smc.DiagInternal, Err: err}
	}
	if secured {
		return network.Route{}, &DeclineError{Code: smc.DiagIPsec, Err: fmt.Errorf("an IPsec policy of this host covers %s and %s", local, remote)}
	}
	return rt, nil
}

// survey finds out what this host can offer.
func (h *handshake) survey(peerGID smc.GID) (rendezvous.Host, error) {
	s := h.s
	local, remote := addrPort(h.tcp.LocalAddr()), addrPort(h.tcp.RemoteAddr())
	rt, err := s.route(local, remote)
	if err != nil {
		return rendezvous.Host{}, err
	}
	var pnetID string
	if h.mayWait {
		h.host.ports1, pnetID, err = s.devices.For(rt)
	} else if h.host.ports1, pnetID = s.devices.ForAtOnce(rt); h.host.ports1 == nil {
		err = errLater
	}
	if err != nil {
		return rendezvous.Host{}, err
	}
	h.host.lan = driver.LAN{Route: rt, Local: local.Addr(), Remote: remote.Addr(), PNETID: pnetID, Origin: h.with.Origin}
	h.path.is = pathOf(&rt, local.Addr(), remote.Addr())
	host := rendezvous.Host{Local: local.Addr(), Subnets: rt.Local, Release: s.cfg.release()}
	host.MaxConns, host.MaxLinks = s.cfg.limits()
	if !s.cfg.NoVersion2 {
		host.EIDs = s.eids.list()
	}
	if h.role == smc.Client {
		host.PeerID = s.identity(h.host.ports1[0])
		h.host.ports1 = s.linkedFirst(h.host.ports1, remote.Addr())
		h.offer1(&host)
	} else {
		host.PeerID = s.peerIDNow()
	}
	h.offer2(&host, peerGID)
	return host, nil
}

// offer1 returns what a client can offer in version 1.
func (h *handshake) offer1(host *rendezvous.Host) {
	d, err := h.host.ports1[0].Describe(netip.Prefix{})
	rt := &h.host.lan.Route
	if rt.Gateway.IsValid() {
		err = &DeclineError{Code: smc.DiagNoRoute, Err: errRouted(h.host.lan.Remote)}
	}
	if err != nil {
		host.NoPort = refusalFor(err)
		return
	}
	host.Port = rendezvous.Port{GID: d.GID, MAC: d.MAC}
	if p, ok := rt.PrefixOf(h.host.lan.Local); ok && p.Addr().Is4() {
		host.IPv4 = p.Masked()
	} else {
		host.IPv6 = rt.IPv6Prefixes(wire.MaxIPv6Prefixes)
	}
}

// offer2 returns what can be used in version 2. On a server it also finds out whether a
// router is on the way to the client's GID.
func (h *handshake) offer2(host *rendezvous.Host, peerGID smc.GID) {
	if len(host.EIDs) == 0 {
		return
	}
	devs, others, own := portsV2(h.host.ports1, h.host.lan.Route, h.host.lan.Local)
	if len(devs) == 0 {
		host.NoPortV2 = refusalFor(ErrNoDevice)
		return
	}
	h.host.ports2 = slices.Concat(devs, others)
	host.PortV2.Local = own
	for _, d := range devs {
		if _, g, err := d.SourceGID(own); err == nil {
			host.PortV2.GIDs = append(host.PortV2.GIDs, g)
		}
	}
	if h.role == smc.Client {
		d, err := devs[0].Describe(own)
		if err != nil {
			host.NoPortV2 = refusalFor(err)
			return
		}
		host.PortV2.Port = rendezvous.Port{GID: d.GID, MAC: d.MAC}
		return
	}
	if peerGID != (smc.GID{}) {
		var err error
		if host.Routed, err = h.s.routed(own.Addr(), peerGID); err != nil {
			host.NoPath = refusalFor(err)
		}
	}
}

// refusalFor returns the DECLINE that follows from err.
func refusalFor(err error) *rendezvous.Refusal {
	d := declineFor(err)
	return &rendezvous.Refusal{Code: d.Code, Err: d.Err}
}

// linkedFirst sorts devices that carry links to the peer before devices that do not, which
// may have just come up. A server finds its link group by the GID of a link. For another GID
// it would make another group (RFC 7609, section 3.5.2.2).
func (s *Stack) linkedFirst(devs []*devices.Port, remote netip.Addr) []*devices.Port {
	if len(devs) < 2 {
		return devs
	}
	linked := s.driver.LinkedPorts(remote)
	slices.SortStableFunc(devs, func(a, b *devices.Port) int {
		switch {
		case linked[a.ID()] == linked[b.ID()]:
			return 0
		case linked[a.ID()]:
			return -1
		}
		return 1
	})
	return devs
}

// routed reports whether a router is on the way from one of our addresses to a
// peer's GID. The error is a *DeclineError.
func (s *Stack) routed(local netip.Addr, gid smc.GID) (bool, error) {
	ip, ok := gid.IPv4()
	if !ok {
		return false, &DeclineError{Code: smc.DiagNoRoute, Err: fmt.Errorf("%w: RoCE GID %s of the peer is not an IPv4 address", ErrNotOnLink, gid)}
	}
	rt, err := s.net.Route(local, ip)
	if err != nil {
		return false, &DeclineError{Code: smc.DiagNoRoute, Err: fmt.Errorf("RoCE GID of the peer: %w", err)}
	}
	return rt.Gateway.IsValid(), nil
}

// portsV2 returns the ports that version 2 can use, in order of preference, and our address
// with its prefix length. The others have no GID in that subnet. They have the pnetid of its
// netdev, and can take further links: see linkgroup.Device.
func portsV2(ports []*devices.Port, rt network.Route, local netip.Addr) (devs, others []*devices.Port, own netip.Prefix) {
	own, ok := rt.PrefixOf(local)
	if !ok || !own.Addr().Is4() {
		return nil, nil, netip.Prefix{}
	}
	for _, d := range ports {
		if _, _, err := d.SourceGID(own); err == nil {
			devs = append(devs, d)
		} else {
			others = append(others, d)
		}
	}
	return devs, others, own
}
