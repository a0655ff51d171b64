// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/quota"
)

// TestHold: for a time, a listener announces nothing to a neighbour, whatever its address, nor to strangers but for those that are known, nor to
// a network but for those. The connection is TCP for both ends, and those of others are as before.
func TestHold(t *testing.T) {
	testkind.System(t)
	const long = time.Hour
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		b := newBed(t)
		addr, from := b.B.Addr(), netip.MustParseAddr(b.A.Addr())
		if family == unix.AF_INET6 {
			addr, from = b.B.Links[0].IPv6.String(), b.A.Links[0].IPv6
		}
		l := b.listener(family, addr, 0, true)
		dial := func(what string, want State) {
			t.Helper()
			fd := b.socket(b.A, family)
			b.must(b.prog.MarkConnect(fd))
			c := b.connect(fd, l, family, addr)
			b.wantPeer(what+": client", c.client, want)
			b.wantPeer(what+": server", c.server, want)
			b.exchange(c)
		}
		hold := func(o quota.Origin, d time.Duration, known ...netip.Addr) {
			t.Helper()
			b.must(b.prog.Hold(o, d, known))
		}
		// free ends all times.
		free := func() {
			t.Helper()
			for k := range b.prog.held.until {
				b.prog.held.until[k] = 1
				b.must(b.prog.objs.held.Put(k, uint64(1)))
			}
		}
		dial("before", PeerSMC)
		mac := [6]byte(b.A.Links[0].MAC)
		hold(quota.OriginOfNeighbour([6]byte{2, 2, 2, 2, 2, 2}), long)
		hold(quota.OriginOfNetwork(netip.MustParseAddr("198.51.100.1")), long)
		hold(quota.OriginOfNetwork(netip.MustParseAddr("2001:db8:1::1")), long)
		dial("others", PeerSMC)
		hold(quota.OriginOfNeighbour(mac), long)
		dial("the neighbour", PeerNoSMC)
		hold(quota.OriginOfNeighbour(mac), 1) // shorter
		dial("the neighbour, still", PeerNoSMC)
		hold(quota.Origin{}, long, from)
		dial("the neighbour, which is known", PeerNoSMC)
		free()
		dial("after its time", PeerSMC)
		hold(quota.Origin{}, long)
		dial("a stranger", PeerNoSMC)
		hold(quota.Origin{}, long, from)
		dial("one that is known", PeerSMC)
		free()
		hold(quota.OriginOfNetwork(from), long)
		dial("of the network", PeerNoSMC)
		hold(quota.Origin{}, 1, from)
		hold(quota.OriginOfNetwork(from), 2*long, from)
		dial("of the network, known", PeerSMC)
		free()
		if family == unix.AF_INET6 { // as a host behind a router
			hold(quota.Origin{}, long, quota.Host(from))
			dial("of a subnet that is known", PeerSMC)
			free()
		}
		hold(quota.Origin{}, 1)
		if n := len(b.prog.held.until); n != 1 {
			t.Errorf("%d entries are kept, want the last one", n)
		}
		var keys int
		for i := b.prog.objs.held.Iterate(); i.Next(new(heldKey), new(uint64)); {
			keys++
		}
		if keys != 1 {
			t.Errorf("%d entries are in the map, want 1", keys)
		}
		b.must(b.prog.Close())
		if err := b.prog.Hold(quota.Origin{}, long, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// TestHoldDualStack: a host with IPv4 at a listener of IPv6 is the one with that address.
func TestHoldDualStack(t *testing.T) {
	testkind.System(t)
	b := newBed(t)
	l := b.listener(unix.AF_INET6, "::", 0, true)
	from := netip.MustParseAddr(b.A.Addr())
	b.must(b.prog.Hold(quota.OriginOfNetwork(from), time.Hour, nil))
	c := b.dial(l, true)
	b.wantPeer("client", c.client, PeerNoSMC)
	b.wantPeer("server", c.server, PeerNoSMC)
	b.must(b.prog.Hold(quota.Origin{}, time.Hour, []netip.Addr{from}))
	c = b.dial(l, true)
	b.wantPeer("known client", c.client, PeerSMC)
	b.wantPeer("known server", c.server, PeerSMC)
}
