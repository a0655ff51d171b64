// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"smcr/nl"
	"smcr/userstack/simfabric"
)

// TestSecondSubnet: two hosts with two devices each, which are in two networks, have two links if all of
// them have one pnetid. If a network fails, the connection goes on over the other one.
func TestSecondSubnet(t *testing.T) {
	for _, tt := range []struct {
		name           string
		client, server int // how many of the devices have the pnetid
		links          int
	}{
		{"all have the pnetid", 2, 2, 2},
		{"no pnetid", 0, 0, 1},
		{"the client's second device has none", 1, 2, 1},
		{"the server's second device has none", 2, 1, 1},
	} {
		for cut := range 2 {
			t.Run(fmt.Sprintf("%s, network %d fails", tt.name, cut), func(t *testing.T) {
				bubble(t, func(t *testing.T) { testSecondSubnet(t, tt.client, tt.server, tt.links, cut) })
			})
		}
	}
}

func testSecondSubnet(t *testing.T, client, server, links, cut int) {
	b := &bed{t: t, w: simfabric.New(simfabric.Config{})}
	t.Cleanup(b.w.Close)
	t.Cleanup(b.noObjects)
	at := func(lan, host int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 3, byte(lan), byte(host)}), 24)
	}
	host := func(n int, name string) *simfabric.Host {
		var devs []simfabric.NetDev
		for i := range 2 {
			devs = append(devs, simfabric.NetDev{Name: fmt.Sprint("eth", i), LAN: fmt.Sprint("lan", i), Addrs: []netip.Prefix{at(i, n)}})
		}
		return b.w.Host(name, devs...)
	}
	b.ch, b.sh = host(1, "client"), host(2, "server")
	b.client, b.server = b.stack(b.ch, nil), b.stack(b.sh, nil)
	for s, n := range map[*Stack]int{b.client: client, b.server: server} {
		for i := range n {
			if err := s.Control().AddPNET(t.Context(), nl.PNET{ID: "NET", NetDev: fmt.Sprint("eth", i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	ct, st, err := b.w.Connect(netip.AddrPortFrom(at(0, 1).Addr(), 0), netip.AddrPortFrom(at(0, 2).Addr(), 80))
	if err != nil {
		t.Fatal(err)
	}
	c, s, cerr, serr := b.rendezvous(ct, st)
	if cerr != nil || serr != nil {
		t.Fatalf("client %v, server %v", cerr, serr)
	}
	b.exchange(c, s, pattern(1, 3000))
	if got := b.links(b.client); got != links {
		t.Fatalf("%d links, want %d", got, links)
	}
	if links > 1 {
		for _, h := range []*simfabric.Host{b.ch, b.sh} {
			h.SetPort(fmt.Sprint("eth", cut), false)
		}
		b.exchange(c, s, pattern(2, 300000))
		b.exchange(s, c, pattern(3, 300000))
		for _, h := range []*simfabric.Host{b.ch, b.sh} {
			h.SetPort(fmt.Sprint("eth", cut), true)
		}
		time.Sleep(time.Minute)
		if got := b.links(b.client); got != links {
			t.Errorf("%d links after the network works again, want %d", got, links)
		}
	}
	b.finish(c, s)
}
