// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// ErrNoRoute means that an address is not on a network of the host.
var ErrNoRoute = errors.New("simfabric: no route")

// NetDev is the configuration of a netdev.
type NetDev struct {
	Name string
	// LAN is the name of its switch: netdevs on one LAN can reach each other. Empty means
	// "lan".
	LAN string
	// Addrs are its addresses with their prefix lengths, unique in the world.
	Addrs []netip.Prefix
	// VLAN is its VLAN ID, 0 for none.
	VLAN uint16
	// Lower has the names of the netdevs below a VLAN. As with Linux, the VLAN has the MAC
	// address of the first of these that is before it in the list, and so the same
	// link-local GID. They have nothing else in common.
	Lower []string
	// NoRDMA means that the netdev has no RDMA device.
	NoRDMA bool
	// MTU is the path MTU. Zero means 1024 bytes.
	MTU smc.MTU
}

// A NetDevState is the present state of a netdev.
type NetDevState struct {
	Name  string
	Index int
	Up    bool
	VLAN  uint16
	Lower []string
	Addrs []netip.Prefix
}

// A Route is the route from a host to a neighbour.
type Route struct {
	NetDev  string
	IfIndex int
	VLAN    uint16
	Source  netip.Addr     // the address of the netdev in the subnet of the remote address
	Gateway netip.Addr     // always zero: there are no routers
	Local   []netip.Prefix // addresses of the netdev
	Peers   []string       // other netdevs in the same subnet
}

// A Host has netdevs, the RDMA devices on them, and TCP.
type Host struct {
	w        *World
	name     string
	devs     []*netdev
	vanished bool // see SetVanished
	cut      time.Time
}

// netdev is a netdev and what is on it.
type netdev struct {
	NetDev
	host   *Host
	index  int
	mac    net.HardwareAddr
	gids   []rdmaverbs.GIDEntry
	noGIDs bool // the GID table is empty
	lan    *lan
	rng    *rand.Rand
	up     bool
	gone   bool
	cut    time.Time // when it last went down or was removed
	opened []*Device // in the order in which they were opened
}

// Host adds a host to the world. It panics if one of the addresses exists already.
func (w *World) Host(name string, devs ...NetDev) *Host {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &Host{w: w, name: name}
	for _, d := range devs {
		w.lastID++
		if d.LAN == "" {
			d.LAN = "lan"
		}
		if d.MTU == 0 {
			d.MTU = smc.MTU1024
		}
		n := &netdev{
			NetDev: d, host: h, index: len(h.devs) + 2, lan: w.lan(d.LAN), up: true, rng: w.random(atNetDev, uint32(w.lastID)),
			mac: net.HardwareAddr{2, 0, 0, 0, byte(w.lastID >> 8), byte(w.lastID)},
		}
		for _, name := range d.Lower {
			if lower := h.find(name); lower != nil {
				n.mac = lower.mac
				break
			}
		}
		n.gids = []rdmaverbs.GIDEntry{{GID: linkLocal(n.mac), Type: rdmaverbs.RoCEv1, NetDev: d.Name}}
		for _, p := range d.Addrs {
			if w.addrs[p.Addr()] != nil {
				panic(fmt.Sprintf("simfabric: address %s exists", p.Addr()))
			}
			w.addrs[p.Addr()] = n
			if p.Addr().Is4() {
				n.gids = append(n.gids, rdmaverbs.GIDEntry{GID: p.Addr().As16(), Type: rdmaverbs.RoCEv2, NetDev: d.Name})
			}
		}
		h.devs = append(h.devs, n)
	}
	w.hosts = append(w.hosts, h)
	return h
}

// linkLocal returns the link-local address of an EUI-48 (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) (g smc.GID) {
	g[0], g[1] = 0xfe, 0x80
	copy(g[8:11], mac[:3])
	g[8] ^= 2
	g[11], g[12] = 0xff, 0xfe
	copy(g[13:], mac[3:])
	return g
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// SetVanished(true) makes the host neither send nor receive, as if its power had failed.
// SetVanished(false) ends this state. No other host gets a message about it.
func (h *Host) SetVanished(vanished bool) {
	h.w.mu.Lock()
	defer h.w.unlock()
	h.vanished = vanished
	if vanished {
		h.cut = time.Now()
	}
	h.w.changed(h.name, "", "host "+map[bool]string{true: "vanishes", false: "is back"}[vanished])
}

// Route returns the route to a neighbour. The error matches [ErrNoRoute] if there is
// none.
func (h *Host) Route(_, remote netip.Addr) (Route, error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	remote = remote.Unmap().WithZone("")
	for _, n := range h.devs {
		if n.gone {
			continue
		}
		for _, p := range n.Addrs {
			if p.Contains(remote) {
				return h.route(n, p), nil
			}
		}
	}
	return Route{}, fmt.Errorf("%w from %s to %s", ErrNoRoute, h.name, remote)
}

func (h *Host) route(n *netdev, via netip.Prefix) Route {
	rt := Route{NetDev: n.Name, IfIndex: n.index, VLAN: n.VLAN, Source: via.Addr(), Local: n.Addrs}
	for _, o := range h.devs {
		if o == n || o.gone || o.VLAN != n.VLAN {
			continue
		}
		for _, p := range o.Addrs {
			if p.Bits() == via.Bits() && p.Masked() == via.Masked() {
				rt.Peers = append(rt.Peers, o.Name)
				break
			}
		}
	}
	return rt
}

// NetDevs lists the netdevs that exist.
func (h *Host) NetDevs() []NetDevState {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	var out []NetDevState
	for _, n := range h.devs {
		if !n.gone {
			out = append(out, NetDevState{n.Name, n.index, n.up, n.VLAN, n.Lower, n.Addrs})
		}
	}
	return out
}

// SetPort sets a netdev, and the RDMA port on it, up or down.
func (h *Host) SetPort(name string, up bool) {
	h.w.mu.Lock()
	defer h.w.unlock()
	n := h.find(name)
	if n == nil || n.up == up {
		return
	}
	n.up = up
	if !up {
		n.cut = time.Now()
	}
	h.w.changed(h.name, name, "port "+upDown(up))
	t := rdmaverbs.EventPortErr
	if up {
		t = rdmaverbs.EventPortActive
	}
	for _, d := range n.opened {
		d.portEvent(t, n)
	}
}

// SetGIDs empties the GID table of a netdev, or fills it again. On a real netdev that
// comes up, the table is empty until the addresses are checked for duplicates.
func (h *Host) SetGIDs(name string, there bool) {
	h.w.mu.Lock()
	defer h.w.unlock()
	n := h.find(name)
	if n == nil || n.noGIDs != there {
		return
	}
	n.noGIDs = !there
	h.w.changed(h.name, name, "GIDs changed")
	for _, d := range n.opened {
		d.portEvent(rdmaverbs.EventGIDChange, n)
	}
}

// Remove removes a netdev: its RDMA device fails for good, with all queue pairs. Restore
// adds the netdev again.
func (h *Host) Remove(name string) {
	h.w.mu.Lock()
	defer h.w.unlock()
	n := h.find(name)
	if n == nil || n.gone {
		return
	}
	n.gone, n.cut = true, time.Now()
	h.w.changed(h.name, name, "removed")
	for _, d := range slices.Clone(n.opened) {
		d.removed(n)
	}
}

// Restore undoes Remove. Devices that were opened before stay failed.
func (h *Host) Restore(name string) {
	h.w.mu.Lock()
	defer h.w.unlock()
	if n := h.find(name); n != nil {
		n.gone, n.up = false, true
		n.opened = nil
		h.w.changed(h.name, name, "restored")
	}
}

func (h *Host) find(name string) *netdev {
	for _, n := range h.devs {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// reaches reports whether messages from n can arrive at o now.
func (n *netdev) reaches(o *netdev) bool {
	return n.up && o.up && !n.gone && !o.gone && !n.host.vanished && !o.host.vanished &&
		n.lan == o.lan && !n.lan.down && n.VLAN == o.VLAN
}

// hasRDMA reports whether an RDMA device can be opened on n.
func (n *netdev) hasRDMA() bool { return !n.gone && !n.NoRDMA }

// byGID returns the netdev with a GID on the LAN and VLAN of n, or nil.
func (w *World) byGID(n *netdev, g smc.GID) *netdev {
	for _, h := range w.hosts {
		for _, o := range h.devs {
			if o.lan == n.lan && o.VLAN == n.VLAN && slices.ContainsFunc(o.gids, func(e rdmaverbs.GIDEntry) bool { return e.GID == g }) {
				return o
			}
		}
	}
	return nil
}

// ackTimeout returns the time of a local ACK timeout code (InfiniBand specification,
// 9.7.6.1.3).
func ackTimeout(code uint8) time.Duration { return 4096 * time.Nanosecond << (code & 31) }

// rnrDelay returns the time of an RNR NAK timer code, 0 to 31 (InfiniBand specification,
// table 45).
func rnrDelay(code uint8) time.Duration {
	units := [32]uint16{
		0: 65535, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 12, 8: 16, 9: 24, 10: 32, 11: 48, 12: 64, 13: 96, 14: 128, 15: 192,
		16: 256, 17: 384, 18: 512, 19: 768, 20: 1024, 21: 1536, 22: 2048, 23: 3072, 24: 4096, 25: 6144, 26: 8192, 27: 12288,
		28: 16384, 29: 24576, 30: 32768, 31: 49152,
	}
	return time.Duration(units[code&31]) * 10 * time.Microsecond
}

// guid returns the EUI-64 of a MAC address.
func guid(mac net.HardwareAddr) (id [8]byte) {
	g := linkLocal(mac)
	binary.BigEndian.PutUint64(id[:], binary.BigEndian.Uint64(g[8:]))
	return id
}
