// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// endIndex finds the descriptors of sockets in the processes of the program. If many
// connections search at the same time, one search serves all of them.
type endIndex struct {
	looks *looks

	mu     sync.Mutex
	procs  processes
	begun  time.Time // start of the search that filled at
	ended  time.Time // its end
	read   int       // the descriptors that it read
	at     map[uint64]endPlace
	more   map[uint64][]endPlace // the other descriptors of a socket that has several
	hidden bool                  // a process of the program could not be searched
}

// endPlace is where a socket was seen.
type endPlace struct{ pid, fd int }

// find returns a duplicate of the socket with that inode, or -1. It only uses a
// search that began after the call.
func (x *endIndex) find(inode uint64) int { return x.findSince(inode, time.Now()) }

// findSince is like find, but also uses a search that began after since.
func (x *endIndex) findSince(inode uint64, since time.Time) int {
	x.mu.Lock()
	x.search(since)
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

// search fills the index unless a search that began after since has done so. x.mu is held.
func (x *endIndex) search(since time.Time) {
	if !x.begun.Before(since) {
		return
	}
	x.begun = time.Now()
	if x.at == nil {
		x.at, x.more = make(map[uint64]endPlace), make(map[uint64][]endPlace)
	}
	clear(x.at)
	clear(x.more)
	x.hidden, x.read = false, 0
	for _, pid := range x.procs.list() {
		x.searchProcess(pid)
	}
	x.ended = time.Now()
}

const (
	// fewDescriptors are searched at each connect().
	fewDescriptors = 512
	// searchPause is the pause after a search of more, for each descriptor: twenty times what
	// reading its link takes.
	searchPause = 100 * time.Microsecond
)

// tired reports whether the last search had so much to read that it is too early for another
// one. x.mu is held.
func (x *endIndex) tired(now time.Time) bool {
	return x.read > fewDescriptors && now.Sub(x.ended) < time.Duration(x.read)*searchPause
}

// searchProcess adds the sockets of a process.
func (x *endIndex) searchProcess(pid int) {
	dir := "/proc/" + strconv.Itoa(pid)
	n, err := x.searchTable(pid, dir+"/fd")
	if errors.Is(err, unix.EACCES) && filters(pid) > filters(os.Getpid()) && x.procs.hides(pid) {
		x.hidden = true
	}
	if n > 0 || err != nil {
		return
	}
	// The main thread may have ended before the others.
	for _, tid := range numbers(dir + "/task") {
		if n, _ = x.searchTable(pid, dir+"/task/"+strconv.Itoa(tid)+"/fd"); n > 0 {
			return
		}
	}
}

// searchTable adds the sockets of a descriptor table, and returns how many descriptors it
// has. Reading their links does not wait for the program.
func (x *endIndex) searchTable(pid int, path string) (n int, err error) {
	d, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	fds := numbersIn(d)
	x.read += len(fds)
	for _, fd := range fds {
		ino, err := inodeAt(int(d.Fd()), fd)
		if err != nil {
			continue
		}
		if _, again := x.at[ino]; again {
			x.more[ino] = append(x.more[ino], endPlace{pid, fd})
		} else {
			x.at[ino] = endPlace{pid, fd}
		}
	}
	return len(fds), nil
}

// inodeAt returns the inode of the socket that is descriptor fd in a directory of
// descriptors of /proc.
func inodeAt(dir, fd int) (uint64, error) {
	var name [16]byte
	link := strconv.AppendInt(name[:0], int64(fd), 10)
	link = append(link, 0)
	var buf [64]byte
	// Raw: the kernel answers at once, so Go's scheduler need not hear of each of these calls.
	n, _, e := unix.RawSyscall6(unix.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(&link[0])),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0)
	if e != 0 {
		return 0, e
	}
	return parseSocketLink(buf[:n])
}

// place returns where a socket was found last.
func (x *endIndex) place(inode uint64) (endPlace, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, ok := x.at[inode]
	return p, ok
}
