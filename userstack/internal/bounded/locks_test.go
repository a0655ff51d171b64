// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/testing/sharetest"
)

// TestLocks: calls on the sockets of a user, and of all users, are bounded. A user who has all
// places of his makes others wait for nothing. Root has places of its own.
func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &locks{users: map[uint32]*locksOf{}}
		const first = 100000
		own := uint32(os.Geteuid())
		fill := func(uid uint32, n int) {
			t.Helper()
			for range n {
				if err := l.enter(uid); err != nil {
					t.Fatal(err)
				}
			}
		}
		begin := time.Now()
		fill(first, locksUser)
		fill(first+1, 1)
		if d := time.Since(begin); d != 0 {
			t.Errorf("took %v", d)
		}
		// A call waits for others of its user.
		for range 100 {
			go func() { _ = l.enter(first) }()
		}
		if err := l.enter(first); !errors.Is(err, ErrLocked) || time.Since(begin) != locksWait {
			t.Errorf("beyond the share: %v after %v", err, time.Since(begin))
		}
		synctest.Wait()
		if n := len(l.users[first].queue); n > 100 {
			t.Errorf("%d wait", n)
		}
		turn := make(chan error)
		go func() { turn <- l.enter(first) }()
		synctest.Wait()
		l.leave(first)
		if err := <-turn; err != nil {
			t.Errorf("after another call has ended: %v", err)
		}
		for uid := uint32(first + 2); l.all < locksAll; uid++ {
			for l.tryEnter(uid) {
			}
		}
		now := time.Now()
		if err := l.enter(first + 50); !errors.Is(err, ErrLocked) || time.Since(now) != 0 {
			t.Errorf("beyond that of all: %v after %v", err, time.Since(now))
		}
		if l.tryEnter(first + 50) {
			t.Error("entered beyond that of all")
		}
		fill(own, locksOwn)
		if l.all != locksAll+locksOwn {
			t.Errorf("%d calls", l.all)
		}
		for uid, of := range l.users {
			for range of.n {
				l.leave(uid)
			}
		}
		if l.all != 0 || len(l.users) != 0 {
			t.Errorf("left: %d, %v", l.all, l.users)
		}
	})
}

// TestUsers: users whose sockets are all locked leave calls and resets for the sockets of the next
// user.
func TestUsers(t *testing.T) {
	l := locks{users: map[uint32]*locksOf{}}
	got := sharetest.Users(t, 14, func(uid uint32) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.tryEnter(uid)
	})
	if got[0] != locksUser {
		t.Errorf("calls: %v", got)
	}
	r := resets{users: map[uint32]*resetsOf{}}
	got = sharetest.Users(t, 14, func(uid uint32) bool {
		if r.users[uid] == nil {
			r.users[uid] = &resetsOf{}
		}
		return r.begin(r.users[uid])
	})
	if got[0] != maxResetsUser {
		t.Errorf("resets: %v", got)
	}
}

// TestResetTurns: resets that wait get the places of those that end, those of the user with the
// fewest first, and nothing is left.
func TestResetTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := resets{users: map[uint32]*resetsOf{}}
		var mu sync.Mutex
		running := map[uint32]int{}
		enter := func(uid uint32) {
			go func() {
				r.enter(uid)
				mu.Lock()
				running[uid]++
				mu.Unlock()
			}()
		}
		for range 3 * maxResetsUser {
			enter(1)
		}
		synctest.Wait()
		enter(2)
		synctest.Wait()
		if running[1] != maxResetsUser || running[2] != 1 {
			t.Fatalf("begun: %v", running)
		}
		r.leave(2)
		for range 3 * maxResetsUser {
			r.leave(1)
			synctest.Wait()
		}
		if running[1] != 3*maxResetsUser || len(r.users) != 0 || r.all != 0 {
			t.Errorf("begun: %v, left: %v", running, r.users)
		}
	})
}
