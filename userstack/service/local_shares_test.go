// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/sharetest"
	"smcr/internal/testing/testkind"
)

// TestLocalMemories: the connections that are remembered as TCP have a share for each user, and
// those that have ended make room.
func TestLocalMemories(t *testing.T) {
	exist := true
	table := &localTable{exists: func(tuple) bool { return exist }}
	remember := func(uid uint32, n int) {
		t.Helper()
		for i := range n {
			name := tuple{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(uid), 1}), uint16(i+1)), netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 80)}
			table.mu.Lock()
			table.rememberName(name, uid)
			table.mu.Unlock()
		}
	}
	count := func(uid uint32) int {
		table.mu.Lock()
		defer table.mu.Unlock()
		return table.memories.count[uid]
	}
	remember(1, 60000)
	if n := count(1); n != maxMemoriesUser {
		t.Errorf("%d connections of a user are remembered, want %d", n, maxMemoriesUser)
	}
	remember(2, 10)
	if n := count(2); n != 10 {
		t.Errorf("%d connections of another user are remembered", n)
	}
	for uid := uint32(3); uid < 20; uid++ {
		remember(uid, 1000)
	}
	if n := len(table.memories.users); n > maxMemories {
		t.Errorf("%d connections are remembered", n)
	}
	exist = false
	table.sweepMemories()
	if !table.memories.empty() || len(table.memories.count) != 0 || table.memories.timer != nil {
		t.Errorf("left: %d", len(table.memories.users))
	}
	exist = true
	remember(1, 1)
	if count(1) != 1 {
		t.Error("there is no room after others have ended")
	}
	table.memories.timer.Stop()
}

// TestLocalPorts: the ports on which a user has listened are limited, and those on which nobody
// listens any more make room.
func TestLocalPorts(t *testing.T) {
	testkind.System(t)
	in := map[uint16]bool{7: true}
	table := &localTable{listening: func() (map[uint16]bool, error) { return in, nil }}
	for port := range uint16(60000) {
		table.listensAt(port+1, 1, true)
	}
	if n := table.ports.count[1]; n != maxPortsUser || len(table.ports.defers) != maxPortsUser {
		t.Errorf("%d ports, %d defer", n, len(table.ports.defers))
	}
	if !table.listensAt(50000, 2, false) || !table.hasListener(50000, nil) {
		t.Error("no port for another user")
	}
	if table.listensAt(60001, 1, false) {
		t.Error("a port above the share")
	}
	table.sweepPorts()
	if n := table.ports.all; n != 1 || !table.hasListener(7, nil) || table.hasListener(50000, nil) {
		t.Errorf("%d ports after a sweep", n)
	}
	if !table.listensAt(60001, 1, false) {
		t.Error("there is no room after others have ended")
	}
}

// countedCloses counts the sockets that are watched.
type countedCloses struct {
	event int // eventfd
	n     int
}

func (c *countedCloses) Add(uint64) error        { c.n++; return nil }
func (c *countedCloses) Arm(uint64, int) error   { return nil }
func (c *countedCloses) Remove(uint64)           { c.n-- }
func (c *countedCloses) Relax()                  {}
func (c *countedCloses) FD() int                 { return c.event }
func (c *countedCloses) Read(func(uint64, bool)) {}
func (c *countedCloses) Close() error            { return unix.Close(c.event) }

// TestLocalPairs: the pairs of a user have a share of all, and those that have ended make room.
func TestLocalPairs(t *testing.T) {
	testkind.System(t)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	closes := &countedCloses{event: event}
	o := &holder{closes: closes}
	p, q, _, err := localPair()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer q.Close()
	add := func(uid uint32, n int) (all []*holding) {
		for range n {
			h, err := o.add(uid, p, q)
			if errors.Is(err, errPairs) {
				return all
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, h)
		}
		return all
	}
	greedy := add(1, 3*maxPairsUser)
	if len(greedy) != maxPairsUser {
		t.Fatalf("a user has %d pairs, want %d", len(greedy), maxPairsUser)
	}
	if _, err := o.add(1, p, q); !errors.Is(err, errNotLocal) {
		t.Errorf("beyond the share: %v", err) // so it stays TCP
	}
	others := append(add(2, 10), add(0, maxPairsUser+1)...)
	if len(others) != 10+maxPairsUser+1 {
		t.Errorf("others have %d pairs", len(others))
	}
	greedy[0].forget()
	greedy[0].forget()
	greedy = append(greedy, add(1, 2)...)
	if len(greedy) != maxPairsUser+1 {
		t.Errorf("one that has ended makes room for %d", len(greedy)-maxPairsUser)
	}
	for _, h := range append(greedy, others...) {
		h.forget()
	}
	var all []*holding
	sharetest.Users(t, 14, func(uid uint32) bool {
		held := add(uid, 1)
		all = append(all, held...)
		return len(held) > 0
	})
	for _, h := range all {
		h.forget()
	}
	if len(o.pairs) != 0 || closes.n != 0 {
		t.Errorf("left: %v, %d sockets", o.pairs, closes.n)
	}
	if err := o.close(); err != nil {
		t.Error(err)
	}
}
