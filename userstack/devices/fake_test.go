// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/userstack/network"
)

// host is a Network of which only the netdevs are known.
type host []network.NetDev

func (h host) NetDevs() ([]network.NetDev, error) { return h, nil }

func (host) Route(_, _ netip.Addr) (network.Route, error) {
	return network.Route{}, network.ErrNotOnLink
}

func (host) Secured(_, _ netip.AddrPort) (bool, error) { return false, nil }

// up makes a host of netdevs that are up.
func up(names ...string) (h host) {
	for i, n := range names {
		h = append(h, network.NetDev{Name: n, Index: i + 2, Up: true})
	}
	return h
}

// fake is a provider. What a test sets, it sets before the provider is used, or with
// mu held.
type fake struct {
	name string
	mu   sync.Mutex
	devs []rdmaverbs.DeviceInfo
	err  error // of Devices
	open []*fakeDevice
}

// fakeOn is a software provider with a device on each netdev.
func fakeOn(h host) *fake {
	f := &fake{name: "fake"}
	for _, n := range h {
		f.devs = append(f.devs, rdmaverbs.DeviceInfo{Name: "fake-" + n.Name, Software: true, Ports: []rdmaverbs.PortInfo{{NetDev: n.Name}}})
	}
	return f
}

// adapter is a provider with one device, with a port on each netdev.
func adapter(device string, netdevs ...string) *fake {
	d := rdmaverbs.DeviceInfo{Name: device}
	for _, n := range netdevs {
		d.Ports = append(d.Ports, rdmaverbs.PortInfo{NetDev: n})
	}
	return &fake{name: "adapters", devs: []rdmaverbs.DeviceInfo{d}}
}

func (f *fake) Name() string { return f.name }

func (f *fake) Devices(context.Context) ([]rdmaverbs.DeviceInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.devs), f.err
}

func (f *fake) Open(_ context.Context, name string) (rdmaverbs.Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.devs, func(d rdmaverbs.DeviceInfo) bool { return d.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("fake: %q: %w", name, rdmaverbs.ErrNoDevice)
	}
	d := &fakeDevice{name: name, events: make(chan rdmaverbs.AsyncEvent, 8)}
	for _, p := range f.devs[i].Ports {
		d.ports = append(d.ports, rdmaverbs.PortAttr{State: rdmaverbs.PortActive, NetDev: p.NetDev, IfIndex: len(d.ports) + 2})
	}
	f.open = append(f.open, d)
	return d, nil
}

// opened returns the names of the devices that were opened.
func (f *fake) opened() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.open {
		names = append(names, d.name)
	}
	return names
}

// remove takes all devices away.
func (f *fake) remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devs = nil
	for _, d := range f.open {
		d.events <- rdmaverbs.AsyncEvent{Type: rdmaverbs.EventDeviceFatal}
	}
}

// fakeDevice is a device without objects.
type fakeDevice struct {
	rdmaverbs.Device
	name   string
	events chan rdmaverbs.AsyncEvent
	gids   []rdmaverbs.GIDEntry

	mu     sync.Mutex
	ports  []rdmaverbs.PortAttr
	closed bool
}

func (d *fakeDevice) Name() string                        { return d.name }
func (d *fakeDevice) Events() <-chan rdmaverbs.AsyncEvent { return d.events }

func (d *fakeDevice) GIDs(int) ([]rdmaverbs.GIDEntry, error) { return d.gids, nil }

func (d *fakeDevice) Attr() rdmaverbs.DeviceAttr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return rdmaverbs.DeviceAttr{NumPorts: len(d.ports), NetDev: d.ports[0].NetDev, IfIndex: d.ports[0].IfIndex}
}

func (d *fakeDevice) Port(num int) (rdmaverbs.PortAttr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if num < 1 || num > len(d.ports) {
		return rdmaverbs.PortAttr{}, rdmaverbs.ErrInvalid
	}
	return d.ports[num-1], nil
}

// setPort changes the state of a port, and reports it.
func (d *fakeDevice) setPort(num int, state rdmaverbs.PortState) {
	d.mu.Lock()
	d.ports[num-1].State = state
	d.mu.Unlock()
	ev := rdmaverbs.AsyncEvent{Type: rdmaverbs.EventPortErr, Port: num}
	if state == rdmaverbs.PortActive {
		ev.Type = rdmaverbs.EventPortActive
	}
	d.events <- ev
}

func (d *fakeDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return rdmaverbs.ErrClosed
	}
	d.closed = true
	close(d.events)
	return nil
}

// newSet makes a set that is closed with the test.
func newSet(t *testing.T, h network.Network, providers ...rdmaverbs.Provider) *Set {
	t.Helper()
	return newSetWith(t, Config{Network: h, Providers: providers})
}

func newSetWith(t *testing.T, cfg Config) *Set {
	t.Helper()
	cfg.PNETs = new(pnet.Table)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Changed == nil {
		cfg.Changed = func(*Port, bool) {}
	}
	s := New(cfg)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// names describes ports as DEVICE/PORT.
func names(ports []*Port) (out []string) {
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%s/%d", p.Name(), p.Num()))
	}
	return out
}
