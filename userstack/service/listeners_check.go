// SPDX-License-Identifier: Apache-2.0

package service

import (
	"math/rand/v2"
	"slices"
	"time"

	"smcr/userstack/internal/bounded"
	"smcr/userstack/network"
)

const (
	// keepLimit limits the connections that one check looks at, and keepUser those of one user
	// about which no launcher has asked yet. More of them are forgotten, and no others.
	keepLimit = 1024
	keepUser  = 4096
	// keepUsers limits those of all users, an eighth below what the kernel's table has room for.
	keepUsers = 28672
	// lookTime is how long a check waits for what it asks about a connection.
	lookTime = 20 * time.Millisecond
	// unknownUser has the connections of listening sockets that are not known any more.
	unknownUser = 1<<32 - 1
)

// check looks at the connections whose peers were told of SMC and about which no launcher has
// asked.
func (t *listeners) check(now time.Time) {
	conns, err := t.keeper.Announced()
	if err != nil {
		t.warn("cannot check accepted connections", err)
		return
	}
	conns = t.within(conns)
	if len(conns) > keepLimit { // other ones each time
		rand.Shuffle(len(conns), func(i, j int) { conns[i], conns[j] = conns[j], conns[i] })
		conns = conns[:keepLimit]
	}
	for _, c := range conns {
		t.lookAside(now, c)
	}
}

// lookAside looks at a connection in a goroutine, and waits for it up to lookTime. Whoever has
// the socket can keep its lock, which the kernel needs to tell its counters and to reset it. So
// each connection is looked at once at a time, and there are bounds for each user.
func (t *listeners) lookAside(now time.Time, c network.Announced) {
	uid := uint32(unknownUser)
	t.mu.Lock()
	if x := t.known[c.Listener]; x != nil {
		uid = x.uid
	}
	looks := t.looks[c.Cookie]
	t.mu.Unlock()
	if looks || !bounded.TryEnter(uid) {
		return
	}
	t.mu.Lock()
	t.looks[c.Cookie] = true
	t.mu.Unlock()
	done := make(chan struct{})
	go t.guard.Func("a look at an accepted connection", func() {
		defer func() {
			bounded.Leave(uid)
			t.mu.Lock()
			delete(t.looks, c.Cookie)
			t.mu.Unlock()
			close(done)
		}()
		t.look(now, c)
	})()
	timer := time.NewTimer(lookTime)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// within returns the connections of this network namespace, up to keepUser of each user. It
// forgets the others of that user, so that the table has room for those of all.
func (t *listeners) within(conns []network.Announced) []network.Announced {
	if len(conns) <= keepUser {
		return slices.DeleteFunc(conns, func(c network.Announced) bool { return c.Local.NetNS != t.netns })
	}
	of := make(map[uint64]uint32, len(conns)) // the users, by listener
	t.mu.Lock()
	for _, c := range conns {
		if x := t.known[c.Listener]; x != nil {
			of[c.Listener] = x.uid
		}
	}
	t.mu.Unlock()
	has := map[uint32]int{}
	for _, c := range conns {
		if uid, known := of[c.Listener]; known && uid != 0 {
			has[uid]++
		}
	}
	most := fairMost(has)
	users := map[uint32]int{}
	return slices.DeleteFunc(conns, func(c network.Announced) bool {
		uid, known := of[c.Listener]
		if users[uid]++; known && uid != 0 && users[uid] > most {
			_, _ = t.keeper.Taken(c.Cookie)
			return true
		}
		return c.Local.NetNS != t.netns
	})
}

// fairMost returns how many connections each user may have. There is always room for those of one
// more user, whatever the others have.
func fairMost(has map[uint32]int) int {
	most := keepUser
	for ; most > 1; most /= 2 {
		all := 0
		for _, n := range has {
			all += min(n, most)
		}
		if all <= keepUsers {
			break
		}
	}
	return most
}

// look checks one connection.
func (t *listeners) look(now time.Time, c network.Announced) {
	s, ok, err := t.sockets.LookUp(c.Local.AddrPort, c.Remote)
	switch {
	case err != nil:
		t.warn("cannot check an accepted connection", err)
		return
	case !ok || s.Cookie != c.Cookie: // it has ended
		_, _ = t.keeper.Taken(c.Cookie)
		return
	}
	t.mu.Lock()
	x := t.known[c.Listener]
	alone := x != nil && len(x.launchers) == 0
	t.mu.Unlock()
	// The stack and the launchers neither read nor write before they have asked.
	foreign := s.Accepted && (s.Received > 0 && s.Unread == 0 || s.Unsent > 0)
	if !alone && !foreign {
		return
	}
	if mine, err := t.keeper.Taken(c.Cookie); !mine || err != nil {
		return // a launcher has asked meanwhile
	}
	if err := t.sockets.Reset(c.Local.AddrPort, c.Remote, c.Cookie); err != nil {
		t.warn("a peer waits for an answer of SMC to its connection with a process without launcher", err)
	}
	t.log.Debug("connection reset: a process without launcher would read messages of SMC", "local", c.Local.AddrPort, "remote", c.Remote)
	if !foreign || x == nil || alone {
		return
	}
	t.mu.Lock()
	first := !x.foreign
	if first {
		t.stray++
	}
	x.foreign, x.since, x.port = true, now, c.Local.Port()
	x.need = min(max(firstAsks, 2*x.need), mostAsks)
	x.asks = x.need
	t.mu.Unlock()
	if first {
		t.wake()
		t.sweep(now)
	}
}
