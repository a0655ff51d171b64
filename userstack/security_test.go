// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"smcr/nl"
	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/simfabric"
)

// TestVLANsApart: connections of two VLANs never share a link group nor a
// device, even where a pnetid names but the device of the netdev below (RFC 7609,
// sections 2.2 and 5.1).
func TestVLANsApart(t *testing.T) {
	device := nl.PNET{ID: "NET", IBDev: "soft-eth0", IBPort: 1}
	for _, tt := range []struct {
		name  string
		pnets []nl.PNET
		id    string // pnetid of the link groups
	}{
		{"NoPNETID", nil, ""},
		{"OfTheVLANs", []nl.PNET{{ID: "NET", NetDev: "vlan7"}, {ID: "NET", NetDev: "vlan8"}, device}, "NET"},
		{"OfTheNetdevBelow", []nl.PNET{{ID: "NET", NetDev: "eth0"}, device}, "NET"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { testVLANsApart(t, tt.pnets, tt.id) })
		})
	}
}

func testVLANsApart(t *testing.T, pnets []nl.PNET, id string) {
	b := &bed{t: t, w: simfabric.New(simfabric.Config{})}
	t.Cleanup(b.w.Close)
	t.Cleanup(b.noObjects)
	at := func(vlan uint16, host int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(vlan), byte(host)}) }
	host := func(n int, name string) *simfabric.Host {
		devs := netdevs(n, 1)
		for _, v := range []uint16{7, 8} {
			devs = append(devs, simfabric.NetDev{Name: fmt.Sprint("vlan", v), VLAN: v, Lower: []string{"eth0"}, Addrs: []netip.Prefix{netip.PrefixFrom(at(v, n), 24)}})
		}
		return b.w.Host(name, devs...)
	}
	b.ch, b.sh = host(1, "client"), host(2, "server")
	b.client, b.server = b.stack(b.ch, nil), b.stack(b.sh, nil)
	for _, s := range []*Stack{b.client, b.server} {
		for _, p := range pnets {
			if err := s.Control().AddPNET(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	var pairs [][2]*Conn
	for _, v := range []uint16{7, 8, 7, 8} {
		ct, st, err := b.w.Connect(netip.AddrPortFrom(at(v, 1), 0), netip.AddrPortFrom(at(v, 2), 80))
		if err != nil {
			t.Fatal(err)
		}
		c, s, cerr, serr := b.rendezvous(ct, st)
		if cerr != nil || serr != nil {
			t.Fatalf("VLAN %d: client %v, server %v", v, cerr, serr)
		}
		b.exchange(c, s, pattern(uint64(v), 3000))
		pairs = append(pairs, [2]*Conn{c, s})
	}
	for _, s := range []*Stack{b.client, b.server} {
		list, err := s.Control().LinkGroups(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		links, err := s.Control().Links(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range list {
			for _, l := range links {
				if l.LinkGroup == g.ID {
					got = append(got, fmt.Sprintf("VLAN %d, pnetid %q, %d connections, %s", g.VLAN, g.PNETID, g.Conns, l.IBDev))
				}
			}
		}
		var want []string
		for _, v := range []uint16{7, 8} {
			want = append(want, fmt.Sprintf("VLAN %d, pnetid %q, 2 connections, soft-vlan%d", v, id, v))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("links: -want +got:\n%s", diff)
		}
	}
	for _, p := range pairs {
		b.finish(p[0], p[1])
	}
}

// TestNetDevsForVLAN: the devices that may serve a connection are those of
// netdevs in its VLAN.
func TestNetDevsForVLAN(t *testing.T) {
	hosts := netdevList{
		{Name: "eth0", Up: true}, {Name: "eth1", Up: true}, {Name: "eth2", Up: true}, {Name: "eth3", Up: true},
		{Name: "eth0.7", Up: true, VLAN: 7, Lower: []string{"eth0"}},
		{Name: "eth0.8", Up: true, VLAN: 8, Lower: []string{"eth0"}},
		{Name: "eth1.7", Up: true, VLAN: 7, Lower: []string{"eth1"}},
		{Name: "eth2.7", VLAN: 7, Lower: []string{"eth2"}},
		{Name: "eth0.9", Up: true, VLAN: 9, Lower: []string{"eth0"}},
		{Name: "eth0.9.7", Up: true, VLAN: 7, Lower: []string{"eth0.9", "eth0"}},
		{Name: "eth4.7", Up: true, VLAN: 7, Lower: []string{"eth4"}}, // in another network namespace
	}
	all := []pnet.Entry{{ID: "A", NetDev: "eth0"}}
	for _, d := range []string{"eth0", "eth1", "eth2", "eth3"} {
		all = append(all, pnet.Entry{ID: "A", IBDev: "soft-" + d, IBPort: 1})
	}
	for _, tt := range []struct {
		name    string
		entries []pnet.Entry
		rt      network.Route
		want    string
	}{
		{"no pnetid", nil, network.Route{NetDev: "eth0.7", VLAN: 7, Peers: []string{"eth1.7"}}, "[eth0.7 eth1.7]"},
		{"no pnetid, no VLAN", nil, network.Route{NetDev: "eth0", Peers: []string{"eth1"}}, "[eth0 eth1]"},
		{"no VLAN", all, network.Route{NetDev: "eth0"}, "[eth0 eth1 eth2 eth3]"},
		{"of the netdev below", all, network.Route{NetDev: "eth0.7", VLAN: 7}, "[eth0.7 eth1.7]"},
		{"only one has the VLAN", all, network.Route{NetDev: "eth0.8", VLAN: 8}, "[eth0.8]"},
		{"a tag upon a tag", all, network.Route{NetDev: "eth0.9.7", VLAN: 7}, "[eth0.9.7 eth1.7]"},
		{"of the VLAN", []pnet.Entry{{ID: "A", NetDev: "eth0.7"}, {ID: "A", IBDev: "soft-eth1", IBPort: 1}}, network.Route{NetDev: "eth0.7", VLAN: 7}, "[eth1.7]"},
		{"device of the VLAN", []pnet.Entry{{ID: "A", NetDev: "eth0.7"}, {ID: "A", IBDev: "soft-eth1.7", IBPort: 1}}, network.Route{NetDev: "eth0.7", VLAN: 7}, "[eth1.7]"},
		{"device of another VLAN", []pnet.Entry{{ID: "A", NetDev: "eth0.7"}, {ID: "A", IBDev: "soft-eth0.8", IBPort: 1}}, network.Route{NetDev: "eth0.7", VLAN: 7}, "[]"},
		{"without tag, device of a VLAN", []pnet.Entry{{ID: "A", NetDev: "eth0"}, {ID: "A", IBDev: "soft-eth0.8", IBPort: 1}}, network.Route{NetDev: "eth0"}, "[]"},
	} {
		s := &Stack{net: hosts, pnets: new(pnet.Table)}
		for _, e := range tt.entries {
			if err := s.pnets.Add(e); err != nil {
				t.Fatal(err)
			}
		}
		names, _, err := s.netDevsFor(tt.rt)
		if got := fmt.Sprint(names); got != tt.want || err != nil {
			t.Errorf("%s: %s, %v, want %s", tt.name, got, err, tt.want)
		}
	}
}

// netdevList is a Network of which only the netdevs are known.
type netdevList []network.NetDev

func (l netdevList) NetDevs() ([]network.NetDev, error)         { return l, nil }
func (netdevList) Route(_, _ netip.Addr) (network.Route, error) { return network.Route{}, ErrNotOnLink }
func (netdevList) Secured(_, _ netip.AddrPort) (bool, error)    { return false, nil }

// TestThirdPeer: a peer that knows the RKey and address of another peer's RMB
// can neither write to it nor keep its link (RFC 7609, section 5; one
// protection domain for each link group).
func TestThirdPeer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		// A second client, with a link group of its own with the server.
		h3 := b.w.Host("third", netdevs(3, 1)...)
		third := b.stack(h3, nil)
		ct, st, err := b.w.Connect(netip.AddrPortFrom(addr(3, 0), 0), netip.AddrPortFrom(addr(2, 0), 80))
		if err != nil {
			t.Fatal(err)
		}
		var s3 *Conn
		var wg sync.WaitGroup
		wg.Go(func() { s3, err = b.server.Server(context.Background(), st) })
		c3, cerr := third.Client(context.Background(), ct)
		wg.Wait()
		if cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		if s3.g == s.g {
			t.Fatal("two peers share a link group")
		}
		// Where the first client may write.
		var victim linkgroup.ConnParams
		s.g.do(func(time.Time) { victim = s.core.Local() })
		b.exchange(c3, s3, []byte("hello"))
		var send *region
		var l *link
		c3.g.do(func(time.Time) {
			for r := range c3.g.regions {
				if r.chunks != nil {
					send = r
				}
			}
			l = c3.core.Link().Data.(*link)
		})
		mr, err := send.mr(c3.g, l.dev, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("fine!")); err != nil { // stands where the other one writes
			t.Fatal(err)
		}
		time.Sleep(settled)
		wr := rdmaverbs.SendWR{ID: tokenFlag, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, RemoteAddr: victim.VAddr, RKey: uint32(victim.RKey)}
		wr.SG[0] = rdmaverbs.SGE{MR: mr, Len: 5}
		if _, err := l.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		if err := b.ended(c3); err == nil {
			t.Error("the third peer's connection went on")
		}
		b.ended(s3)
		got := make([]byte, 5)
		if _, err := io.ReadFull(s, got); err != nil || string(got) != "fine!" {
			t.Errorf("read %q, %v", got, err)
		}
		b.exchange(c, s, pattern(1, 4000))
		b.finish(c, s)
	})
}
