// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// phase is the state of a connection.
type phase uint8

const (
	// phaseConnecting: neither the program nor the service may use it yet.
	phaseConnecting phase = iota
	// phaseCarried: the service carries the bytes of the pair.
	phaseCarried
	// phaseNative: the program has the TCP socket. The conn is kept only until
	// connect() has returned.
	phaseNative
	// phaseFailed: err must be reported.
	phaseFailed
)

// conn is a connection that the service knows. Only the goroutine of its
// attempt (see attempt.run) changes it; others read it.
type conn struct {
	s      *supervisor
	broker Broker // the session that cc belongs to
	cc     *broker.ClientConn
	domain int // AF_INET or AF_INET6
	remote netip.AddrPort
	// blocking says that the socket was blocking at the first connect().
	blocking bool
	trial    trial
	// own is the TCP socket of an accepted connection until the CLC handshake
	// is over, and nil otherwise. Only the goroutine that follows the
	// connection uses it.
	own *broker.Descriptor

	// calls has stopped calls of the program for the attempt, which needs one whenever
	// it wants to place a descriptor.
	calls callQueue
	// detours is for a connection within the host; nil for all others.
	detours *detourQueue

	mu       sync.Mutex
	phase    phase
	tcpInode uint64
	tcp      int // the launcher's duplicate of the TCP socket, or -1
	pair     *pair
	swapped  bool // the program has the pair's end
	local    netip.AddrPort
	report   outcomeReport
	over     bool     // the service has no TCP socket any more
	here     bool     // the launcher relays and keeps tcp
	served   bool     // the service sets the options of tcp
	unready  bool     // accepted and not counted yet: there was no EventReady
	waits    bool     // no call has got the connection yet: the launcher has the program's end
	at       endPlace // where the program's end was last seen
}

// outcomeReport is what the program is told of a connection: that it was made, and its error,
// which SO_ERROR tells once.
type outcomeReport struct {
	connected bool          // connect() returned 0, or another call reported success
	err       syscall.Errno // 0 if there is none, or if it was told
	inPair    bool          // the kernel also reports err, once, after the pair was closed
	// telling is set while a call is being told of err. It is changed without the
	// connection's mutex, because the answer goes into the program's memory.
	telling atomic.Bool
}

// flagTime is how long a socket that was blocking may be non-blocking before
// the launcher concludes that the program set O_NONBLOCK.
const flagTime = 250 * time.Millisecond

// nonblocking reports whether the program has made its socket non-blocking.
// flags reads the socket's status flags. O_NONBLOCK alone is not enough: the
// service sets it for a moment while it connects a blocking socket, and a
// signal may make the program call connect() again in that moment.
func (c *conn) nonblocking(flags func() (int, error)) (bool, error) {
	for end := time.Now().Add(flagTime); ; time.Sleep(time.Millisecond) {
		f, err := flags()
		if err != nil {
			return false, err
		}
		if f&unix.O_NONBLOCK == 0 {
			return false, nil
		}
		if !c.blocking || c.calls.isOver() || time.Now().After(end) {
			return true, nil
		}
	}
}

// carried follows a connection that the service carries until it ends.
func (c *conn) carried() {
	c.s.quiet.count()
	defer c.s.quiet.count()
	defer c.drop()
	defer c.closeOwn()
	if c.detours != nil {
		defer close(c.detours.over)
	}
	defer c.trial.lasts()()
	for {
		if c.here {
			c.relayed()
			return
		}
		select {
		case ev, ok := <-c.cc.Events():
			if !ok {
				if c.sessionEnded() {
					continue
				}
				c.s.sockets.retire(c)
				return
			}
			switch ev.Kind {
			case broker.EventReady:
				c.closeOwn()
				c.ready(ev)
			case broker.EventBroken:
				c.closeOwn()
				c.s.stats.broken()
				c.reset(ev.Errno)
				c.drop()
				if err := c.cc.BrokenDone(); err != nil {
					c.s.log.Debug("broken connection", "err", err)
				}
			case broker.EventDropUrgent:
				c.dropUrgent()
				if err := c.cc.UrgentDropped(); err != nil {
					c.s.log.Debug("urgent data", "conn", c.cc.ID(), "err", err)
				}
			case broker.EventClosed:
				if c.takeBack() {
					c.s.endCopies.give()
					continue
				}
				c.closed(ev.Errno)
				c.trial.end(ev.Carried)
				c.s.stats.ended()
				if ev.Text != "" {
					c.s.log.Debug("connection ended", "conn", c.cc.ID(), "remote", c.remote, "why", ev.Text)
				}
			}
		case d := <-c.detours.requests():
			c.detour(d)
		case <-c.s.ctx.Done():
			c.countLast()
			return
		}
	}
}

// ready counts an accepted connection. The attempt counts the others.
func (c *conn) ready(ev broker.Event) {
	if c.unready {
		c.unready = false
		c.s.countReady(ev)
	}
}

// lastTime limits the wait for messages that the service sent before the
// program ended.
const lastTime = time.Second

// countLast counts a connection of a program that has already ended, if the
// service sent EventReady in time. To find out, it asks the service for an
// option: events that the service sent before arrive before the answer.
func (c *conn) countLast() {
	if !c.unready {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.s.ctx), lastTime)
	defer cancel()
	if _, err := c.cc.GetOption(ctx, 0, unix.SOL_SOCKET, unix.SO_TYPE, 4); err != nil {
		c.s.log.Debug("last word on a connection", "conn", c.cc.ID(), "err", err)
	}
	for {
		select {
		case ev, ok := <-c.cc.Events():
			if !ok {
				return
			}
			if ev.Kind == broker.EventReady {
				c.ready(ev)
			}
		default:
			return
		}
	}
}

func (s *supervisor) countReady(ev broker.Event) {
	if ev.Mode == broker.ModeTCP {
		s.stats.tcp(ev.Text)
		return
	}
	s.stats.mode(ev.Mode)
}

// isOver reports whether c was retired.
func (c *conn) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}
