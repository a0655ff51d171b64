// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fakeTable is a table of neighbours that notes what is done to it.
type fakeTable struct {
	did  []string
	fail error
	// unplugged is a device without a carrier.
	unplugged uint32
}

func (f *fakeTable) ask(n neighbour, mac [8]uint8) error {
	f.did = append(f.did, fmt.Sprintf("ask %v@%d %d", n.ip, n.dev, mac[5]))
	return f.fail
}

func (f *fakeTable) keep(n neighbour, mac [8]uint8) error {
	f.did = append(f.did, fmt.Sprintf("keep %v@%d %d", n.ip, n.dev, mac[5]))
	return f.fail
}

func (f *fakeTable) device(index uint32) (string, bool) {
	return fmt.Sprint("eth", index), index == f.unplugged
}

func (f *fakeTable) want(t *testing.T, what ...string) {
	t.Helper()
	if slices.Sort(f.did); !slices.Equal(f.did, what) {
		t.Errorf("did %q, want %q", f.did, what)
	}
	f.did = nil
}

// Neighbours of the tests: a peer at two devices.
var (
	peer1 = neighbour{1, netip.MustParseAddr("10.0.0.1")}
	peer2 = neighbour{2, netip.MustParseAddr("10.0.0.1")}
	peer6 = neighbour{1, netip.MustParseAddr("fe80::1")}
)

// is is a change of a neighbour whose hardware address ends with mac.
func is(n neighbour, state int, mac uint8) neighbourChange {
	c := neighbourChange{neighbour: n, state: state}
	if state&valid != 0 {
		c.mac = macOf(mac)
	}
	return c
}

func gone(n neighbour) neighbourChange {
	return neighbourChange{neighbour: n, gone: true, state: netlink.NUD_STALE}
}

func macOf(last uint8) [8]uint8 { return [8]uint8{2, 0, 0, 0, 0, last} }

// keeperBed is a keeper of neighbours of which some are needed.
type keeperBed struct {
	fakeTable
	k     *keeper
	needs map[bpfHop]bool
	asked int // how often it was asked what is needed
}

func newKeeperBed(t *testing.T, needs ...bpfHop) *keeperBed {
	b := &keeperBed{needs: map[bpfHop]bool{}}
	for _, h := range needs {
		b.needs[h] = true
	}
	b.k = newKeeper(&b.fakeTable, func() map[bpfHop]bool { b.asked++; return b.needs }, slog.New(slog.NewTextHandler(t.Output(), nil)))
	return b
}

func (b *keeperBed) hear(c ...neighbourChange) { b.k.hear(c) }

// over lets the time to answer pass.
func (b *keeperBed) over(t *testing.T) {
	t.Helper()
	if next := b.k.unanswered(); next <= 0 || next > answerTime {
		t.Fatalf("the next one has %v to answer", next)
	} else {
		time.Sleep(next)
	}
	if next := b.k.unanswered(); next != 0 {
		t.Fatalf("%v are left", next)
	}
}

// TestKept has a neighbour that does not answer.
func TestKept(t *testing.T) {
	for _, at := range []neighbour{peer1, peer6} {
		t.Run(at.ip.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newKeeperBed(t, bpfHop{Dev: 1, Mac: macOf(7)})
				b.hear(is(at, netlink.NUD_REACHABLE, 7))
				for range 3 {
					b.hear(is(at, netlink.NUD_PROBE, 7))
					b.want(t)
					b.hear(is(at, netlink.NUD_FAILED, 0), is(at, netlink.NUD_FAILED, 0))
					b.hear(is(at, netlink.NUD_FAILED, 0))
					b.want(t, fmt.Sprintf("ask %v@1 7", at.ip))
					b.over(t)
					b.want(t, fmt.Sprintf("keep %v@1 7", at.ip))
					b.hear(is(at, netlink.NUD_STALE, 7)) // by itself
				}
			})
		})
	}
}

