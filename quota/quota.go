// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

const (
	// ownShare and ownMost are what the process keeps for itself, one part of so
	// many and at most: its devices, its listening sockets, files for a moment.
	ownShare, ownMost = 4, 64
	// rootShare and rootLeast are what is kept for root beyond that.
	rootShare, rootLeast = 8, 32
	// userShare is the part that one user may have of what there is for all.
	userShare = 2
)

// Limits are those of a [Budget], in descriptors.
type Limits struct {
	// Total is how many the process may have open. 0 is its RLIMIT_NOFILE.
	Total int
	// User is how many one user other than root may take. 0 is half of what
	// there is for all of them.
	User int
}

// A Budget counts the descriptors of a process that users have taken. Root, and
// the user whom the process runs as, may take what the process does not need
// itself; the others together leave a part of that, and none of them can have all.
//
// A nil Budget has no limits. Its methods are safe for concurrent use.
type Budget struct {
	owner             uint32
	all, others, user int // the most that may be taken: by everybody, by all but root, by one of these

	mu    sync.Mutex
	taken int
	users map[uint32]int
}

// New returns a budget of which nothing is taken.
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

// Take takes n descriptors for a user, all or none. The error is an *Error.
func (b *Budget) Take(uid uint32, n int) error {
	if b == nil {
		return nil
	}
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
	b.taken += n
	b.users[uid] += n
	return nil
}

// Give returns n descriptors that the user took.
func (b *Budget) Give(uid uint32, n int) {
	if b == nil || n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= n
	if b.users[uid] -= n; b.users[uid] == 0 {
		delete(b.users, uid)
	}
}

func (b *Budget) privileged(uid uint32) bool { return uid == 0 || uid == b.owner }

// An Error tells that a user cannot have more. It wraps EUSERS if the limit is
// that user's own, EAGAIN if there is nothing left for anybody like him.
type Error struct {
	UID          uint32
	Taken, Limit int // by the user, or by all
	Errno        syscall.Errno
}

// Error says who cannot have more of what.
func (e *Error) Error() string {
	if e.Errno == syscall.EUSERS {
		return fmt.Sprintf("user %d has %d of at most %d descriptors of the stack: see --user-fds of 'smcr serve'", e.UID, e.Taken, e.Limit)
	}
	return fmt.Sprintf("the stack has too few descriptors, %d of %d are in use: raise the limit of open files of 'smcr serve'", e.Taken, e.Limit)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }
