// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net/netip"
	"time"

	"smcr/smc"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// Known implements inside.Stack.
func (i insideStack) Known() (all []inside.Known) {
	l, now := &i.s.limit, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for m := range l.known.All(now) {
		all = append(all, inside.Known{Host: m.Host, Origin: m.Origin, Age: now.Sub(m.At)})
	}
	return all
}

// Recall implements inside.Stack.
func (i insideStack) Recall(all []inside.Known) {
	l, now := &i.s.limit, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range all {
		l.known.Recall(now, rendezvous.Met{Host: k.Host, Origin: k.Origin, At: now.Add(-k.Age)})
	}
}

// Places implements inside.Stack. It is canAnnounce for whole networks, so it does not know single routes and peers: what a
// rendezvous finds out is declined there.
//
//	peers by a netdev               | SMC-R is possible
//	--------------------------------+-----------------------------------------------------------
//	that no RoCE device serves      | no
//	in a subnet of its addresses    | yes
//	behind a router, IPv4           | with version 2
//	behind a router, IPv6           | no
func (i insideStack) Places() ([]inside.Place, error) {
	netdevs, err := i.s.net.NetDevs()
	if err != nil {
		return nil, err
	}
	var all []inside.Place
	for n := range netdevs {
		rt := network.By(&netdevs[n], netdevs)
		p := inside.Place{Dev: rt.IfIndex}
		offers, err := i.s.devices.Offers(rt)
		if err != nil {
			return nil, err
		}
		if !offers {
			p.Why = smc.DiagNoSMCRDev
			all = append(all, p)
			continue
		}
		p.Why = smc.DiagNoRoute
		all = append(all, p)
		p.Why = 0
		if p.Prefix = netip.PrefixFrom(netip.IPv4Unspecified(), 0); i.s.speaksV2(p.Prefix.Addr()) {
			all = append(all, p)
		}
		p.Near = true
		for _, a := range netdevs[n].Addrs {
			p.Prefix = a.Masked()
			all = append(all, p)
		}
	}
	return all, nil
}
