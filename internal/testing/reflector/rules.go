// SPDX-License-Identifier: Apache-2.0

package reflector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// The blocks of addresses: those of host A for its programs, and those of host B. Number N is the Nth
// address of a block.
var (
	blockA4, blockB4 = netip.MustParsePrefix("10.77.0.64/26"), netip.MustParsePrefix("10.77.0.128/26")
	blockA6, blockB6 = netip.MustParsePrefix("fd77::a:0/112"), netip.MustParsePrefix("fd77::b:0/112")
)

// tapName is the device of SYNs that wait, on host B.
const tapName = "reflect0"

// Marks of what the reflector lets go, as the hardware address of its sender.
var (
	toReflector = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	toNobody    = net.HardwareAddr{2, 0, 0, 0, 0, 2} // the kernel refuses it
)

// Port is where the reflector listens. Programs of host A do not use it.
const Port = 1

// rulesA has the four parts of a connection's way: from the client, to the device, from the device,
// to the server. The kernel does the opposite for the answers.
const rulesA = `
table inet reflector {
	chain output { type nat hook output priority -100;
		meta l4proto tcp ip daddr 127.0.0.0/26 dnat ip prefix to ip daddr map { 127.0.0.0/26 : $B4 }
		meta l4proto tcp ip daddr $OWN4 dnat ip to $B4N0
		meta l4proto tcp ip6 daddr ::1 dnat ip6 to $B6N1
		meta l4proto tcp ip6 daddr $OWN6 dnat ip6 to $B6N0
	}
	chain postrouting { type nat hook postrouting priority 100;
		meta l4proto tcp ip daddr $B4 ip saddr 127.0.0.0/26 snat ip prefix to ip saddr map { 127.0.0.0/26 : $A4 }
		meta l4proto tcp ip daddr $B4 ip saddr $OWN4 snat ip to $A4N0
		meta l4proto tcp ip6 daddr $B6 ip6 saddr ::1 snat ip6 to $A6N1
		meta l4proto tcp ip6 daddr $B6 ip6 saddr $OWN6 snat ip6 to $A6N0
	}
	chain prerouting { type nat hook prerouting priority -100;
		iifname "$DEV" meta l4proto tcp ip daddr $A4N0 dnat ip to $OWN4
		iifname "$DEV" meta l4proto tcp ip daddr $A4 dnat ip prefix to ip daddr map { $A4 : 127.0.0.0/26 }
		iifname "$DEV" meta l4proto tcp ip6 daddr $A6N0 dnat ip6 to $OWN6
		iifname "$DEV" meta l4proto tcp ip6 daddr $A6N1 dnat ip6 to ::1
	}
	chain input { type nat hook input priority 100;
		iifname "$DEV" meta l4proto tcp ip saddr $B4N0 snat ip to $OWN4
		iifname "$DEV" meta l4proto tcp ip saddr $B4 snat ip prefix to ip saddr map { $B4 : 127.0.0.0/26 }
		iifname "$DEV" meta l4proto tcp ip6 saddr $B6N0 snat ip6 to $OWN6
		iifname "$DEV" meta l4proto tcp ip6 saddr $B6N1 snat ip6 to ::1
	}
	# The program names the segment size of the loopback device, which no host would name at another one.
	chain segments { type filter hook postrouting priority 0;
		oifname "$DEV" tcp flags syn tcp option maxseg size set rt mtu
	}
}
`

// rulesB has SYNs wait, and those that go on come to the reflector, whatever the port. What it does
// not want comes to a port at which nobody listens.
const rulesB = `
table netdev reflector {
	chain ingress { type filter hook ingress device "$DEV" priority 0;
		ip daddr $B4 tcp flags & (fin | syn | rst | ack) == syn fwd to "$TAP"
		ip6 daddr $B6 tcp flags & (fin | syn | rst | ack) == syn fwd to "$TAP"
	}
}
table inet reflector {
	chain prerouting { type filter hook prerouting priority -150;
		iifname "$TAP" ether saddr $MARK meta nfproto ipv4 meta l4proto tcp tproxy ip to :$PORT accept
		iifname "$TAP" ether saddr $MARK meta nfproto ipv6 meta l4proto tcp tproxy ip6 to :$PORT accept
	}
}
`

