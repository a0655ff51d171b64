// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"smcr/nl"
	"smcr/smc"
)

// Build makes the model of a stack. before has the counters of an earlier listing of the
// same stack, for rates; nil means that there are no rates. netdev returns the name of a
// network device by its index.
//
// The rates of link groups, links and devices are sums over the connections that exist at
// the time of the listing. What a connection moved that has ended since the earlier listing
// is only in the rate of the stack. The kernel does not tell the bytes of a connection, so
// it has only the rate of the stack.
func Build(l *Listing, before *Counters, netdev func(uint32) string) Stack {
	b := builder{
		l: l, netdev: remember(netdev), meter: newMeter(before, l.Counters()),
		byGroup: map[nl.LinkGroupID]volume{}, byLink: map[linkKey]volume{}, byPort: map[portKey]volume{},
	}
	s := Stack{
		Name: l.Stack, Host: cmp.Or(l.Info.LocalHost, "this host"),
		Version: l.Info.Version, Release: l.Info.Release, Rates: b.meter.total(),
		Devices: []Port{}, Peers: []Peer{},
	}
	if l.Info.Stack != "" {
		s.Software = strings.TrimSpace(l.Info.Stack + " " + l.Info.StackVersion)
	}
	s.Conns = b.sum()
	b.devices(&s)
	b.peers(&s)
	return s
}

// A builder makes the parts of a Stack.
type builder struct {
	l      *Listing
	netdev func(uint32) string
	meter  *meter

	byGroup map[nl.LinkGroupID]volume
	byLink  map[linkKey]volume
	byPort  map[portKey]volume
}

// remember returns a function that asks for each name once: thousands of links use the same
// few devices.
func remember(name func(uint32) string) func(uint32) string {
	known := make(map[uint32]string)
	return func(index uint32) string {
		s, ok := known[index]
		if !ok {
			s = name(index)
			known[index] = s
		}
		return s
	}
}

type linkKey struct {
	group nl.LinkGroupID
	link  uint8
}

type portKey struct {
	dev  string
	port int
}

// base returns the ID without the last byte, which a link group and its links need not
// have in common.
func base(id nl.LinkGroupID) nl.LinkGroupID { return id &^ 0xff }

// sum counts the connections, and adds up what those of each link, link group and port have
// moved.
func (b *builder) sum() (n Conns) {
	for i := range b.l.Conns {
		c := &b.l.Conns[i]
		switch {
		case c.State == smc.StateListen:
			n.Listen++
			continue
		case c.State == smc.StateInit:
			continue
		case c.Mode == nl.ModeSMCR:
			n.SMCR++
		case c.Mode == nl.ModeSMCD:
			n.SMCD++
		case c.Mode == nl.ModeTCP:
			n.TCP++
		}
		if b.meter == nil || !counted(c) {
			continue
		}
		v := b.meter.moved(c)
		addTo(b.byGroup, base(c.LinkGroup), v)
		addTo(b.byLink, linkKey{base(c.LinkGroup), c.Link.LinkID}, v)
		addTo(b.byPort, portKey{c.Link.IBDev, int(c.Link.IBPort)}, v)
	}
	return n
}

func addTo[K comparable](m map[K]volume, key K, v volume) {
	sum := m[key]
	sum.add(v)
	m[key] = sum
}

// rates returns the rates of an entry of one of the maps, or nil.
func rates[K comparable](b *builder, m map[K]volume, key K) *Rates {
	if b.meter == nil || b.l.Info.Stack == "" {
		return nil
	}
	return b.meter.rates(m[key])
}

// devices adds the ports.
func (b *builder) devices(s *Stack) {
	for i := range b.l.Devices {
		d := &b.l.Devices[i]
		for n := range d.Ports {
			p := &d.Ports[n]
			if !p.Valid {
				continue
			}
			port := Port{
				IBDev: d.Name, IBPort: n + 1, NetDev: b.netdev(p.NetDev), State: portState(p), PNETID: p.PNETID, MTU: p.MTU,
				Links: p.Links, Critical: d.Critical, Refused: d.Refused.Total(), Rates: rates(b, b.byPort, portKey{d.Name, n + 1}),
			}
			if !p.GID.IsZero() {
				port.GID = address(p.GID)
			}
			s.Devices = append(s.Devices, port)
		}
	}
	slices.SortStableFunc(s.Devices, func(x, y Port) int {
		return cmp.Or(cmp.Compare(x.NetDev, y.NetDev), cmp.Compare(x.IBDev, y.IBDev), cmp.Compare(x.IBPort, y.IBPort))
	})
}

// peers adds the link groups, by peer.
func (b *builder) peers(s *Stack) {
	links := make(map[nl.LinkGroupID][]Link)
	for i := range b.l.Links {
		l := &b.l.Links[i]
		id := base(l.LinkGroup)
		link := Link{
			ID: l.ID, State: l.State.String(), IBDev: l.IBDev, IBPort: l.IBPort, NetDev: b.netdev(l.NetDev),
			GID: address(l.GID), PeerGID: address(l.PeerGID), MTU: l.MTU, Conns: l.Conns, Rates: rates(b, b.byLink, linkKey{id, l.ID}),
		}
		if l.Resent != nil {
			link.Resent = &l.Resent.Packets
		}
		links[id] = append(links[id], link)
	}
	at := make(map[string]int)
	for i := range b.l.Groups {
		g := &b.l.Groups[i]
		group := Group{
			ID: g.ID.String(), Role: g.Role.Short(), Type: g.Type.String(), Version: g.Version(), PNETID: g.PNETID, VLAN: g.VLAN,
			Conns: g.Conns, Rates: rates(b, b.byGroup, base(g.ID)), Links: links[base(g.ID)],
		}
		if group.Links == nil {
			group.Links = []Link{}
		}
		slices.SortStableFunc(group.Links, func(x, y Link) int { return cmp.Compare(x.ID, y.ID) })
		peer := g.Peer
		if peer == "" && len(group.Links) > 0 {
			peer = group.Links[0].PeerGID
		}
		peer = cmp.Or(peer, "unknown")
		n, ok := at[peer]
		if !ok {
			n = len(s.Peers)
			at[peer] = n
			s.Peers = append(s.Peers, Peer{Address: peer})
		}
		if g.V2 != nil && s.Peers[n].Host == "" {
			s.Peers[n].Host = g.V2.PeerHost
		}
		s.Peers[n].Groups = append(s.Peers[n].Groups, group)
	}
	for _, p := range s.Peers {
		slices.SortStableFunc(p.Groups, func(x, y Group) int { return cmp.Compare(x.ID, y.ID) })
	}
	slices.SortStableFunc(s.Peers, func(x, y Peer) int { return compareAddresses(x.Address, y.Address) })
}

// address returns a GID in its shortest form: that of IPv4, if it stands for such an
// address.
func address(g smc.GID) string { return g.Addr().String() }

// compareAddresses orders addresses by their value. What is no address comes last.
func compareAddresses(x, y string) int {
	a, aerr := netip.ParseAddr(x)
	b, berr := netip.ParseAddr(y)
	switch {
	case aerr == nil && berr == nil:
		return a.Compare(b)
	case aerr == nil:
		return -1
	case berr == nil:
		return 1
	}
	return strings.Compare(x, y)
}