// TestNotKept has neighbours that nothing is done for.
func TestNotKept(t *testing.T) {
	hop := bpfHop{Dev: 1, Mac: macOf(7)}
	for _, test := range []struct {
		name  string
		needs bpfHop
		hears []neighbourChange
	}{
		{"none is needed", bpfHop{}, []neighbourChange{is(peer1, netlink.NUD_REACHABLE, 7), is(peer1, netlink.NUD_FAILED, 0)}},
		{"at another device", hop, []neighbourChange{is(peer2, netlink.NUD_REACHABLE, 7), is(peer2, netlink.NUD_FAILED, 0)}},
		{"another host", hop, []neighbourChange{is(peer1, netlink.NUD_REACHABLE, 8), is(peer1, netlink.NUD_FAILED, 0)}},
		{"never answered", hop, []neighbourChange{is(peer1, netlink.NUD_INCOMPLETE, 0), is(peer1, netlink.NUD_FAILED, 0)}},
		{"has answered since", hop, []neighbourChange{is(peer1, netlink.NUD_REACHABLE, 7), is(peer1, netlink.NUD_FAILED, 0), is(peer1, netlink.NUD_REACHABLE, 7)}},
		{"still known", hop, []neighbourChange{is(peer1, netlink.NUD_REACHABLE, 7), is(peer1, netlink.NUD_STALE, 7), is(peer1, netlink.NUD_PROBE, 7)}},
		{"forgotten", hop, []neighbourChange{is(peer1, netlink.NUD_REACHABLE, 7), gone(peer1)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newKeeperBed(t, test.needs)
				b.hear(test.hears...)
				if next := b.k.unanswered(); next != 0 {
					t.Errorf("one has %v to answer", next)
				}
				b.want(t)
			})
		})
	}
}

// TestAnswersAnew has a neighbour whose hardware address is another one when the kernel asks.
func TestAnswersAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newKeeperBed(t, bpfHop{Dev: 1, Mac: macOf(7)}, bpfHop{Dev: 1, Mac: macOf(8)})
		b.hear(is(peer1, netlink.NUD_REACHABLE, 7))
		b.hear(is(peer1, netlink.NUD_FAILED, 0))
		b.want(t, "ask 10.0.0.1@1 7")
		time.Sleep(answerTime / 2)
		b.hear(is(peer1, netlink.NUD_REACHABLE, 8))
		if next := b.k.unanswered(); next != 0 {
			t.Errorf("it still has %v to answer", next)
		}
		b.want(t)
		b.hear(is(peer1, netlink.NUD_FAILED, 0))
		b.over(t)
		b.want(t, "ask 10.0.0.1@1 8", "keep 10.0.0.1@1 8")
	})
}

// TestUnplugged has a device without a carrier, of which the kernel forgets the neighbours.
func TestUnplugged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newKeeperBed(t, bpfHop{Dev: 1, Mac: macOf(7)}, bpfHop{Dev: 2, Mac: macOf(7)})
		b.unplugged = 1
		b.hear(is(peer1, netlink.NUD_STALE, 7), is(peer2, netlink.NUD_STALE, 7))
		b.hear(gone(peer1), gone(peer2))
		b.want(t, "keep 10.0.0.1@1 7")
	})
}

// TestForgotten: the address of a neighbour that the kernel has forgotten is remembered as long as it is needed. A packet has
// the kernel ask in vain.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newKeeperBed(t, bpfHop{Dev: 1, Mac: macOf(7)})
		b.hear(is(peer1, netlink.NUD_STALE, 7), is(peer2, netlink.NUD_STALE, 7), gone(peer1), gone(peer2))
		if len(b.k.known) != 1 {
			t.Errorf("%d neighbours are remembered, want the one that is needed", len(b.k.known))
		}
		b.hear(is(peer1, netlink.NUD_INCOMPLETE, 0), is(peer1, netlink.NUD_FAILED, 0))
		b.over(t)
		b.want(t, "ask 10.0.0.1@1 7", "keep 10.0.0.1@1 7")
		clear(b.needs)
		b.hear(gone(peer1))
		if len(b.k.known) != 0 {
			t.Errorf("%d neighbours are remembered, want none", len(b.k.known))
		}
	})
}

