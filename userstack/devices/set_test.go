// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/userstack/network"
)

// bubble runs f with time that passes when nothing else is to be done.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// check compares what For returns for a route over netdev.
func check(t *testing.T, s *Set, netdev string, want ...string) []*Port {
	t.Helper()
	ports, _, err := s.For(network.Route{NetDev: netdev})
	if got := names(ports); !slices.Equal(got, want) {
		t.Errorf("over %s: %v, %v, want %v", netdev, got, err, want)
	}
	if (err != nil) != (len(want) == 0) || err != nil && !errors.Is(err, ErrNoDevice) {
		t.Errorf("over %s: %v", netdev, err)
	}
	return ports
}

// TestTwoProviders: on a netdev that two providers serve the preferred one is used.
// Where it has no device, cannot open it or its port is down, the other one is.
func TestTwoProviders(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := up("eth0", "eth1", "eth2", "eth3")
		a, b := adapter("card0", "eth0", "eth1"), fakeOn(h[:3])
		s := newSet(t, h, a, b)
		first := check(t, s, "eth0", "card0/1")[0]
		check(t, s, "eth2", "fake-eth2/1")
		check(t, s, "eth3")
		if got := a.opened(); !slices.Equal(got, []string{"card0"}) || first.IfIndex() != 2 {
			t.Errorf("opened %v, port on netdev %d", got, first.IfIndex())
		}
		a.open[0].setPort(1, rdmaverbs.PortDown)
		soft := check(t, s, "eth0", "fake-eth0/1")[0]
		rt := network.Route{NetDev: "eth0"}
		if s.Serves(rt, first) != true || !s.Serves(rt, soft) {
			t.Error("a port of this netdev does not serve it")
		}
		a.open[0].setPort(1, rdmaverbs.PortActive)
		if again := check(t, s, "eth0", "card0/1")[0]; again != first {
			t.Error("the same port is another one")
		}
		if s.Serves(rt, soft) {
			t.Error("the port of the second provider serves although the first one is active")
		}
		if s.Serves(network.Route{NetDev: "eth1"}, first) {
			t.Error("port 1 serves the netdev of port 2")
		}
	})
}

// TestTwoPorts: the ports of a device are apart. Each serves its netdev, has an ID of
// its own and goes up and down alone; the device is opened once.
func TestTwoPorts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := up("eth0", "eth1")
		a := adapter("card0", "eth0", "eth1")
		var mu sync.Mutex
		var changes []string
		s := newSetWith(t, Config{Network: h, Providers: []rdmaverbs.Provider{a}, Changed: func(p *Port, up bool) {
			mu.Lock()
			defer mu.Unlock()
			changes = append(changes, fmt.Sprintf("%s %v", names([]*Port{p}), up))
		}})
		p1 := check(t, s, "eth0", "card0/1")[0]
		p2 := check(t, s, "eth1", "card0/2")[0]
		if p1.ID() == p2.ID() || p1.Device() != p2.Device() || s.Port(p2.ID()) != p2 || p1.IfIndex() != 2 || p2.IfIndex() != 3 {
			t.Errorf("ports %+v and %+v", p1, p2)
		}
		both, _, err := s.For(network.Route{NetDev: "eth1", Peers: []string{"eth0"}})
		if got := names(both); !slices.Equal(got, []string{"card0/2", "card0/1"}) || err != nil {
			t.Errorf("two ports in a subnet: %v, %v", got, err)
		}
		synctest.Wait()
		a.open[0].setPort(2, rdmaverbs.PortDown)
		synctest.Wait()
		check(t, s, "eth1")
		check(t, s, "eth0", "card0/1")
		if want := []string{"[card0/1] true", "[card0/2] true", "[card0/2] false"}; !slices.Equal(changes, want) {
			t.Errorf("changes %q, want %q", changes, want)
		}
		if got := a.opened(); len(got) != 1 {
			t.Errorf("opened %v", got)
		}
		rows, err := s.List()
		if err != nil || len(rows) != 1 || rows[0].Name != "card0" || len(rows[0].Ports) != 2 || rows[0].Ports[0].Open != p1 ||
			rows[0].Ports[1].Open != p2 || rows[0].Ports[1].NetDev.Name != "eth1" {
			t.Errorf("listed: %+v, %v", rows, err)
		}
	})
}

