// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net/netip"
	"testing"
	"time"

	"smcr/userstack/driver"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
)

// TestDeviceOfAnotherLAN: a device that comes up adds no link to a group of another
// network (RFC 7609, section 3.5.5.1.1).
func TestDeviceOfAnotherLAN(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &bed{t: t, w: simfabric.New(simfabric.Config{})}
		t.Cleanup(b.w.Close)
		t.Cleanup(b.noObjects)
		at := func(host int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(host)}) }
		host := func(n int, name string) *simfabric.Host {
			return b.w.Host(name, append(netdevs(n, 1), simfabric.NetDev{Name: "eth9", LAN: "other", Addrs: []netip.Prefix{netip.PrefixFrom(at(n), 24)}})...)
		}
		b.ch, b.sh = host(1, "client"), host(2, "server")
		b.client, b.server = b.stack(b.ch, nil), b.stack(b.sh, nil)
		c, s := b.connect()
		ct, st, err := b.w.Connect(netip.AddrPortFrom(at(1), 0), netip.AddrPortFrom(at(2), 80))
		if err != nil {
			t.Fatal(err)
		}
		c9, s9, cerr, serr := b.rendezvous(ct, st)
		if cerr != nil || serr != nil {
			t.Fatal(cerr, serr)
		}
		for _, h := range []*simfabric.Host{b.ch, b.sh} {
			h.SetPort("eth9", false)
			time.Sleep(time.Second)
			h.SetPort("eth9", true)
			time.Sleep(10 * time.Second)
		}
		for _, g := range []*driver.Group{c.group(), s.group()} {
			g.View(func(core *linkgroup.Group) {
				if links := core.Links(); len(links) != 1 || links[0].Dev().Name != "sim-eth0" {
					t.Errorf("%s: %d links", g.Role(), len(links))
				}
				for _, d := range core.Devices() {
					if d.Name != "sim-eth0" {
						t.Errorf("%s: %s is a candidate for links", g.Role(), d.Name)
					}
				}
			})
		}
		b.finish(c, s)
		c9.Close()
		s9.Close()
	})
}

// TestDevicePluggedIn: a device that did not exist at the first contact gives the group
// its second link when a later connection finds the device.
func TestDevicePluggedIn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{devices: 2})
		b.ch.Remove("eth1")
		b.sh.Remove("eth1")
		c, s := b.connect()
		if n := b.links(b.server); n != 1 {
			t.Errorf("%d links without eth1", n)
		}
		b.ch.Restore("eth1")
		b.sh.Restore("eth1")
		c2, s2 := b.connect()
		time.Sleep(10 * time.Second)
		if n := b.links(b.server); n != 2 || c2.group() != c.group() {
			t.Errorf("%d links with eth1", n)
		}
		b.finish(c, s)
		b.finish(c2, s2)
	})
}

// TestDeviceWithoutLink: while a device is up but has no link yet, a new connection uses
// the link group.
func TestDeviceWithoutLink(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{devices: 2})
		c, s := b.connect()
		time.Sleep(time.Second)
		b.ch.SetPort("eth0", false)
		time.Sleep(time.Second)
		if n := b.links(b.server); n != 1 {
			t.Fatalf("%d links with one device, want 1", n)
		}
		b.ch.SetPort("eth0", true)
		c2, s2 := b.connect()
		if c2.group() != c.group() || s2.group() != s.group() {
			t.Error("the new connection has a link group of its own")
		}
		time.Sleep(time.Second)
		if n := b.links(b.client); n != 2 {
			t.Errorf("%d links with both devices, want 2", n)
		}
		b.finish(c, s)
		b.finish(c2, s2)
	})
}
