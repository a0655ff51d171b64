// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

const (
	// The process keeps 1/ownShare of all descriptors for itself, and at most ownMost:
	// for its devices, its listening sockets and files that are open for a moment.
	ownShare, ownMost = 4, 64
	// Root alone may take another 1/rootShare of all descriptors, and at least rootLeast.
	rootShare, rootLeast = 8, 32
	// One user may take 1/userShare of what all users may take.
	userShare = 2
)

// Limits are the limits of a [Budget], in descriptors.
type Limits struct {
	// Total is how many descriptors the process may have open. 0 means its
	// RLIMIT_NOFILE.
	Total int
	// User is how many descriptors one user other than root may take. 0 means half of
	// those for all users. If it is not more than half of them, a user also leaves as much for
	// others as the user has: see Fair.
	User int
}

// A Budget counts the descriptors of a process that users have taken. Root, and the
// user of the process itself, may take all that the process does not need for itself.
// All other users together may take a part of these, and each of them a part of that.
//
// A nil Budget has no limits. The methods are safe for concurrent use.
type Budget struct {
	owner             uint32
	all, others, user int // the most that may be taken: by all, by all but root and owner, by one of the latter

	mu    sync.Mutex
	taken int
	users map[uint32]int
}

// New returns a budget with these limits. Nothing is taken yet.
func New(l Limits) *Budget {
	if l.Total <= 0 {
		l.Total = openFiles()
	}
	b := &Budget{owner: uint32(os.Geteuid()), users: make(map[uint32]int)}
	b.all = l.Total - min(l.Total/ownShare, ownMost)
	b.others = max(0, b.all-max(l.Total/rootShare, min(rootLeast, b.all/2)))
	b.user = min(b.others, l.User)
	if l.User <= 0 {
		b.user = b.others / userShare
	}
	return b
}

// openFiles returns the soft limit of open files.
func openFiles() int {
	const usual = 1024
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return usual
	}
	return int(min(l.Cur, 1<<30))
}

// Take takes n descriptors for a user, or none if there are not enough. They are charged to the
// [Account] of the user. The error is an *[Error].
func (b *Budget) Take(uid uint32, n int) error {
	if b == nil {
		return nil
	}
	uid = Account(uid)
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.others
	if b.privileged(uid) {
		most = b.all
	} else if have := b.users[uid]; have+n > b.user {
		return &Error{UID: uid, Taken: have, Limit: b.user, Errno: syscall.EUSERS}
	}
	if b.taken+n > most {
		return &Error{UID: uid, Taken: b.taken, Limit: most, Errno: syscall.EAGAIN}
	}
	if have := b.users[uid]; !b.privileged(uid) && b.user <= most/2 && !Fair(have, n, b.user, b.taken, most) {
		return &Error{UID: uid, Taken: have, Limit: max(have, (have+most-b.taken)/2), Errno: syscall.EUSERS}
	}
	b.taken += n
	b.users[uid] += n
	return nil
}

// Give gives back n descriptors that the user took.
func (b *Budget) Give(uid uint32, n int) {
	if b == nil || n == 0 {
		return
	}
	uid = Account(uid)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= n
	if b.users[uid] -= n; b.users[uid] == 0 {
		delete(b.users, uid)
	}
}

func (b *Budget) privileged(uid uint32) bool { return uid == 0 || uid == b.owner }

// An Error says that a user cannot take more descriptors. It wraps EUSERS if the
// limit of this user is reached, and EAGAIN if the limit of all users is reached.
type Error struct {
	UID   uint32        // the user
	Taken int           // descriptors taken: by the user with EUSERS, by all with EAGAIN
	Limit int           // the limit of Taken
	Errno syscall.Errno // EUSERS or EAGAIN
}

// Error returns a sentence that also says how to raise the limit.
func (e *Error) Error() string {
	if e.Errno == syscall.EUSERS {
		return fmt.Sprintf("user %d has %d of at most %d descriptors of the stack: see --user-fds of 'smcr serve'", e.UID, e.Taken, e.Limit)
	}
	return fmt.Sprintf("the stack has too few descriptors, %d of %d are in use: raise the limit of open files of 'smcr serve'", e.Taken, e.Limit)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }
