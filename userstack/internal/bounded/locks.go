// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/quota"
)

// A program can make the kernel hold the lock of its TCP socket for any time: it sends from
// memory whose pages never come. A system call of this process that needs the lock then blocks
// its thread, and no signal ends that. So the calls on sockets that others have are counted,
// by the user whose socket it is.
const (
	// locksUser is how many calls on the sockets of one user may be under way, and locksAll
	// how many of all users, of which each user leaves some: see quota.Fair. Root, and the user of
	// this process, may have locksOwn more.
	locksUser = 64
	locksAll  = 512
	locksOwn  = 64
	// locksWait is how long a call waits, without a thread, for others of its user. A call
	// takes microseconds if no lock is held.
	locksWait = time.Second
)

// ErrLocked means that too many sockets of a user, or of all users, are locked.
var ErrLocked = fmt.Errorf("bounded: too many sockets are locked by system calls of their programs: %w", unix.EBUSY)

// locks counts the calls that Enter has begun.
type locks struct {
	mu    sync.Mutex
	all   int
	users map[uint32]*locksOf
}

// locksOf are the calls on the sockets of a user.
type locksOf struct {
	n     int
	queue []*locksTurn
}

// locksTurn is a call that waits for its turn.
type locksTurn struct {
	begin chan struct{}
	gone  bool // it waits no more
}

var entered = locks{users: map[uint32]*locksOf{}}

// Enter begins a call that may need the lock of a socket of user uid. Leave ends it. It waits
// for others of this user, for a second, and does not wait for those of other users. The error
// is ErrLocked.
func Enter(uid uint32) error { return entered.enter(uid) }

// TryEnter is Enter for callers that must not wait. If it returns false, Leave must not be
// called.
func TryEnter(uid uint32) bool {
	entered.mu.Lock()
	defer entered.mu.Unlock()
	return entered.tryEnter(uid)
}

// Leave ends a call of Enter or TryEnter.
func Leave(uid uint32) { entered.leave(uid) }

// full reports whether user uid may begin no call, whatever the user has.
func (l *locks) full(uid uint32) bool {
	most := locksAll
	if privileged(uid) {
		most += locksOwn
	}
	return l.all >= most
}

// privileged reports whether a user is root or that of this process.
func privileged(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// tryEnter begins a call if there is a place. The caller holds mu.
func (l *locks) tryEnter(uid uint32) bool {
	uid = quota.Account(uid)
	of, own := l.users[uid], 0
	if of != nil {
		own = of.n
	}
	if l.full(uid) || !privileged(uid) && !quota.Fair(own, 1, locksUser, l.all, locksAll) || own >= locksUser {
		return false
	}
	if of == nil {
		of = &locksOf{}
		l.users[uid] = of
	}
	of.n++
	l.all++
	return true
}

func (l *locks) enter(uid uint32) error {
	uid = quota.Account(uid)
	l.mu.Lock()
	if l.tryEnter(uid) {
		l.mu.Unlock()
		return nil
	}
	of := l.users[uid]
	if of == nil || l.full(uid) && of.n < locksUser {
		l.mu.Unlock()
		return ErrLocked // of all users
	}
	turn := &locksTurn{begin: make(chan struct{})}
	of.queue = append(of.queue, turn)
	l.mu.Unlock()
	timer := time.NewTimer(locksWait)
	defer timer.Stop()
	select {
	case <-turn.begin:
		return nil
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-turn.begin:
		return nil
	default:
	}
	turn.gone = true
	of.drop()
	return ErrLocked
}

// drop removes turns that wait no more from the beginning of the queue.
func (of *locksOf) drop() {
	for len(of.queue) > 0 && of.queue[0].gone {
		of.queue = of.queue[1:]
	}
}

func (l *locks) leave(uid uint32) {
	uid = quota.Account(uid)
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.users[uid]
	if of.drop(); len(of.queue) > 0 { // the next one has the place
		close(of.queue[0].begin)
		of.queue = of.queue[1:]
		return
	}
	of.n--
	l.all--
	l.tidy(uid, of)
}

// tidy forgets a user without calls. The caller holds mu.
func (l *locks) tidy(uid uint32, of *locksOf) {
	if of.n == 0 && len(of.queue) == 0 {
		delete(l.users, uid)
	}
}
