// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"smcr/internal/cmdutil"
	"smcr/internal/retry"
	"smcr/internal/run"
	"smcr/internal/sysfs"
	"smcr/nl"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// system is the host that the program runs on, in its network namespace.
type system struct{}

func (system) Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, err
}

func (system) Port(ctx context.Context, port string) (uint16, error) {
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err == nil && n == 0 {
		err = fmt.Errorf("port 0 is not a valid port")
	}
	return uint16(n), err
}

func (system) Route(remote netip.Addr) (route, error) {
	var r route
	opt := &netlink.RouteGetOptions{}
	if zone := remote.Zone(); zone != "" {
		opt.Oif = zone
		remote = remote.WithZone("")
	}
	routes, err := netlink.RouteGetWithOptions(net.IP(remote.AsSlice()), opt)
	if err != nil {
		return r, err
	}
	if len(routes) == 0 {
		return r, unix.ENETUNREACH
	}
	way := routes[0]
	r.IsLocal = way.Type == unix.RTN_LOCAL
	r.Gateway, _ = netip.AddrFromSlice(way.Gw)
	r.Gateway = r.Gateway.Unmap()
	if via, ok := way.Via.(*netlink.Via); ok {
		r.Gateway, _ = netip.AddrFromSlice(via.Addr)
	}
	link, err := netlink.LinkByIndex(way.LinkIndex)
	if err != nil {
		return r, err
	}
	r.NetDev = link.Attrs().Name
	addrs, err := retry.Whole(netlink.ErrDumpInterrupted, func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return r, err
	}
	for _, a := range addrs {
		if a.IPNet == nil || !a.IP.Equal(way.Src) {
			continue
		}
		ip, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		r.Local = netip.PrefixFrom(ip.Unmap(), ones)
	}
	// The limit is enough for stacked devices, and prevents an endless loop.
	for i := link.Attrs().ParentIndex; i > 0 && len(r.Lower) < 8; {
		below, err := netlink.LinkByIndex(i)
		if err != nil {
			break // in another network namespace
		}
		r.Lower = append(r.Lower, below.Attrs().Name)
		i = below.Attrs().ParentIndex
	}
	return r, nil
}

func (system) GIDTypes(ibdev string, port uint8) (types []string) {
	devices, err := sysfs.New(sysfs.DefaultRoot).Devices()
	if err != nil {
		return nil
	}
	for _, d := range devices {
		for _, p := range d.Ports {
			if d.Name != ibdev || p.Number != int(port) {
				continue
			}
			for _, g := range p.GIDs {
				types = append(types, g.Type)
			}
		}
	}
	return types
}

func (system) Start(ctx context.Context) (nl.Multi, error) {
	s, _, err := run.Stack(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return cmdutil.Dial(ctx, "user")
}

func (system) Probe(ctx context.Context, b nl.Backend, remote netip.AddrPort) (outcome, error) {
	switch b.Name {
	case "user":
		return probeWire(ctx, b.Control, remote)
	case "kernel":
		return probeKernel(ctx, b.Control, remote)
	}
	return outcome{}, nl.ErrNotSupported
}

// socket makes a stream socket for remote.
func socket(domain, protocol int) (int, error) {
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	return fd, nil
}

// localAddr returns the local address of a socket.
func localAddr(fd int) netip.AddrPort {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// sockaddr converts an address for connect(2).
func sockaddr(a netip.AddrPort) (unix.Sockaddr, error) {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}, nil
	}
	sa := &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	if zone := a.Addr().Zone(); zone != "" {
		dev, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, err
		}
		sa.ZoneId = uint32(dev.Index)
	}
	return sa, nil
}

// find returns the stack's row of a connection, or nil.
func find(ctx context.Context, ctl nl.Control, local, remote netip.AddrPort) *nl.Connection {
	conns, err := ctl.Connections(ctx)
	if err != nil {
		return nil
	}
	for i := range conns {
		if c := &conns[i]; cmdutil.Plain(c.Local) == cmdutil.Plain(local) && cmdutil.Plain(c.Remote) == cmdutil.Plain(remote) {
			return c
		}
	}
	return nil
}
