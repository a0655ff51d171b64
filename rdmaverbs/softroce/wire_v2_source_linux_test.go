// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"net/netip"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// TestSourcePortsExclusive: no other socket of the host can have a source port of a
// device, whatever netdev and address it is bound to. A socket that could would be able
// to send packets in the name of the device, over each netdev.
func TestSourcePortsExclusive(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	l := pair.A.Links[0]
	ip(t, pair.A, "link", "set", "lo", "up")
	a := openQuiet(t, pair.A, l.Name)
	loopback := map[int]netip.Addr{udp4: netip.MustParseAddr("127.0.0.1"), udp6: netip.IPv6Loopback()}
	own := map[int]netip.Addr{udp4: l.IPv4, udp6: l.IPv6}
	set := func(name, value int) func(int) error {
		return func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, name, value) }
	}
	nothing := func(int) error { return nil }
	for family, sockets := range a.v2.tx.sock {
		for _, s := range sockets {
			for _, try := range []struct {
				name    string
				family  int
				addr    netip.Addr
				prepare func(fd int) error
			}{
				{"any address", family, netip.Addr{}, nothing},
				{"address of the netdev", family, own[family], nothing},
				{"loopback address", family, loopback[family], nothing},
				{"netdev lo", family, netip.Addr{}, func(fd int) error { return unix.BindToDevice(fd, "lo") }},
				{"same netdev", family, own[family], func(fd int) error { return unix.BindToDevice(fd, l.Name) }},
				{"SO_REUSEADDR", family, netip.Addr{}, set(unix.SO_REUSEADDR, 1)},
				{"SO_REUSEPORT", family, netip.Addr{}, set(unix.SO_REUSEPORT, 1)},
				{"IPv6 socket for both", udp6, netip.Addr{}, func(fd int) error {
					return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 0)
				}},
			} {
				var err error
				if derr := pair.A.Do(func() error {
					err = bindAs(try.family, try.addr, int(s.port), try.prepare)
					return nil
				}); derr != nil {
					t.Fatal(derr)
				}
				if !errors.Is(err, unix.EADDRINUSE) {
					t.Errorf("family %d, port %d, %s: %v", family, s.port, try.name, err)
				}
			}
		}
	}
}

// bindAs opens a UDP socket, prepares it, binds it, and closes it. No address means any.
func bindAs(family int, addr netip.Addr, port int, prepare func(fd int) error) error {
	af, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: port})
	if family == udp6 {
		af, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: port}
	}
	switch {
	case addr.Is4():
		sa = &unix.SockaddrInet4{Port: port, Addr: addr.As4()}
	case addr.Is6():
		sa = &unix.SockaddrInet6{Port: port, Addr: addr.As16()}
	}
	fd, err := unix.Socket(af, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := prepare(fd); err != nil {
		return err
	}
	return unix.Bind(fd, sa)
}

// TestSourcePortOfPath: all packets of a path have its source port, also those between
// link-local GIDs, which bypass the IP stack.
func TestSourcePortOfPath(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	la, lb := pair.A.Links[0], pair.B.Links[0]
	a, b := openQuiet(t, pair.A, la.Name), openEnd(t, pair.B, lb.Name)
	linkLocal := pathV2(a.linkLocal(t), b.linkLocal(t))
	linkLocal.dmac = b.info.HWAddr
	n := 0
	for _, p := range []*path{pathV2(la.IPv4, lb.IPv4), pathV2(la.IPv6, lb.IPv6), linkLocal} {
		for flow := range uint16(srcPorts) {
			p.flow = flow
			if err := a.send(p, []packet{testPacket(header.SendOnly, 0, 8)}); err != nil {
				t.Fatal(err)
			}
			n++
			got, want := b.wait(t, n)[n-1].srcPort, a.sources().port(p)
			if got != want || want != a.sources().of(p).port {
				t.Errorf("from %v, flow %d: source port %d, want %d", p.sgid.Addr(), flow, got, want)
			}
		}
	}
}
