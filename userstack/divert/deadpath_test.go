// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// neighbourLog is what the kernel of a host has done to its entries of an address.
type neighbourLog struct {
	mu   sync.Mutex
	seen []netlink.NeighUpdate
}

func watchNeighbours(t *testing.T, h *netnstest.Host, address string) *neighbourLog {
	t.Helper()
	updates, done := make(chan netlink.NeighUpdate), make(chan struct{})
	if err := h.Do(func() error { return netlink.NeighSubscribe(updates, done) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(done) })
	w := new(neighbourLog)
	go func() {
		for u := range updates {
			if ip, _ := netip.AddrFromSlice(u.IP); ip.Unmap().String() == address {
				w.mu.Lock()
				w.seen = append(w.seen, u)
				w.mu.Unlock()
			}
		}
	}()
	return w
}

// states returns the states that the entries have had.
func (w *neighbourLog) states() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := map[int]string{netlink.NUD_REACHABLE: "reachable", netlink.NUD_STALE: "stale", netlink.NUD_DELAY: "delay", netlink.NUD_PROBE: "probe", netlink.NUD_FAILED: "failed"}
	for _, u := range w.seen {
		switch {
		case u.Type == unix.RTM_DELNEIGH:
			all = append(all, "gone")
		default:
			all = append(all, names[u.State])
		}
	}
	return all
}

// awaitFailed waits until the kernel has given up the neighbour n times.
func (w *neighbourLog) awaitFailed(t *testing.T, n int) {
	t.Helper()
	testkind.Eventually(t, fmt.Sprintf("the neighbour has been given up %d times", n), func() (any, bool) {
		all := w.states()
		return all, len(slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s != "failed" })) >= n
	})
}

// TestDeadPath has programs that only receive, on a path that is dead: the kernels give the neighbours up again and again, and
// the programs go on. The first time it is an entry that the kernel has learnt, then one that the stack has made: TestKept has
// more of those.
func TestDeadPath(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for family, address := range addresses {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			c := newCarriedBed(t, address)
			logs := [2]*neighbourLog{watchNeighbours(t, c.A, address(c.B)), watchNeighbours(t, c.B, address(c.A))}
			c.send(0)
			c.send(1)
			c.must(c.Cut(0))
			for n := range 2 {
				for i := range logs {
					logs[i].awaitFailed(t, n+1)
					c.goesOn(i, fmt.Sprintf("after %d", n+1))
				}
			}
			c.must(c.Uncut(0))
			testkind.Eventually(t, "the neighbour answers again", func() (any, bool) {
				all := logs[0].states()
				return all, len(all) > 0 && all[len(all)-1] == "reachable"
			})
			c.goesOn(0, "at the end")
		})
	}
}

// TestDeadPathDeclined: the neighbour of a connection that is TCP for the peer is given up, as without a stack.
func TestDeadPathDeclined(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	hasty(t, b.A)
	client, _ := b.connect(b.listen(b.B.Addr()))
	log := watchNeighbours(t, b.A, b.B.Addr())
	b.must(b.Cut(0))
	go func() {
		// As soon as no more is taken, only probes of the window are sent, and nothing confirms the neighbour.
		for err := error(nil); err == nil; {
			_, err = client.Write(make([]byte, 1<<20))
		}
	}()
	log.awaitFailed(t, 2)
	all := log.states()
	for _, s := range all[slices.Index(all, "failed"):] {
		if s != "failed" {
			t.Errorf("the neighbour was %q", all)
		}
	}
}

// TestNeighbourMoves has a peer whose hardware address changes without a word: the kernel finds it by asking all hosts.
func TestNeighbourMoves(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for family, address := range addresses {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			c := newCarriedBed(t, address)
			// B must not ask for A, because A would learn the address of B by that.
			c.must(c.B.Do(func() error {
				l, err := netlink.LinkByName(c.B.Links[0].Name)
				if err != nil {
					return err
				}
				return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.ParseIP(address(c.A)), HardwareAddr: c.A.Links[0].MAC, State: netlink.NUD_PERMANENT})
			}))
			log := watchNeighbours(t, c.A, address(c.B))
			c.send(0)
			mac := net.HardwareAddr{2, 0, 0, 0, 0, 99}
			c.must(c.B.Do(func() error {
				l, err := netlink.LinkByName(c.B.Links[0].Name)
				if err != nil {
					return err
				}
				return netlink.LinkSetHardwareAddr(l, mac)
			}))
			testkind.Eventually(t, "the neighbour has its new address", func() (any, bool) {
				log.mu.Lock()
				defer log.mu.Unlock()
				if len(log.seen) == 0 {
					return nil, false
				}
				last := log.seen[len(log.seen)-1]
				return last, last.HardwareAddr.String() == mac.String() && last.State == netlink.NUD_REACHABLE
			})
			if all := log.states(); !slices.Contains(all, "failed") {
				t.Errorf("the kernel has not asked all hosts: %q", all)
			}
			c.goesOn(0, "by the new address")
		})
	}
}

// TestCableOut has a device that loses its carrier: the kernel forgets the neighbours, and the program goes on at once.
func TestCableOut(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for family, address := range addresses {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			c := newCarriedBed(t, address)
			unhurried(t, c.A)
			log := watchNeighbours(t, c.A, address(c.B))
			c.send(0)
			c.must(c.B.SetLink(0, false))
			testkind.Eventually(t, "the neighbour is forgotten", func() (any, bool) {
				all := log.states()
				return all, slices.Contains(all, "gone")
			})
			c.goesOn(0, "without a carrier")
			if all := log.states(); slices.Contains(all, "failed") {
				t.Errorf("the kernel has asked in vain: %q", all)
			}
		})
	}
}
