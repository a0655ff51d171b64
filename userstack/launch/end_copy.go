// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"cmp"
	"errors"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// A keeper is the launcher's copy of the end of a pair that it passed to the
// service: a service that dies closes its own, which would look to the program
// like an end of file at any place of the stream. As long as the service lives,
// it ends the pair in its own way and says so (EventBroken, EventClosed), upon
// which the launcher lets go of the keeper; no byte ever goes through it. When
// the session ends without that, the launcher makes a reset of it.

const (
	// keeperShare is the part of the launcher's descriptors that keepers may
	// take (one of so many). Connections beyond have none.
	endCopyShare = 2
	// letGoTime bounds the wait for a service whose session ended to die, or to
	// let go of a connection. One that does neither might still read.
	letGoTime = 5 * time.Second
	// letGoTick is how often it is asked whether it let go.
	letGoTick = 20 * time.Millisecond
	// findTime is how long the program's end may be out of reach, such as on
	// its way from one process to another.
	findTime = 500 * time.Millisecond // less than a service waits for BrokenDone
)

// maxKeepers is how many keepers this process may have.
func maxEndCopies() int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return int64(min(l.Cur, 1<<30) / endCopyShare)
}

// keepEnd makes the launcher's copy of the end that was passed to the service a
// keeper.
func (c *conn) keepEnd() {
	if !c.s.endCopies.take() {
		c.s.log.Debug("too many connections to see a reset of each if the service dies", "conn", c.cc.ID())
		c.mu.Lock()
		c.pair.closeEnd()
		c.mu.Unlock()
	}
}

// pass passes the end to the service. If it fails, nobody will ever read from
// the pair.
func (c *conn) pass() bool {
	if err := c.cc.Attach(c.pair.end); err != nil {
		c.s.log.Debug("cannot pass a socketpair to the service", "conn", c.cc.ID(), "err", err)
		return false
	}
	c.keepEnd()
	return true
}

// unserved ends a connection that the program took for made and whose end could
// not be passed to the service.
func (c *conn) unserved() {
	_ = c.cc.Cancel() // where the session lives on, the peer is told
	if uncertain(c.pair.end) {
		c.reset(unix.ECONNRESET)
	}
	c.mu.Lock()
	c.pair.closeEnd()
	c.mu.Unlock()
	c.s.sockets.retire(c)
}

// closed ends a connection of which the service has said the last. If it never
// read from the pair, or could not announce that it reads no more, the program
// sees a reset: e is the errno of broker.EventClosed.
func (c *conn) closed(e syscall.Errno) {
	defer c.drop()
	if c.pair.end < 0 || e == 0 && !broker.LetGo(c.pair.end) || !uncertain(c.pair.end) {
		return
	}
	c.s.stats.broken()
	c.reset(cmp.Or(e, unix.ECONNRESET))
}

// drop closes the keeper, if there is one.
func (c *conn) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair.end >= 0 {
		c.pair.closeEnd()
		c.s.endCopies.give()
	}
}

// lost ends a connection whose session with the service ended before it: the
// program sees a reset after what it was sent, unless it closed its end or was
// told of the peer's end of file. If the CLC handshake was not over, the launcher
// may be able to carry it itself: lost returns true then.
func (c *conn) sessionEnded() (carriedHere bool) {
	if c.pair.end < 0 || !c.letGo() || !uncertain(c.pair.end) {
		c.drop()
		return false
	}
	if c.takeBack() {
		c.s.endCopies.give()
		return true
	}
	c.abortOwn()
	c.reset(unix.ECONNRESET)
	c.drop()
	return false
}

// letGo waits until the service reads no more from the pair, and reports false
// if that is not certain. What is put into the pair earlier might be sent to
// the peer.
func (c *conn) letGo() bool {
	limit := time.NewTimer(letGoTime)
	defer limit.Stop()
	tick := time.NewTicker(letGoTick)
	defer tick.Stop()
	for uncertain(c.pair.end) && !broker.LetGo(c.pair.end) {
		select {
		case <-c.broker.Dead():
			return true
		case <-tick.C:
		case <-limit.C:
			c.s.log.Warn("the stack holds a connection but does not serve it", "conn", c.cc.ID(), "remote", c.remote)
			return false
		case <-c.s.ctx.Done():
			return false
		}
	}
	return true
}

// uncertain tells whether the program, which holds the other end, may still be
// waiting for data: it has not closed its end, and the service has not told it
// of the end of file.
func uncertain(end int) bool {
	if pollHup(end) {
		return false
	}
	// Nothing is sent: only whether something could be is asked.
	err := unix.Sendto(end, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	return !errors.Is(err, unix.EPIPE)
}

// reset makes the next close of the service's end, or of the keeper, a reset:
// the kernel gives ECONNRESET to a stream socket whose peer closes with
// something unread. e is what SO_ERROR tells.
func (c *conn) reset(e syscall.Errno) {
	c.mu.Lock()
	c.report.err = e
	c.mu.Unlock()
	if !c.leaveUnread() {
		return
	}
	c.mu.Lock()
	c.report.inPair = true
	c.mu.Unlock()
}

// spoil sees to it that something is unread in the service's end, and reports
// false if the program shut its end down, closed it, or has it out of reach.
func (c *conn) leaveUnread() bool {
	for begin := time.Now(); ; time.Sleep(letGoTick) {
		// What the program wrote, and nobody read, does as well.
		if c.pair.end >= 0 {
			if n, err := unix.IoctlGetInt(c.pair.end, unix.SIOCINQ); err == nil && n > 0 {
				return true
			}
		}
		if app := c.program(); app >= 0 {
			err := unix.Sendto(app, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
			_ = unix.Close(app)
			if err != nil && !errors.Is(err, unix.EAGAIN) {
				c.s.log.Debug("cannot reset a connection", "conn", c.cc.ID(), "err", err)
				return false
			}
			return true
		}
		if c.pair.end < 0 || pollHup(c.pair.end) || c.s.ctx.Err() != nil || time.Since(begin) > findTime {
			return false
		}
	}
}

// program duplicates the program's end of the pair, looking where it was last
// and then at all descriptors of all processes of the program. It returns -1 if
// it is not there.
func (c *conn) program() int {
	c.mu.Lock()
	tgid, fd, inode := c.at.pid, c.at.fd, c.pair.inode
	if c.waits {
		defer c.mu.Unlock()
		if app, err := unix.FcntlInt(uintptr(c.pair.app), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			return app
		}
		return -1
	}
	c.mu.Unlock()
	if app, err := c.s.looks.socket(nil, tgid, fd, inode, lookPatience); err == nil {
		return app
	}
	return c.s.ends.find(inode)
}

// endIndex finds sockets in the processes of the program. Many connections may
// look at once: one look serves all that waited for it.
type endIndex struct {
	looks *looks

	mu    sync.Mutex
	begun time.Time // of the look that gave at
	at    map[uint64]endPlace
}

// endPlace is where a socket was seen.
type endPlace struct{ pid, fd int }

// find duplicates the socket with that inode, or returns -1. No look is used
// that began before the call.
func (x *endIndex) find(inode uint64) int { return x.findSince(inode, time.Now()) }

// findSince is find that makes do with a look since then.
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

// descendants returns the processes that descend from root. As the launcher is
// a subreaper, daemons do, too.
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
