// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// All descriptors of a socket have to show the same connection. The launcher can only
// replace the descriptor that a call names. So it replaces none if the socket has another
// one: a duplicate in the same process, one that another process has inherited, or one that
// was passed over a unix socket. It searches when connect() begins, so that SMC is not
// announced on such a socket. It searches again after it has replaced the descriptor, when
// no more duplicates of the socket can be made from it: another thread may have made one
// during the handshake.
//
// The search does not find descriptors that are in the queue of a unix socket, or in a
// process that does not belong to the launch. It reads the link of each descriptor. If that
// takes long, because programs have many, most connections are made without a search: with
// 10,000 connections, each further one would cost tens of milliseconds. Programs that have
// so many sockets do not duplicate those that are not connected.

var (
	// errShared means that the program has several descriptors of a socket.
	errShared = errors.New("launch: the descriptor was duplicated")
	// errTired means that nobody searched, because searches take long.
	errTired = errors.New("launch: too many descriptors to search")
	// errHidden means that the launcher may not see the descriptors of a process of the
	// program.
	errHidden = errors.New("launch: the descriptors of a process are hidden")
)

const (
	// forkTime is how long unique waits at least for the end of a copy in another process,
	// and forkLooks how often, each time twice as long. Between fork and exec, a child has
	// all descriptors of its parent.
	forkTime  = time.Millisecond
	forkLooks = 2
)

// unique returns an error unless n's descriptor is the only one of the socket in the
// processes of the program. If n's descriptor is another socket by now, there must be none.
// lone says that only the thread of n can make another one. stack is the session with the
// stack that has the socket, or nil: a stack that this launcher has started, which descends
// from it, does not count.
//
// It searches always. copied, for each connect(), does not.
func (x *endIndex) unique(n *notif, inode uint64, stack Broker) (lone bool, err error) {
	return x.uniqueIf(n, inode, stack, true)
}

// copied is unique for a socket that may be replaced if it is not known to have another
// descriptor: it does not search if there are too many, and too little time has passed.
func (x *endIndex) copied(n *notif, inode uint64, stack Broker) (lone bool, err error) {
	lone, err = x.uniqueIf(n, inode, stack, false)
	if errors.Is(err, errTired) {
		return false, nil
	}
	return lone, err
}

func (x *endIndex) uniqueIf(n *notif, inode uint64, stack Broker, always bool) (lone bool, err error) {
	tgid, err := x.looks.threads.tgid(n.tid())
	if err != nil {
		return false, err
	}
	known := 0
	if stack != nil {
		known = stack.PID()
	}
	for i := 0; ; i++ {
		var elsewhere bool
		lone, elsewhere, err = x.uniqueNow(n, tgid, inode, known, always)
		if !elsewhere || err == nil || i == forkLooks {
			return lone, err
		}
		time.Sleep(forkTime << i)
	}
}

// uniqueNow is unique for a thread of process tgid. elsewhere says that the error is about
// another process.
func (x *endIndex) uniqueNow(n *notif, tgid int, inode uint64, stack int, always bool) (lone, elsewhere bool, err error) {
	others, lone, err := x.others(n, tgid, inode, stack, always)
	if err != nil || len(others) == 0 && tgid == n.tid() {
		return lone, false, err
	}
	// To compare descriptor tables, the kernel waits for an exec of the process.
	err = x.looks.try(n, n.tid(), lookPatience, func() error {
		for _, p := range others {
			same, known := sameTable(p.pid, tgid)
			if p.fd == n.fdArg() && same && known || filters(p.pid) <= filters(os.Getpid()) {
				continue // a process without the filter is a child that this process is making
			}
			return errShared
		}
		if tgid == n.tid() {
			return nil
		}
		if same, known := sameTable(tgid, n.tid()); !same && known {
			return errShared // the thread's own table has copies of all descriptors
		}
		return nil
	})
	return lone, len(others) > 0, err
}

// others returns the descriptors of the socket in other processes than that of n. It
// returns an error if this process has another one.
func (x *endIndex) others(n *notif, tgid int, inode uint64, stack int, always bool) (others []endPlace, lone bool, err error) {
	since := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !always && x.begun.Before(since) && x.tired(since) {
		return nil, false, errTired
	}
	x.search(since)
	if !slices.Contains(x.procs.all, tgid) {
		x.searchProcess(tgid)
	}
	if x.hidden {
		return nil, false, errHidden
	}
	lone = x.onlyProcess(tgid, stack) && threadsOf(tgid) == 1
	p, ok := x.at[inode]
	if !ok {
		return nil, lone, nil
	}
	for _, p := range append([]endPlace{p}, x.more[inode]...) {
		switch {
		case p.pid == stack:
		case p.pid != tgid:
			others = append(others, p)
		case p.fd != n.fdArg():
			return nil, false, errShared
		}
	}
	return others, lone && len(others) == 0, nil
}

// onlyProcess reports whether there is no other process of the program than pid. x.mu is held.
func (x *endIndex) onlyProcess(pid, stack int) bool {
	return !slices.ContainsFunc(x.procs.all, func(p int) bool { return p != pid && p != stack })
}

// kcmpFiles is KCMP_FILES (linux/kcmp.h).
const kcmpFiles = 2

// sameTable reports whether two tasks have the same descriptor table, and whether the kernel
// tells it. It is part of a look.
func sameTable(a, b int) (same, known bool) {
	r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	return r == 0, e == 0
}

// reasonOfCopy returns why a connection is TCP after an error of unique.
func reasonOfCopy(err error) string {
	switch {
	case errors.Is(err, errShared):
		return ReasonDuplicated
	case errors.Is(err, errBusy):
		return ReasonBusy
	}
	return ReasonNoAccess
}