// TestListing: the devices of all providers are listed, open or not, in the order of
// the netdevs, and known to pnetids even if Config.NetDevs leaves them out.
func TestListing(t *testing.T) {
	h := up("eth0", "eth1", "eth2")
	a, b := adapter("card0", "eth1", "eth2"), fakeOn(h)
	b.devs = append(b.devs, rdmaverbs.DeviceInfo{Name: "fake-lo", Ports: []rdmaverbs.PortInfo{{NetDev: "lo"}}})
	s := newSetWith(t, Config{Network: h, Providers: []rdmaverbs.Provider{a, b}, NetDevs: []string{"eth0", "eth2"}})
	rows, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		row := r.Name + " of " + r.Provider + ":"
		for _, p := range r.Ports {
			row += fmt.Sprintf(" %q", p.NetDev.Name)
			if p.Open != nil {
				t.Errorf("%s was opened for a listing", r.Name)
			}
		}
		got = append(got, row)
	}
	if want := []string{`fake-eth0 of fake: "eth0"`, `card0 of adapters: "" "eth2"`, `fake-eth2 of fake: "eth2"`}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	for name, want := range map[string]bool{"card0": true, "fake-eth1": true, "fake-lo": false, "fake-eth7": false} {
		if has, err := s.Has(name); has != want || err != nil {
			t.Errorf("has %s: %v, %v", name, has, err)
		}
	}
	check(t, s, "eth1") // left out
	check(t, s, "eth2", "card0/2")
}

// TestPNETID: a pnetid selects ports by device and port number, whatever provider has
// them; hardware may report one itself.
func TestPNETID(t *testing.T) {
	h := up("eth0", "eth1", "eth2")
	for name, tt := range map[string]struct {
		entries  []pnet.Entry
		hardware string // reported by port 2 of the card
		want     []string
	}{
		"none":            {nil, "", []string{"fake-eth0/1"}},
		"of the card":     {[]pnet.Entry{{ID: "A", NetDev: "eth0"}, {ID: "A", IBDev: "card0", IBPort: 2}}, "", []string{"card0/2"}},
		"of the software": {[]pnet.Entry{{ID: "A", NetDev: "eth0"}, {ID: "A", IBDev: "fake-eth2", IBPort: 1}}, "", []string{"fake-eth2/1"}},
		"of the netdev":   {[]pnet.Entry{{ID: "A", NetDev: "eth0"}}, "", []string{"fake-eth0/1"}},
		"of the hardware": {[]pnet.Entry{{ID: "A", NetDev: "eth0"}}, "A", []string{"fake-eth0/1", "card0/2"}},
		"of no device":    {[]pnet.Entry{{ID: "A", NetDev: "eth0"}, {ID: "A", IBDev: "card1", IBPort: 1}}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := adapter("card0", "eth1", "eth2")
			a.devs[0].Ports[1].PNETID = tt.hardware
			s := newSet(t, h, a, fakeOn(h))
			for _, e := range tt.entries {
				if err := s.cfg.PNETs.Add(e); err != nil {
					t.Fatal(err)
				}
			}
			check(t, s, "eth0", tt.want...)
		})
	}
}

