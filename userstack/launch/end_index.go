// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"os"
	"strconv"
	"sync"
	"time"
)

// endIndex finds sockets in the processes of the program. If many connections
// search at the same time, one search serves all of them.
type endIndex struct {
	looks *looks

	mu    sync.Mutex
	begun time.Time // start of the search that filled at
	at    map[uint64]endPlace
}

// endPlace is where a socket was seen.
type endPlace struct{ pid, fd int }

// find returns a duplicate of the socket with that inode, or -1. It only uses a
// search that began after the call.
func (x *endIndex) find(inode uint64) int { return x.findSince(inode, time.Now()) }

// findSince is like find, but also uses a search that began after since.
func (x *endIndex) findSince(inode uint64, since time.Time) int {
	x.mu.Lock()
	if x.begun.Before(since) {
		x.begun = time.Now()
		x.at = make(map[uint64]endPlace)
		for _, pid := range descendants(os.Getpid()) {
			for _, fd := range numbers("/proc/" + strconv.Itoa(pid) + "/fd") {
				if ino, err := socketInode(pid, fd); err == nil {
					x.at[ino] = endPlace{pid, fd}
				}
			}
		}
	}
	p, ok := x.at[inode]
	x.mu.Unlock()
	if !ok {
		return -1
	}
	app, err := x.looks.socket(nil, p.pid, p.fd, inode, lookPatience)
	if err != nil {
		return -1
	}
	return app
}

// place returns where a socket was found last.
func (x *endIndex) place(inode uint64) (endPlace, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, ok := x.at[inode]
	return p, ok
}

// descendants returns the processes that descend from root. Daemons are
// included, because the launcher is a subreaper.
func descendants(root int) []int {
	children := make(map[int][]int)
	for _, pid := range numbers("/proc") {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			continue
		}
		if parent, err := statusInt(b, "PPid:"); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	var all []int
	for next := children[root]; len(next) > 0; next = next[1:] {
		all = append(all, next[0])
		next = append(next, children[next[0]]...)
	}
	return all
}

// numbers returns the entries of a directory whose names are numbers.
func numbers(dir string) []int {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var nums []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			nums = append(nums, n)
		}
	}
	return nums
}
