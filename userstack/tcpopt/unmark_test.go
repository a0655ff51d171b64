// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUnmarkConnect: after a connection that was not made, the socket connects like any
// other. A mark that stays would announce SMC-R on the next connection, and its gate would
// keep all data back.
func TestUnmarkConnect(t *testing.T) {
	b := newBed(t)
	for _, tt := range []struct {
		name string
		mark func(fd int) error
	}{
		{"not marked", func(int) error { return nil }},
		{"marked", b.prog.MarkConnect},
		{"gated", b.prog.GateConnect},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := b.withT(t)
			to := sockaddr(unix.AF_INET, netip.AddrPortFrom(b.B.Links[0].IPv4, 4001))
			for _, attempt := range []bool{false, true} {
				fd := b.socket(b.A, unix.AF_INET)
				b.must(tt.mark(fd))
				if attempt { // sends a SYN with the option
					if err := connectTo(fd, to); !errors.Is(err, unix.ECONNREFUSED) {
						t.Fatal(err)
					}
				}
				b.must(b.prog.UnmarkConnect(fd))
				l := b.bind(b.B, unix.AF_INET, "0.0.0.0", 4001)
				b.must(b.prog.GateListen(l, 0))
				b.must(unix.Listen(l, 8))
				c := b.connect(fd, l, unix.AF_INET, b.B.Addr())
				b.exchange(c)
				b.wantPeer("server", c.server, PeerNoSMC)
				if g, err := b.prog.Gate(c.client); g != nil || err != nil {
					t.Errorf("gate: %v, %v", g, err)
				}
				b.must(b.prog.UnmarkConnect(fd)) // does nothing now
				b.exchange(c)
				b.close(l)
			}
		})
	}
	t.Run("established", func(t *testing.T) {
		g := b.withT(t).gatedClient(unix.AF_INET)
		b.must(b.prog.UnmarkConnect(g.end))
		g.write(foreign)
		g.expectNothing("the gate of a connection that was made")
	})
}