// TestProviderFails: a provider that cannot list its devices leaves those of the
// others, and is asked again later.
func TestProviderFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := up("eth0", "eth1")
		a, b := adapter("card0", "eth0", "eth1"), fakeOn(h[:1])
		a.err = os.ErrPermission
		s := newSet(t, h, a, b)
		check(t, s, "eth0", "fake-eth0/1")
		if _, _, err := s.For(network.Route{NetDev: "eth1"}); !errors.Is(err, os.ErrPermission) || !errors.Is(err, ErrNoDevice) {
			t.Errorf("without a device: %v", err)
		}
		if rows, err := s.List(); len(rows) != 1 || err != nil {
			t.Errorf("listed: %+v, %v", rows, err)
		}
		a.mu.Lock()
		a.err = nil
		a.mu.Unlock()
		time.Sleep(listAge)
		check(t, s, "eth0", "card0/1")
		check(t, s, "eth1", "card0/2")
	})
}

// TestDeviceFails: a device that fails is reported as down and closed, and another one
// takes its place. When it is there again it is opened again, with other IDs.
func TestDeviceFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := up("eth0", "eth1")
		a, b := adapter("card0", "eth0", "eth1"), fakeOn(h)
		there := slices.Clone(a.devs)
		var mu sync.Mutex
		down := 0
		s := newSetWith(t, Config{Network: h, Providers: []rdmaverbs.Provider{a, b}, Changed: func(_ *Port, up bool) {
			mu.Lock()
			defer mu.Unlock()
			if !up {
				down++
			}
		}})
		old := check(t, s, "eth0", "card0/1")[0]
		a.remove()
		synctest.Wait()
		if down != 2 || !a.open[0].closed || s.Port(old.ID()) != nil {
			t.Errorf("%d ports down, device closed %v", down, a.open[0].closed)
		}
		check(t, s, "eth0", "fake-eth0/1") // though the last listing has card0
		time.Sleep(listAge)
		check(t, s, "eth1", "fake-eth1/1")
		a.mu.Lock()
		a.devs = there
		a.mu.Unlock()
		time.Sleep(listAge)
		if p := check(t, s, "eth0", "card0/1")[0]; p.ID() == old.ID() || p == old {
			t.Error("the new device has the port of the old one")
		}
	})
}

// TestWarnedForgotten: what was logged about netdevs is forgotten with them, as those of containers come and go, and not before.
func TestWarnedForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := up("eth0")
		a := adapter("card0", "eth0")
		s := newSetWith(t, Config{Network: h, Providers: []rdmaverbs.Provider{a}})
		for i := range 100 {
			s.warn("a test", "netdev", fmt.Sprint("veth", i), os.ErrPermission)
		}
		s.warn("a test", "netdev", "eth0", os.ErrPermission)
		s.warn("a test", "provider", a.Name(), os.ErrPermission)
		if _, err := s.List(); err != nil {
			t.Fatal(err)
		}
		if _, netdev := s.warned["eth0"]; !netdev || len(s.warned) != 2 {
			t.Errorf("remembered: %v", s.warned)
		}
	})
}

// TestChangesLogged: the log has a state of a port once, whatever the device tells.
func TestChangesLogged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := up("eth0")
		a := adapter("card0", "eth0")
		var out bytes.Buffer
		s := newSetWith(t, Config{Network: h, Providers: []rdmaverbs.Provider{a}, Log: slog.New(slog.NewTextHandler(&out, nil))})
		check(t, s, "eth0", "card0/1")
		for _, state := range []rdmaverbs.PortState{rdmaverbs.PortActive, rdmaverbs.PortDown, rdmaverbs.PortDown, rdmaverbs.PortActive} {
			a.open[0].setPort(1, state)
			synctest.Wait()
		}
		if got := strings.Count(out.String(), "msg=device"); got != 3 {
			t.Errorf("%d lines, want up, down, up:\n%s", got, &out)
		}
	})
}

// TestSetClosed: after Close nothing is opened.
func TestSetClosed(t *testing.T) {
	h := up("eth0")
	a := fakeOn(h)
	s := newSet(t, h, a)
	check(t, s, "eth0", "fake-eth0/1")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := s.For(network.Route{NetDev: "eth0"}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if len(a.open) != 1 || !a.open[0].closed || len(s.Open()) != 0 {
		t.Error("a device is open after Close")
	}
}
