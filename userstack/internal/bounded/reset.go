// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/quota"
)

// maxResets bounds the threads in ResetConn. A program can make the kernel hold the lock of
// its TCP socket for any time, by sending from memory whose pages never come, and a wait
// for this lock cannot be interrupted. So this bound is far above maxCalls. maxResetsUser bounds
// those for the sockets of one user, who leaves as many for others: see quota.Fair. Further ones
// wait as goroutines.
const (
	maxResets     = 512
	maxResetsUser = 64
)

var (
	resetting = resets{users: map[uint32]*resetsOf{}}
	stuck     atomic.Int32 // resets that took longer than callTime
)

// resets counts the threads in ResetConn.
type resets struct {
	mu    sync.Mutex
	all   int
	users map[uint32]*resetsOf // those who have or want some
}

// resetsOf are the resets of a user.
type resetsOf struct {
	n     int
	queue []chan struct{} // of those that wait
}

// enter waits for a place for a reset of a user.
func (r *resets) enter(uid uint32) {
	uid = quota.Account(uid)
	r.mu.Lock()
	of := r.users[uid]
	if of == nil {
		of = &resetsOf{}
		r.users[uid] = of
	}
	if len(of.queue) == 0 && r.begin(of) {
		r.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	of.queue = append(of.queue, turn)
	r.mu.Unlock()
	<-turn
}

// begin takes a place, if there is one. The caller holds mu.
func (r *resets) begin(of *resetsOf) bool {
	if !quota.Fair(of.n, 1, maxResetsUser, r.all, maxResets) {
		return false
	}
	of.n++
	r.all++
	return true
}

// leave gives the place of a reset to those that wait, first of the user with the fewest resets.
func (r *resets) leave(uid uint32) {
	uid = quota.Account(uid)
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.users[uid]
	of.n--
	r.all--
	if of.n == 0 && len(of.queue) == 0 {
		delete(r.users, uid)
	}
	for {
		var next *resetsOf
		for _, of := range r.users {
			if len(of.queue) > 0 && (next == nil || of.n < next.n) {
				next = of
			}
		}
		if next == nil || !r.begin(next) {
			return
		}
		close(next.queue[0])
		next.queue = next.queue[1:]
	}
}

// ResetConn closes a connection of a user in Go's poller so that its peer sees a reset. It waits for
// the reset, at most for callTime, and not at all while another reset takes longer than
// that. The error is that of c.Close.
func ResetConn(c interface {
	syscall.Conn
	io.Closer
}, uid uint32) error {
	last := -1
	if rc, err := c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			if dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				last = dup
			}
		})
	}
	err := c.Close()
	if last < 0 {
		return err
	}
	over := make(chan struct{})
	// No guard: it only makes system calls.
	go func() {
		resetting.enter(uid)
		defer func() { resetting.leave(uid); close(over) }()
		_ = unix.SetsockoptLinger(last, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(last)
	}()
	if stuck.Load() > 0 {
		return err
	}
	t := time.NewTimer(callTime)
	defer t.Stop()
	select {
	case <-over:
	case <-t.C:
		stuck.Add(1)
		go func() {
			<-over
			stuck.Add(-1)
		}()
	}
	return err
}