// Prepare has the TCP connections of the first host with itself go by the first link to the second
// host. Run must run there. It needs nft(8).
func Prepare(ctx context.Context, p *netnstest.Pair) error {
	a, b := p.A.Links[0], p.B.Links[0]
	nth := func(block netip.Prefix, n int) string {
		addr := block.Addr()
		for range n {
			addr = addr.Next()
		}
		return addr.String()
	}
	rules := strings.NewReplacer(
		"$A4N0", nth(blockA4, 0), "$B4N0", nth(blockB4, 0), "$A6N0", nth(blockA6, 0), "$B6N0", nth(blockB6, 0),
		"$A6N1", nth(blockA6, 1), "$B6N1", nth(blockB6, 1),
		"$A4", blockA4.String(), "$B4", blockB4.String(), "$A6", blockA6.String(), "$B6", blockB6.String(),
		"$OWN4", a.IPv4.String(), "$OWN6", a.IPv6.String(), "$DEV", a.Name, "$TAP", tapName, "$MARK", toReflector.String(), "$PORT", fmt.Sprint(Port),
	)
	for _, step := range []struct {
		h     *netnstest.Host
		do    func() error
		rules string
	}{
		{p.A, func() error { return prepareA(a, b) }, rulesA},
		{p.B, func() error { return prepareB(b, a) }, rulesB},
	} {
		if err := step.h.Do(step.do); err != nil {
			return fmt.Errorf("reflector: %s: %w", step.h.Name, err)
		}
		nft := step.h.Command(ctx, "nft", "-f", "-")
		nft.Stdin = strings.NewReader(rules.Replace(step.rules))
		if out, err := nft.CombinedOutput(); err != nil {
			return fmt.Errorf("reflector: nft in %s: %w\n%s", step.h.Name, err, out)
		}
	}
	return nil
}

// prepareA makes the routes of the host with the programs.
func prepareA(own, peer netnstest.Link) error {
	// There are no NAT rules yet, so conntrack begins with the first connection.
	if err := set(map[string]string{"ipv4/conf/all/route_localnet": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/" + own.Name + "/rp_filter": "0"}); err != nil {
		return err
	}
	// IPv6 has no route_localnet. What comes by a device reaches ::1 if a route at that device says so.
	dev, err := netlink.LinkByName(own.Name)
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: prefix(netip.PrefixFrom(netip.IPv6Loopback(), 128)), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}); err != nil {
		return fmt.Errorf("route to ::1: %w", err)
	}
	return block(dev, blockA4, blockA6, peer, blockB4, blockB6)
}

// prepareB makes the routes and the device of the reflector.
func prepareB(own, peer netnstest.Link) error {
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: tapName}, Mode: unix.IFF_TAP, Flags: unix.IFF_NO_PI, Queues: 1}
	if err := netlink.LinkAdd(tap); err != nil {
		return fmt.Errorf("make device %s: %w", tapName, err)
	}
	var errs []error
	for _, fd := range tap.Fds {
		errs = append(errs, fd.Close())
	}
	if err := errors.Join(append(errs, netlink.LinkSetUp(tap))...); err != nil {
		return err
	}
	// Where the reflector closes first, the same ports are free at once.
	if err := set(map[string]string{
		"ipv4/tcp_max_tw_buckets": "0", "ipv4/ip_unprivileged_port_start": "0", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/" + tapName + "/rp_filter": "0",
	}); err != nil {
		return err
	}
	dev, err := netlink.LinkByName(own.Name)
	if err != nil {
		return err
	}
	return block(dev, blockB4, blockB6, peer, blockA4, blockA6)
}

// block makes the blocks of a host local, and those of the peer neighbours: nobody would answer for
// those of IPv6.
func block(dev netlink.Link, own4, own6 netip.Prefix, peer netnstest.Link, peer4, peer6 netip.Prefix) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, own := range []netip.Prefix{own4, own6} {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: prefix(own), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}); err != nil {
			return fmt.Errorf("route to %s: %w", own, err)
		}
	}
	for addr, n := peer6.Addr(), 0; n < 2; addr, n = addr.Next(), n+1 {
		if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: dev.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: peer.MAC, State: netlink.NUD_PERMANENT, Family: unix.AF_INET6}); err != nil {
			return fmt.Errorf("neighbour %s: %w", addr, err)
		}
	}
	return nil
}

func prefix(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// set writes values below /proc/sys/net, of the namespace of the calling thread.
func set(values map[string]string) error {
	for name, value := range values {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// other returns the address of the same number in the block of the other host, or false.
func other(a netip.Addr) (netip.Addr, bool) {
	for _, blocks := range [][2]netip.Prefix{{blockA4, blockB4}, {blockB4, blockA4}, {blockA6, blockB6}, {blockB6, blockA6}} {
		if blocks[0].Contains(a) {
			own, from, to := a.AsSlice(), blocks[0].Addr().AsSlice(), blocks[1].Addr().AsSlice()
			for i := range own {
				own[i] ^= from[i] ^ to[i]
			}
			return netip.AddrFromSlice(own)
		}
	}
	return netip.Addr{}, false
}
