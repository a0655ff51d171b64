// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// TestWayChanges: a version 2 queue pair behind a gateway keeps working while
// the route to its peer changes: another gateway, no gateway for a moment, a
// neighbour that does not answer or has another MAC address, an MTU that is too
// small, a source address that is removed and added again. Packets that the IP
// stack does not accept are sent again later.
func TestWayChanges(t *testing.T) {
	netnstest.Require(t, "sysctl")
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	const far = "10.88.0.2"
	if out, err := p.B.Command(t.Context(), "sysctl", "-qw", "net.ipv4.conf.eth0.arp_notify=1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ip(t, p.B, "addr", "add", far+"/32", "dev", "eth0")
	ip(t, p.B, "addr", "add", "10.77.0.3/24", "dev", "eth0")
	ip(t, p.A, "route", "add", far, "via", p.B.Addr())
	a, b := openIn(t, p.A, "eth0"), openIn(t, p.B, "eth0")
	pair := verbstest.Pair{A: v2End(t, a), B: v2End(t, b)}
	gids, err := b.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	entry := rdmaverbs.GIDEntry{GID: gidOf(netip.MustParseAddr(far)), Type: rdmaverbs.RoCEv2, NetDev: "eth0"}
	if pair.B.SGIDIndex = slices.Index(gids, entry); pair.B.SGIDIndex < 0 {
		t.Fatalf("%v is not in %v", entry, gids)
	}
	x, y := verbstest.Connect(t, pair, verbstest.Config{MTU: smc.MTU2048, Timeout: 15, RetryCnt: 7})

	const size = 60000
	src, from := x.MR(size, 0)
	dst, to := y.MR(size, verbstest.All)
	id := uint64(0)
	// write makes x write its whole buffer into that of y.
	write := func(t *testing.T) {
		t.Helper()
		id++
		for i := range from {
			from[i] = byte(uint64(i) * id)
		}
		x.T = t
		x.Send(rdmaverbs.SendWR{
			ID: id, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Len: size}},
			RemoteAddr: dst.Addr(), RKey: dst.RKey(),
		})
		x.OK(id, 1)
		if !bytes.Equal(from, to) {
			t.Fatalf("write %d came with other bytes", id)
		}
	}
	via := func(how ...string) []string { return append([]string{"route", "replace"}, how...) }
	own := p.A.Addr() + "/24"
	for _, step := range []struct {
		name string
		at   *netnstest.Host
		lost bool        // nothing gets through after the first command
		ip   [2][]string // commands; 300 ms between them, or until something was lost
	}{
		{"OtherGateway", p.A, false, [2][]string{via(far, "via", "10.77.0.3"), nil}},
		{"NobodyIsGateway", p.A, true, [2][]string{via(far, "via", "10.77.0.99"), via(far, "via", "10.77.0.3")}},
		// Without a route, Linux treats the destination of a socket that is
		// bound to a netdev as a neighbour on this netdev.
		{"NoRoute", p.A, false, [2][]string{via("unreachable", far), via("unicast", far, "via", p.B.Addr())}},
		{"SmallerMTU", p.A, true, [2][]string{{"link", "set", "eth0", "mtu", "1500"}, {"link", "set", "eth0", "mtu", "9000"}}},
		{"WrongNeighbour", p.A, true, [2][]string{
			{"neigh", "replace", p.B.Addr(), "lladdr", "02:00:00:00:99:99", "dev", "eth0"}, {"neigh", "del", p.B.Addr(), "dev", "eth0"},
		}},
		{"OtherMAC", p.B, false, [2][]string{{"link", "set", "eth0", "address", "02:00:00:00:77:77"}, nil}},
		{"SourceAddress", p.A, true, [2][]string{{"addr", "del", own, "dev", "eth0"}, {"addr", "add", own, "dev", "eth0"}}},
		{"RouteBack", p.A, false, [2][]string{via(far, "via", p.B.Addr()), nil}},
	} {
		t.Run(step.name, func(t *testing.T) {
			before := x.Dev.(*Device).Counters()
			lost := func() bool {
				c := x.Dev.(*Device).Counters()
				return c.Retransmits != before.Retransmits || c.TxLost != before.TxLost
			}
			done := make(chan error, 1)
			go func() {
				_, err := step.at.Output(t.Context(), "ip", step.ip[0]...)
				// Real time: the trouble lasts while writes go on.
				time.Sleep(300 * time.Millisecond)
				if step.lost { // which is checked below
					_ = netnstest.Until(testkind.Patience, func() error {
						if !lost() {
							return errors.New("nothing was lost")
						}
						return nil
					})
				}
				if err == nil && step.ip[1] != nil {
					_, err = step.at.Output(t.Context(), "ip", step.ip[1]...)
				}
				done <- err
			}()
			for running := true; running; {
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					running = false
				default:
				}
				write(t)
			}
			if step.lost && !lost() {
				t.Error("nothing was lost")
			}
		})
	}
	// Messages of several packets were refused because of their size (older
	// kernels: EINVAL). This does not mean that the netdev cannot split them.
	if a.wire.(*netWire).v2.noGSO.Load() {
		t.Error("they are no longer tried")
	}
}
