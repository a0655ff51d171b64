// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/userstack/network"
)

// listAge is how long a listing of the providers holds while the netdevs stay as
// they are. Each rendezvous needs one.
const listAge = time.Second

// listing is what the providers have listed.
type listing struct {
	at      time.Time
	netdevs []network.NetDev       // at that time
	found   map[string][]candidate // by netdev, those of preferred providers first
	failed  map[int]error          // by the index of the provider
}

// candidates returns the ports of all providers by their netdev, those of preferred
// providers first. It asks the providers again if netdevs have changed, or after
// listAge.
func (s *Set) candidates(netdevs []network.NetDev) map[string][]candidate {
	s.listMu.Lock()
	defer s.listMu.Unlock()
	same := func(a, b network.NetDev) bool { return a.Name == b.Name && a.Index == b.Index && a.Up == b.Up }
	if l := &s.listed; !l.at.IsZero() && time.Since(l.at) < listAge && slices.EqualFunc(l.netdevs, netdevs, same) {
		return l.found
	}
	l := listing{at: time.Now(), netdevs: netdevs, found: map[string][]candidate{}, failed: map[int]error{}}
	for i, p := range s.cfg.Providers {
		devs, err := s.ask(p)
		if err != nil {
			l.failed[i] = fmt.Errorf("list the devices of %s: %w", p.Name(), err)
			s.warn("cannot list the devices of a provider", "provider", p.Name(), err)
			continue
		}
		for _, d := range devs {
			for num, at := range d.Ports {
				if at.NetDev != "" {
					l.found[at.NetDev] = append(l.found[at.NetDev], candidate{key: key{i, d.Name}, num: num + 1, NetDev: at.NetDev, PNETID: at.PNETID, Software: d.Software})
				}
			}
		}
	}
	s.listed = l
	s.forgetWarned(netdevs)
	return l.found
}

// forgetWarned forgets what was logged about netdevs that are gone: those of containers come and go for ever.
func (s *Set) forgetWarned(netdevs []network.NetDev) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.warned, func(what, _ string) bool {
		return !slices.ContainsFunc(netdevs, func(n network.NetDev) bool { return n.Name == what }) &&
			!slices.ContainsFunc(s.cfg.Providers, func(p rdmaverbs.Provider) bool { return p.Name() == what })
	})
}

// ask lists the devices of a provider.
func (s *Set) ask(p rdmaverbs.Provider) ([]rdmaverbs.DeviceInfo, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	return p.Devices(ctx)
}

// listError returns why the last listing of a provider failed, or nil.
func (s *Set) listError(provider int) error {
	s.listMu.Lock()
	defer s.listMu.Unlock()
	return s.listed.failed[provider]
}

// A Listed is a device as listings show it, open or not.
type Listed struct {
	Name     string
	Provider string       // its name
	Ports    []ListedPort // Ports[0] is port 1
}

// A ListedPort is a port of a Listed device. It is the zero ListedPort if the port is
// on no netdev of the host that may carry RoCE.
type ListedPort struct {
	NetDev network.NetDev
	PNET   pnet.Port // as the pnetid table knows the port
	Open   *Port     // nil if the device is not open
}

// List returns the devices with a port on a netdev that may carry RoCE, in the order
// of the host's netdevs.
func (s *Set) List() ([]Listed, error) {
	netdevs, err := s.cfg.Network.NetDevs()
	if err != nil {
		return nil, err
	}
	found := s.candidates(netdevs)
	var out []Listed
	row := map[key]int{}
	for _, n := range netdevs {
		if !s.allowed(n.Name) {
			continue
		}
		for _, c := range found[n.Name] {
			i, ok := row[c.key]
			if !ok {
				i = len(out)
				row[c.key] = i
				out = append(out, Listed{Name: c.name, Provider: s.cfg.Providers[c.provider].Name()})
			}
			d := &out[i]
			for len(d.Ports) < c.num {
				d.Ports = append(d.Ports, ListedPort{})
			}
			d.Ports[c.num-1] = ListedPort{NetDev: n, PNET: c.pnetPort(n.Up), Open: s.isOpen(c)}
		}
	}
	return out, nil
}

// Has reports whether a device of that name is on a netdev of the host. Config.NetDevs
// does not matter.
func (s *Set) Has(name string) (bool, error) {
	netdevs, err := s.cfg.Network.NetDevs()
	if err != nil {
		return false, err
	}
	found := s.candidates(netdevs)
	return slices.ContainsFunc(netdevs, func(n network.NetDev) bool {
		return slices.ContainsFunc(found[n.Name], func(c candidate) bool { return c.name == name })
	}), nil
}

// RoCEVersions reports which versions of RoCE the open devices speak.
func (s *Set) RoCEVersions() (v1, v2 bool) {
	for _, d := range s.Open() {
		for _, p := range d.ports {
			gids, err := d.rdma.GIDs(p.num)
			if err != nil {
				continue // the device has failed
			}
			for _, e := range gids {
				v1 = v1 || e.Type == rdmaverbs.RoCEv1
				v2 = v2 || e.Type == rdmaverbs.RoCEv2
			}
		}
	}
	return v1, v2
}
