// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/userstack/simfabric"
)

// TestTwoProviders: a host has an adapter with two ports and, from a second provider, a
// device on each of its three netdevs. The link group has its links on both ports of the
// adapter and fails over between them. After the adapter is removed, it uses the second
// provider.
func TestTwoProviders(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{devices: 3})
		b.closeStack(b.client)
		b.client = b.stack(b.ch, func(c *Config) {
			c.Providers = []rdmaverbs.Provider{b.ch.Adapter("card0", "eth0", "eth1"), b.ch.Provider()}
			c.MaxLinks = 2
		})
		ctl := b.client.Control()
		links := func() (out []string) {
			for _, l := range list(t, ctl.Links) {
				out = append(out, fmt.Sprintf("%s/%d on netdev %d", l.IBDev, l.IBPort, l.NetDev))
			}
			slices.Sort(out)
			return out
		}
		c, s := b.connect()
		b.exchange(c, s, pattern(1, 100<<10))
		time.Sleep(settled)
		if got, want := links(), []string{"card0/1 on netdev 2", "card0/2 on netdev 3"}; !slices.Equal(got, want) {
			t.Fatalf("links %q, want %q", got, want)
		}
		var devs []string
		for _, d := range list(t, ctl.Devices) {
			row := fmt.Sprintf("%s of %s, %d groups", d.Name, d.Provider, d.UseCount)
			for _, p := range d.Ports {
				row += fmt.Sprintf(", netdev %d %v %d links", p.NetDev, p.Active, p.Links)
			}
			devs = append(devs, row)
		}
		if want := []string{
			"card0 of sim-adapter, 1 groups, netdev 2 true 1 links, netdev 3 true 1 links",
			"sim-eth0 of sim, 0 groups, netdev 2 true 0 links", "sim-eth1 of sim, 0 groups, netdev 3 true 0 links",
			"sim-eth2 of sim, 0 groups, netdev 4 true 0 links",
		}; !slices.Equal(devs, want) {
			t.Errorf("devices\n%q, want\n%q", devs, want)
		}
		if err := ctl.AddPNET(t.Context(), nl.PNET{ID: "UNUSED", IBDev: "card0", IBPort: 2}); err != nil {
			t.Error(err)
		}
		if err := ctl.FlushPNET(t.Context()); err != nil {
			t.Error(err)
		}

		b.ch.SetPort("eth0", false)
		b.exchange(c, s, pattern(2, 100<<10))
		b.exchange(s, c, pattern(3, 100<<10))
		time.Sleep(2 * time.Second) // the server waits behind the exchange before
		if got := links(); !slices.Contains(got, "card0/2 on netdev 3") || slices.Contains(got, "card0/1 on netdev 2") {
			t.Errorf("with port 1 down: links %q", got)
		}
		b.ch.SetPort("eth0", true)
		time.Sleep(2 * time.Second)
		b.finish(c, s)

		b.ch.Remove("eth1") // the adapter must have both netdevs
		time.Sleep(2 * time.Second)
		c, s = b.connect()
		b.exchange(c, s, pattern(4, 100<<10))
		b.finish(c, s)
	})
}

// TestOtherProvider: stacks on a provider whose devices have other names than software
// RoCE connect to each other.
func TestOtherProvider(t *testing.T) {
	bubble(t, func(t *testing.T) {
		only := func(h *simfabric.Host) func(*Config) {
			return func(c *Config) { c.Providers = []rdmaverbs.Provider{h.Adapter("mlx5_0", "eth0", "eth1")} }
		}
		b := newBed(t, bedConfig{devices: 2})
		b.closeStack(b.client)
		b.closeStack(b.server)
		b.client, b.server = b.stack(b.ch, only(b.ch)), b.stack(b.sh, only(b.sh))
		c, s := b.connect()
		b.exchange(c, s, pattern(1, 100<<10))
		time.Sleep(settled)
		if c, s := b.links(b.client), b.links(b.server); c != 2 || s != 2 {
			t.Errorf("%d and %d links", c, s)
		}
		b.finish(c, s)
	})
}
