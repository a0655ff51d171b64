// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"smcr/internal/testing/sharetest"
	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
	"smcr/userstack/network"
)

// takenKeeper is a keeper of which nothing but Taken is called.
type takenKeeper struct {
	network.ListenerKeeper
	taken []uint64
}

func (k *takenKeeper) Taken(cookie uint64) (bool, error) {
	k.taken = append(k.taken, cookie)
	return true, nil
}

// TestAnnouncedOfOthers: of a user who leaves many announced connections alone, the ones above
// the share are forgotten. Those of others, and of root, stay.
func TestAnnouncedOfOthers(t *testing.T) {
	const netns, flooder, other, root, unknown = 7, 1, 2, 3, 4 // listeners
	k := &takenKeeper{}
	l := &listeners{keeper: k, netns: netns, known: map[uint64]*markedSocket{flooder: {uid: 1000}, other: {uid: 1001}, root: {}}}
	var all []network.Announced
	add := func(n int, listener, in uint64) {
		for range n {
			all = append(all, network.Announced{Cookie: uint64(len(all) + 1), Listener: listener, Local: network.LocalAddress{NetNS: in}})
		}
	}
	add(10, other, netns)
	add(keepUser+500, flooder, netns)
	add(keepUser+5, root, netns)
	add(5, other, netns)
	add(5, unknown, netns)
	add(3, other, netns+1)
	count := map[uint64]int{}
	for _, c := range l.within(slices.Clone(all)) {
		count[c.Listener]++
	}
	if count[flooder] != keepUser || count[other] != 15 || count[root] != keepUser+5 || count[unknown] != 5 {
		t.Errorf("looked at, by listener: %v", count)
	}
	if len(k.taken) != 500 || slices.ContainsFunc(k.taken, func(c uint64) bool { return all[c-1].Listener != flooder }) {
		t.Errorf("%d are forgotten, want 500 of the flooder", len(k.taken))
	}
}

// TestListeningShares: the stack follows as many listening sockets of a user as the share, with
// any number of launchers, and those of others and of root as before. The bound of all holds for
// root as well.
func TestListeningShares(t *testing.T) {
	testkind.System(t)
	flooders := []*broker.Launcher{{UID: 1000}, {UID: 1000}}
	other, root := &broker.Launcher{UID: 1001}, &broker.Launcher{}
	ls := &listeners{kick: make(chan struct{}, 1), known: map[uint64]*markedSocket{}, users: map[uint32]int{}, open: map[*broker.Launcher]map[uint64]*markedSocket{}}
	for _, l := range append([]*broker.Launcher{other, root}, flooders...) {
		ls.open[l] = map[uint64]*markedSocket{}
	}
	next := uint64(0)
	add := func(l *broker.Launcher) error {
		next++
		return ls.insert(l, next)
	}
	for i := range maxListeningUser {
		if err := add(flooders[i%2]); err != nil {
			t.Fatalf("socket %d: %v", i, err)
		}
	}
	for _, l := range flooders {
		if err := add(l); !errors.Is(err, errManyListeners) {
			t.Errorf("beyond the share: %v", err)
		}
	}
	if err := add(other); err != nil {
		t.Errorf("another user: %v", err)
	}
	for len(ls.known) < maxListening {
		if err := add(root); err != nil {
			t.Fatalf("root, with %d: %v", len(ls.known), err)
		}
	}
	if err := add(root); !errors.Is(err, errManyListeners) {
		t.Errorf("beyond all: %v", err)
	}
	ls.drop(flooders[0], 1)
	if err := add(flooders[1]); !errors.Is(err, errManyListeners) {
		t.Errorf("the last place, to who has the most: %v", err)
	}
	newcomer := &broker.Launcher{UID: 1002}
	ls.open[newcomer] = map[uint64]*markedSocket{}
	if err := add(newcomer); err != nil {
		t.Errorf("the last place, to who has nothing: %v", err)
	}
}

// TestSharesOfUsers: of each table that users fill, the next user gets something, however much those
// before have taken.
func TestSharesOfUsers(t *testing.T) {
	cookie, open := uint64(0), map[*broker.Launcher]map[uint64]*markedSocket{}
	launchers := map[uint32]*broker.Launcher{}
	followed := &listeners{kick: make(chan struct{}, 1), known: map[uint64]*markedSocket{}, users: map[uint32]int{}, open: open}
	var memories localMemories
	var ports localPorts
	port := map[uint32]uint16{}
	for table, tt := range map[string]struct {
		share, users int
		take         func(uid uint32) bool
	}{
		"listening sockets": {maxListeningUser, 14, func(uid uint32) bool {
			if launchers[uid] == nil {
				launchers[uid] = &broker.Launcher{UID: uid}
				open[launchers[uid]] = map[uint64]*markedSocket{}
			}
			cookie++
			return followed.insert(launchers[uid], cookie) == nil
		}},
		"memories": {maxMemoriesUser, 18, func(uid uint32) bool {
			cookie++
			client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(cookie >> 16), byte(cookie >> 8), byte(cookie)}), 1)
			return memories.add(tuple{client: client}, uid)
		}},
		"ports": {maxPortsUser, 14, func(uid uint32) bool {
			port[uid]++
			return ports.add(port[uid], uid)
		}},
	} {
		t.Run(table, func(t *testing.T) {
			if got := sharetest.Users(t, tt.users, tt.take); got[0] != tt.share {
				t.Errorf("the first user has %v", got)
			} else {
				t.Log(got)
			}
		})
	}
	t.Run("announced", func(t *testing.T) {
		has := map[uint32]int{}
		for users := range 100 {
			has[uint32(1000+users)] = 1 << 20
			most, all := fairMost(has), 0
			for range has {
				all += most
			}
			if most < 1 || all > keepUsers {
				t.Fatalf("%d users have %d each", users+1, most)
			}
		}
		if n := fairMost(map[uint32]int{1: 1 << 20, 2: 5}); n != keepUser {
			t.Errorf("a single user has %d", n)
		}
	})
}
