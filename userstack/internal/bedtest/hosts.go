// SPDX-License-Identifier: Apache-2.0

package bedtest

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"smcr/userstack/network"
	"smcr/userstack/simfabric"
)

// Network makes a simulated host the network of a stack.
type Network struct{ Host *simfabric.Host }

var _ network.Network = Network{}

// Route implements network.Network.
func (n Network) Route(local, remote netip.Addr) (network.Route, error) {
	rt, err := n.Host.Route(local, remote)
	if err != nil {
		return network.Route{}, fmt.Errorf("%w: %w", network.ErrNotOnLink, err)
	}
	return network.Route(rt), nil
}

// Secured implements network.Network: there is no IPsec.
func (Network) Secured(_, _ netip.AddrPort) (bool, error) { return false, nil }

// NetDevs implements network.Network.
func (n Network) NetDevs() (out []network.NetDev, err error) {
	for _, d := range n.Host.NetDevs() {
		out = append(out, network.NetDev(d))
	}
	return out, nil
}

// Addr returns the address of netdev number dev, from 0, of a host, whose number is from
// 1 on.
func Addr(host, dev int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(dev), byte(host)}) }

// Prefix returns Addr with the length of the prefix. All netdevs share one subnet, like
// the netdevs of RoCE devices on one LAN.
func Prefix(host, dev int) netip.Prefix { return netip.PrefixFrom(Addr(host, dev), 16) }

// NetDevs returns n netdevs for a host: eth0, eth1 and so on.
func NetDevs(host, n int) (out []simfabric.NetDev) {
	for i := range n {
		out = append(out, simfabric.NetDev{Name: fmt.Sprintf("eth%d", i), Addrs: []netip.Prefix{Prefix(host, i)}})
	}
	return out
}

// Hosts makes a world with the hosts "client" (number 1) and "server" (number 2), which
// have that many netdevs: 0 means one, or for the server as many as the client has.
// Without a delay in the configuration, a packet takes 10 to 20 µs. When the test ends,
// Hosts checks that nothing is left on the devices, and closes the world.
func Hosts(t testing.TB, c simfabric.Config, clientDevs, serverDevs int) (w *simfabric.World, client, server *simfabric.Host) {
	t.Helper()
	clientDevs = max(clientDevs, 1)
	if serverDevs == 0 {
		serverDevs = clientDevs
	}
	if c.Delay == 0 {
		c.Delay, c.Jitter = 10*time.Microsecond, 10*time.Microsecond
	}
	w = simfabric.New(c)
	t.Cleanup(w.Close)
	t.Cleanup(func() { NoObjects(t, w) }) // after the stacks are closed
	return w, w.Host("client", NetDevs(1, clientDevs)...), w.Host("server", NetDevs(2, serverDevs)...)
}

// Connect makes a TCP connection from the first address of host 1 to that of host 2.
func Connect(t testing.TB, w *simfabric.World) (client, server *simfabric.TCPConn) {
	t.Helper()
	client, server, err := w.Connect(netip.AddrPortFrom(Addr(1, 0), 0), netip.AddrPortFrom(Addr(2, 0), 80))
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

// NoObjects checks that nothing is left on the devices of a world.
func NoObjects(t testing.TB, w *simfabric.World) {
	t.Helper()
	if got := w.Objects(); got != (simfabric.Objects{}) {
		t.Errorf("verbs objects left: %+v", got)
	}
}
