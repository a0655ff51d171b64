// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// maxPidfds is the largest number of threads whose pidfds are kept.
const maxPidfds = 64

// pidfds keeps the pidfds of threads that make several calls. A pidfd never
// refers to a later thread with the same number: its use fails with ESRCH.
type pidfds struct {
	mu     sync.Mutex
	byTID  map[int]*pidfdRef
	closed bool
}

type pidfdRef struct {
	fd    int
	users int // including the table
}

// with calls f with a pidfd of the thread. f may block.
func (x *pidfds) with(tid int, f func(pidfd int) error) error {
	for {
		p, kept, err := x.take(tid)
		if err != nil {
			return fmt.Errorf("launch: pidfd of %d: %w", tid, err)
		}
		err = f(p.fd)
		again := kept && errors.Is(err, unix.ESRCH)
		x.mu.Lock()
		if again && x.byTID[tid] == p {
			x.drop(tid)
		}
		x.give(p)
		x.mu.Unlock()
		if !again {
			return err
		}
	}
}

// take returns a pidfd, which the caller gives back, and whether it was kept
// from an earlier use.
func (x *pidfds) take(tid int) (p *pidfdRef, kept bool, err error) {
	x.mu.Lock()
	if p := x.byTID[tid]; p != nil {
		p.users++
		x.mu.Unlock()
		return p, true, nil
	}
	x.mu.Unlock()
	fd, err := withRoom(func() (int, error) { return openPidfd(tid) })
	if err != nil {
		return nil, false, err
	}
	p = &pidfdRef{fd: fd, users: 1}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || x.byTID[tid] != nil {
		return p, false, nil
	}
	for other := range x.byTID {
		if len(x.byTID) < maxPidfds {
			break
		}
		x.drop(other)
	}
	if x.byTID == nil {
		x.byTID = make(map[int]*pidfdRef)
	}
	x.byTID[tid] = p
	p.users++
	return p, false, nil
}

// drop removes a pidfd from the table. mu is held.
func (x *pidfds) drop(tid int) {
	p := x.byTID[tid]
	delete(x.byTID, tid)
	x.give(p)
}

// give ends a use of a pidfd. mu is held.
func (x *pidfds) give(p *pidfdRef) {
	if p.users--; p.users == 0 {
		_ = unix.Close(p.fd)
	}
}

// close closes the pidfds that are not in use, and the others when their use
// ends.
func (x *pidfds) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for tid := range x.byTID {
		x.drop(tid)
	}
}

// info asks the kernel about a thread (Linux 6.13).
func (x *pidfds) info(tid int) (unix.PidfdInfo, error) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_PID | unix.PIDFD_INFO_CREDS}
	err := x.with(tid, func(pidfd int) error { return unix.IoctlPidfdInfo(pidfd, &info) })
	return info, err
}

// owner returns the user and group that own the sockets of the thread.
func (x *pidfds) owner(tid int) (owner, error) {
	if i, err := x.info(tid); err == nil {
		return owner{int(i.Fsuid), int(i.Fsgid)}, nil
	}
	return ownerOf(tid)
}

// tgid returns the process of the thread.
func (x *pidfds) tgid(tid int) (int, error) {
	if i, err := x.info(tid); err == nil {
		return int(i.Tgid), nil
	}
	return tgidOf(tid)
}

// getFD duplicates descriptor fd of the thread. It is part of a look, because
// it may wait for an exec of the process, which waits for the files that it
// closes.
func (x *pidfds) getFD(tid, fd int) (n int, err error) {
	err = x.with(tid, func(pidfd int) error {
		n, err = withRoom(func() (int, error) { return unix.PidfdGetfd(pidfd, fd, 0) })
		if err != nil {
			return fmt.Errorf("launch: descriptor %d of %d: %w", fd, tid, err)
		}
		return nil
	})
	if err != nil {
		return -1, err
	}
	return n, nil
}