// TestRefusedByKernel has a kernel that refuses everything: the next change has its turn.
func TestRefusedByKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newKeeperBed(t, bpfHop{Dev: 1, Mac: macOf(7)})
		b.fail = unix.EPERM
		b.hear(is(peer1, netlink.NUD_STALE, 7))
		for range 2 {
			b.hear(is(peer1, netlink.NUD_FAILED, 0))
			b.over(t)
			b.want(t, "ask 10.0.0.1@1 7", "keep 10.0.0.1@1 7")
		}
	})
}

// TestLooksOnce: what is needed is found out once for many changes, and not for those of neighbours that were never known.
func TestLooksOnce(t *testing.T) {
	b := newKeeperBed(t)
	b.hear(is(peer1, netlink.NUD_STALE, 7), is(peer2, netlink.NUD_STALE, 7))
	b.hear(is(peer6, netlink.NUD_FAILED, 0))
	if b.asked != 0 {
		t.Errorf("looked %d times for an unknown neighbour", b.asked)
	}
	b.hear(is(peer1, netlink.NUD_FAILED, 0), is(peer2, netlink.NUD_FAILED, 0))
	if b.asked != 1 {
		t.Errorf("looked %d times, want once", b.asked)
	}
}

// TestChangeOf has entries as netlink reports them.
func TestChangeOf(t *testing.T) {
	ip := []byte{10, 0, 0, 1}
	mac := []byte{2, 0, 0, 0, 0, 7}
	for _, test := range []struct {
		name string
		n    netlink.Neigh
		ok   bool
	}{
		{"known", netlink.Neigh{LinkIndex: 1, Family: unix.AF_INET, IP: ip, HardwareAddr: mac, State: netlink.NUD_STALE}, true},
		{"given up", netlink.Neigh{LinkIndex: 1, Family: unix.AF_INET, IP: ip, State: netlink.NUD_FAILED}, true},
		{"of a bridge", netlink.Neigh{LinkIndex: 1, Family: unix.AF_BRIDGE, HardwareAddr: mac, State: netlink.NUD_REACHABLE}, false},
		{"of InfiniBand", netlink.Neigh{LinkIndex: 1, Family: unix.AF_INET, IP: ip, HardwareAddr: make([]byte, 20), State: netlink.NUD_STALE}, false},
		{"of a tunnel", netlink.Neigh{LinkIndex: 1, Family: unix.AF_INET, IP: ip, State: netlink.NUD_NOARP}, false},
	} {
		c, ok := changeOf(&test.n)
		if ok != test.ok {
			t.Errorf("%s: ok %t, want %t", test.name, ok, test.ok)
		}
		if want := is(peer1, test.n.State, 7); ok && c != want {
			t.Errorf("%s: %+v, want %+v", test.name, c, want)
		}
	}
}

// TestNeighboursOfOneHost: a host that SMC-R is used with, and that has addresses without end, does not have the stack remember all
// of them, and none that another host has. The kernel reports which it has forgotten, or not.
func TestNeighboursOfOneHost(t *testing.T) {
	const other, hosts = 9, 3 * goneMost / goneOfHop
	at := func(host, i int) neighbour {
		return neighbour{1, netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i), 1: byte(host)})}
	}
	for _, reported := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newKeeperBed(t, bpfHop{Dev: 1, Mac: macOf(other)})
			for host := range hosts {
				b.needs[bpfHop{Dev: 1, Mac: macOf(byte(100 + host))}] = true
			}
			b.hear(is(peer1, netlink.NUD_REACHABLE, other))
			b.hear(gone(peer1))
			for host := range hosts {
				for i := range 2 * goneOfHop {
					n := at(host, i)
					b.hear(is(n, netlink.NUD_STALE, uint8(100+host)))
					if reported {
						b.hear(gone(n))
					}
				}
				if !reported {
					b.k.listed(nil)
				}
				if n := len(b.k.known); n > goneMost || n > 1+(host+1)*goneOfHop {
					t.Fatalf("%d neighbours are remembered of %d hosts", n, host+2)
				}
			}
			b.want(t)
			b.hear(is(peer1, netlink.NUD_FAILED, 0))
			b.want(t, "ask 10.0.0.1@1 9")
		})
	}
}
