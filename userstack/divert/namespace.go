// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace of the stack's own, in which the sockets are that it makes: inner
// and outer of each flow. A pair of devices is the only way to it. Nobody else has a socket there, and
// what comes by the device is for it, whatever the address.
type namespace struct {
	*thread
	names
	zone int // index of the device there
}

// mtu of these devices: no packet of another device is larger.
const mtu = 65535

// localTable is the routing table of what comes by the device.
const localTable = 100

// newNamespace makes the namespace, the pair of devices, of which one is in the namespace of the calling thread, and the device
// of held packets: host is a handle for that namespace. veth is the index of the first one.
func newNamespace(host *netlink.Handle, held *heldEnd) (n *namespace, veth int, err error) {
	n = &namespace{}
	if n.thread, err = newThread(); err != nil {
		return nil, 0, err
	}
	t := n.thread
	defer func() {
		if err != nil {
			t.close()
			n = nil
		}
	}()
	ns, err := n.namespace()
	if err != nil {
		return nil, 0, err
	}
	defer ns.Close()
	if err = n.do(setUpNamespace); err != nil {
		return nil, 0, err
	}
	if n.names, err = addDevices(host, ns, held); err != nil {
		return nil, 0, err
	}
	if err = n.do(n.setUp); err == nil {
		veth, err = up(host, n.veth)
	}
	return n, veth, err
}

// up switches a device on that has no addresses of its own, and returns its index.
func up(h *netlink.Handle, name string) (int, error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("divert: device %s: %w", name, err)
	}
	const none = 1 // IN6_ADDR_GEN_MODE_NONE
	if err := errors.Join(ignored(h.LinkSetIP6AddrGenMode(link, none), unix.EOPNOTSUPP, unix.EAFNOSUPPORT), h.LinkSetUp(link)); err != nil {
		return 0, fmt.Errorf("divert: switch device %s on: %w", name, err)
	}
	return link.Attrs().Index, nil
}

// ignored returns err unless it is one of the others.
func ignored(err error, others ...error) error {
	for _, o := range others {
		if errors.Is(err, o) {
			return nil
		}
	}
	return err
}

// setUp makes the routes of the namespace, in which it runs: all that comes by the device is local,
// and all that is sent leaves by it, to the one neighbour that there is.
func (n *namespace) setUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	defer h.Close()
	lo, err := up(h, "lo")
	if err != nil {
		return err
	}
	if n.zone, err = up(h, n.inside); err != nil {
		return err
	}
	for _, f := range []struct {
		family int
		to     net.IPNet
		by     net.IP // any address: the device has no neighbours
	}{
		{unix.AF_INET, net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, net.IPv4(169, 254, 0, 1)},
		{unix.AF_INET6, net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, net.ParseIP("fe80::1")},
	} {
		if _, err := os.Stat("/proc/sys/net/ipv6"); f.family == unix.AF_INET6 && err != nil {
			continue
		}
		if err := n.route(h, lo, f.family, f.to, f.by); err != nil {
			return fmt.Errorf("divert: routes of the stack's namespace: %w", err)
		}
	}
	return nil
}

func (n *namespace) route(h *netlink.Handle, lo, family int, to net.IPNet, by net.IP) error {
	link, err := h.LinkByIndex(n.zone)
	if err != nil {
		return err
	}
	if err := h.LinkSetARPOff(link); err != nil {
		return err
	}
	rule := netlink.NewRule()
	rule.Family, rule.IifName, rule.Table, rule.Priority = family, n.inside, localTable, 100
	return errors.Join(
		h.RuleAdd(rule),
		h.RouteAdd(&netlink.Route{LinkIndex: lo, Dst: &to, Table: localTable, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Family: family}),
		h.RouteAdd(&netlink.Route{LinkIndex: n.zone, Dst: &to, Gw: by, Flags: int(netlink.FLAG_ONLINK), Family: family}),
	)
}
