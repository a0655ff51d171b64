// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace of the stack's own, in which the sockets are that it makes: inner
// and outer of each flow. A pair of devices is the only way to it. Nobody else has a socket there, and
// what comes by the device is for it, whatever the address.
type namespace struct {
	work chan func()
	gone chan struct{}
	names
	zone  int // index of the device there
	stock stock
}

// mtu of these devices: no packet of another device is larger.
const mtu = 65535

// localTable is the routing table of what comes by the device.
const localTable = 100

// newNamespace makes the namespace and the pair of devices, of which one is in the namespace of the calling
// thread: host is a handle for that. veth is its index.
func newNamespace(host *netlink.Handle) (n *namespace, veth int, err error) {
	n = &namespace{work: make(chan func()), gone: make(chan struct{}), stock: newStock()}
	made := make(chan error)
	go n.thread(made) // No guard: it calls functions of this package alone.
	if err := <-made; err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	var ns *os.File
	if err := n.do(func() (err error) { ns, err = os.Open("/proc/thread-self/ns/net"); return err }); err != nil {
		return nil, 0, err
	}
	defer ns.Close()
	if n.names, err = addPair(host, ns); err != nil {
		return nil, 0, err
	}
	if err = n.do(n.setUp); err == nil {
		veth, err = up(host, n.veth)
	}
	return n, veth, err
}

// thread stays in the namespace. The kernel ends the namespace after it and the last socket.
func (n *namespace) thread(made chan<- error) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// The first thread stands for the process: /proc/PID/ns/net is its namespace.
		locked := make(chan struct{})
		go func() { // No guard: see newNamespace.
			runtime.LockOSThread()
			close(locked)
			n.thread(made)
		}()
		<-locked
		runtime.UnlockOSThread()
		return
	}
	defer close(n.gone)
	err := os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET))
	made <- err
	if err != nil {
		return
	}
	defer n.stock.close()
	for {
		select {
		case f, ok := <-n.work:
			if !ok {
				return
			}
			f()
		case family := <-n.stock.wanted:
			n.stock.fill(family)
		}
	}
}

// do calls f on a thread in the namespace.
func (n *namespace) do(f func() error) error {
	done := make(chan error, 1)
	n.work <- func() { done <- f() }
	return <-done
}

// close ends the thread. Sockets stay.
func (n *namespace) close() {
	close(n.work)
	<-n.gone
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
	for _, name := range []string{
		// The addresses of both ends of a connection come and go by one device.
		"ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter", "ipv4/conf/" + n.inside + "/rp_filter",
		// A connection that is over leaves nothing: the program, or the peer, may use its ports again.
		"ipv4/tcp_max_tw_buckets",
		// The ports are those of others.
		"ipv4/ip_unprivileged_port_start",
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte("0"), 0); err != nil {
			return fmt.Errorf("divert: %w", err)
		}
	}
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
		if f.family == unix.AF_INET6 {
			if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
				continue
			}
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
