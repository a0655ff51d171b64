// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// TestSilence: a listener on a silent address does not announce SMC, and both ends know it. Its
// mark stays.
func TestSilence(t *testing.T) {
	b := newBed(t)
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	type row struct {
		name   string
		c      conn
		silent bool
	}
	var rows []row
	for i, test := range []struct {
		name, listen string
		silence      netip.Addr
		silent       bool
	}{
		{"same address", b.B.Addr(), netip.MustParseAddr(b.B.Addr()), true},
		{"every address", "0.0.0.0", netip.IPv4Unspecified(), true},
		{"every address, IPv6", "0.0.0.0", netip.IPv6Unspecified(), true},
		{"one of every address", "0.0.0.0", netip.MustParseAddr(b.B.Addr()), true},
		{"every address of one", b.B.Addr(), netip.IPv4Unspecified(), true},
		{"another address", "0.0.0.0", netip.MustParseAddr("127.0.0.1"), false},
	} {
		l := b.bind(b.B, unix.AF_INET, test.listen, 4001+i)
		b.must(b.prog.GateListen(l, 0))
		b.must(unix.Listen(l, 8))
		netns, err := unix.GetsockoptUint64(l, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		b.must(err)
		a := Address{NetNS: netns, AddrPort: netip.AddrPortFrom(test.silence, uint16(4001+i))}
		dial := func(name string, silent bool) {
			c := b.dial(l, true)
			b.exchangeIf(c, silent)
			want := PeerSMC
			if silent {
				want = PeerNoSMC
			}
			b.wantPeer("client: "+name, c.client, want)
			b.wantPeer("server: "+name, c.server, want)
			rows = append(rows, row{name, c, silent})
		}
		dial(test.name+", before", false)
		b.must(b.prog.Silence(a))
		b.must(b.prog.Silence(a)) // no error
		if got, err := b.prog.Silent(); err != nil || len(got) != 1 || got[0].Port() != a.Port() {
			t.Errorf("%s: silent: %v, %v", test.name, got, err)
		}
		dial(test.name, test.silent)
		b.must(b.prog.Unsilence(a))
		b.must(b.prog.Unsilence(a)) // no error
		dial(test.name+", after", false)
	}
	segs := b.segments(capture)
	for _, r := range rows {
		wantAnnounced(t, segs, r.name, r.c, true, !r.silent)
	}
}

// exchangeIf exchanges data on a plain connection.
func (b *bed) exchangeIf(c conn, plain bool) {
	b.Helper()
	if plain {
		b.exchange(c)
	}
}

// TestAnnounced: the connections of gated listeners whose peers were told of SMC are listed
// until somebody takes them, also before they are accepted.
func TestAnnounced(t *testing.T) {
	b := newBed(t)
	l := b.bind(b.B, unix.AF_INET6, "::", 4001)
	b.must(b.prog.GateListen(l, 0))
	b.must(unix.Listen(l, 8))
	if is, err := b.prog.Listens(l); err != nil || !is {
		t.Errorf("listens: %v, %v", is, err)
	}
	own := b.listener(unix.AF_INET, "0.0.0.0", 4002, true) // of this process: nobody else has it
	plain := b.listener(unix.AF_INET, "0.0.0.0", 4003, false)
	if is, err := b.prog.Listens(plain); err != nil || is {
		t.Errorf("listens without a mark: %v, %v", is, err)
	}
	cookieOf := func(fd int) uint64 {
		c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
		b.must(err)
		return c
	}
	for _, test := range []struct {
		name   string
		l      int
		marked bool // the client
		want   bool
		family int
		dial   string
	}{
		{"IPv4", l, true, true, unix.AF_INET, b.B.Addr()},
		{"IPv6", l, true, true, unix.AF_INET6, b.B.Addr6()},
		{"client without SMC", l, false, false, unix.AF_INET, b.B.Addr()},
		{"listener of this process", own, true, false, unix.AF_INET, b.B.Addr()},
		{"listener without SMC", plain, true, false, unix.AF_INET, b.B.Addr()},
	} {
		fd := b.socket(b.A, test.family)
		if test.marked {
			b.must(b.prog.MarkConnect(fd))
		}
		c := b.connect(fd, test.l, test.family, test.dial)
		got, err := b.prog.Announced()
		if err != nil || (len(got) == 1) != test.want {
			t.Errorf("%s: %v, %v", test.name, got, err)
		}
		if len(got) == 0 {
			continue
		}
		a := got[0]
		addr := netip.MustParseAddr(test.dial)
		if a.Cookie != cookieOf(c.server) || a.Listener != cookieOf(test.l) || a.Local.AddrPort != netip.AddrPortFrom(addr, 4001) || int(a.Remote.Port()) != c.clientPort {
			t.Errorf("%s: %+v", test.name, a)
		}
		for i := range 2 {
			if was, err := b.prog.Taken(a.Cookie); err != nil || was != (i == 0) {
				t.Errorf("%s: taken %d: %v, %v", test.name, i, was, err)
			}
		}
	}
}
