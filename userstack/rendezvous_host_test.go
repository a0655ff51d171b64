// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/userstack/devices"
	"smcr/userstack/network"
)

// gidTable is a device with one active port. Only its GIDs are real. It is also its own
// provider.
type gidTable struct {
	rdmaverbs.Device
	list []rdmaverbs.GIDEntry
}

func (gidTable) Name() string                        { return "table" }
func (gidTable) Attr() rdmaverbs.DeviceAttr          { return rdmaverbs.DeviceAttr{NumPorts: 1} }
func (gidTable) Events() <-chan rdmaverbs.AsyncEvent { return nil }

func (gidTable) Port(int) (rdmaverbs.PortAttr, error) {
	return rdmaverbs.PortAttr{State: rdmaverbs.PortActive}, nil
}

func (d gidTable) GIDs(int) ([]rdmaverbs.GIDEntry, error) { return d.list, nil }

func (gidTable) Devices(context.Context) ([]rdmaverbs.DeviceInfo, error) {
	return []rdmaverbs.DeviceInfo{{Name: "table", Ports: []rdmaverbs.PortInfo{{NetDev: "eth0"}}}}, nil
}

func (d gidTable) Open(context.Context, string) (rdmaverbs.Device, error) { return d, nil }

// netdevList is a Network that only lists netdevs.
type netdevList []network.NetDev

func (l netdevList) NetDevs() ([]network.NetDev, error)         { return l, nil }
func (netdevList) Route(_, _ netip.Addr) (network.Route, error) { return network.Route{}, ErrNotOnLink }
func (netdevList) Secured(_, _ netip.AddrPort) (bool, error)    { return false, nil }

// portWith opens the port of a device with these GIDs.
func portWith(t *testing.T, d gidTable) *devices.Port {
	t.Helper()
	s := devices.New(devices.Config{
		Providers: []rdmaverbs.Provider{d}, Network: netdevList{{Name: "eth0", Up: true}}, PNETs: new(pnet.Table),
		Changed: func(*devices.Port, bool) {}, Log: slog.New(slog.DiscardHandler),
	})
	ports, _, err := s.For(network.Route{NetDev: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

// TestVersion2Devices: version 2 needs IPv4 addresses, even if devices have GIDs of IPv6
// addresses.
func TestVersion2Devices(t *testing.T) {
	table := []rdmaverbs.GIDEntry{}
	var rt network.Route
	for _, p := range []string{"10.0.0.1/24", "fd00::1/64"} {
		p := netip.MustParsePrefix(p)
		rt.Local = append(rt.Local, p)
		table = append(table, rdmaverbs.GIDEntry{GID: p.Addr().As16(), Type: rdmaverbs.RoCEv2})
	}
	devs := []*devices.Port{portWith(t, gidTable{list: table})}
	for local, want := range map[string]int{"10.0.0.1": 1, "::ffff:10.0.0.1": 1, "fd00::1": 0, "fd01::1": 0} {
		if got, _, own := portsV2(devs, rt, netip.MustParseAddr(local)); len(got) != want || own.IsValid() != (want > 0) {
			t.Errorf("%s: %d devices, %v, want %d", local, len(got), own, want)
		}
	}
}
