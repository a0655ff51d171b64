// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"cmp"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// The launcher keeps a copy of the end of a pair that it passed to the service.
// A service that dies closes its own descriptor. Without the copy, the program
// would then read an end of file in the middle of the stream. A service that
// runs ends the pair itself and reports it (EventBroken, EventClosed). The
// launcher then closes its copy, over which no byte is ever sent. If the
// session ends without such an event, the launcher resets the pair.

const (
	// endCopyShare is the part of the launcher's descriptors that copies of
	// ends may use: 1/endCopyShare. Further connections have no copy.
	endCopyShare = 2
	// releaseTime limits the wait until a service whose session ended is dead, or
	// has released a connection. Until then it may still read.
	releaseTime = 5 * time.Second
	// releaseTick is the interval at which the launcher checks whether the
	// service has released the connection.
	releaseTick = 20 * time.Millisecond
	// findTime is how long the program's end may not be found, for example
	// while it is passed from one process to another.
	findTime = 500 * time.Millisecond // less than a service waits for BrokenDone
)

// maxEndCopies returns the largest number of copies of ends in this process.
func maxEndCopies() int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return int64(min(l.Cur, 1<<30) / endCopyShare)
}

// keepEnd keeps the launcher's copy of the end that was passed to the service,
// or closes it if there are too many copies.
func (c *conn) keepEnd() {
	if !c.s.endCopies.take() {
		c.s.log.Debug("too many connections to see a reset of each if the service dies", "conn", c.cc.ID())
		c.mu.Lock()
		c.pair.closeEnd()
		c.mu.Unlock()
	}
}

// pass passes the end to the service. If it fails, nobody reads from the pair.
func (c *conn) pass() bool {
	if err := c.cc.Attach(c.pair.end); err != nil {
		c.s.log.Debug("cannot pass a socketpair to the service", "conn", c.cc.ID(), "err", err)
		return false
	}
	c.keepEnd()
	return true
}

// endUnattached ends a connection that the program has seen as established, but
// whose end could not be passed to the service.
func (c *conn) endUnattached() {
	_ = c.cc.Cancel() // if the session still exists, the service tells the peer
	if uncertain(c.pair.end) {
		c.reset(unix.ECONNRESET)
	}
	c.mu.Lock()
	c.pair.closeEnd()
	c.mu.Unlock()
	c.s.sockets.retire(c)
}

// closed ends a connection after broker.EventClosed, whose errno is e. If the
// service never read from the pair, or could not announce that it does not read
// any more, the program sees a reset.
func (c *conn) closed(e syscall.Errno) {
	defer c.drop()
	if c.pair.end < 0 || e == 0 && !broker.MarkedUnread(c.pair.end) || !uncertain(c.pair.end) {
		return
	}
	c.s.stats.broken()
	c.reset(cmp.Or(e, unix.ECONNRESET))
}

// drop closes the launcher's copy of the end, if there is one.
func (c *conn) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair.end >= 0 {
		c.pair.closeEnd()
		c.s.endCopies.give()
	}
}

// sessionEnded ends a connection whose session with the service has ended. The
// program first reads the bytes that are in the pair and then sees a reset,
// unless it closed its end or has read the end of file of the peer. If the CLC
// handshake was not over, the launcher may be able to carry the connection
// itself: then sessionEnded returns true.
func (c *conn) sessionEnded() (carriedHere bool) {
	if c.pair.end < 0 || !c.awaitRelease() || !uncertain(c.pair.end) {
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

// awaitRelease waits until the service does not read from the pair any more. It
// returns false if this is not certain. The service may send to the peer the bytes
// that are put into the pair earlier.
func (c *conn) awaitRelease() bool {
	limit := time.NewTimer(releaseTime)
	defer limit.Stop()
	tick := time.NewTicker(releaseTick)
	defer tick.Stop()
	for uncertain(c.pair.end) && !broker.MarkedUnread(c.pair.end) {
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

// reset makes the next close of the service's end, or of the launcher's copy, a
// reset: the kernel reports ECONNRESET on a stream socket whose peer closes
// with unread data. e is the error for SO_ERROR.
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

// leaveUnread makes sure that there is unread data in the service's end. It
// returns false if the program shut down or closed its end, or if the end
// cannot be found.
func (c *conn) leaveUnread() bool {
	for begin := time.Now(); ; time.Sleep(releaseTick) {
		// Bytes that the program wrote and nobody read have the same effect.
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
		if c.pair.end >= 0 && pollHup(c.pair.end) || c.s.ctx.Err() != nil || time.Since(begin) > findTime {
			return false
		}
	}
}

// program returns a duplicate of the program's end of the pair, or -1 if it is
// not found. It looks at the last known place, and then at all descriptors of
// all processes of the program.
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
