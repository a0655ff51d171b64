// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"smcr/guard"
	"smcr/userstack/broker"
)

// A Session is a Broker that Config.Redial opened. Run closes it.
type Session interface {
	Broker
	// Close ends the session.
	Close() error
}

const (
	// redialFirst is the pause before the first attempt to find a stack again.
	// The pause doubles up to redialLast. If the program makes or accepts a
	// connection meanwhile, the next attempt is after redialSoon.
	redialFirst = 20 * time.Millisecond
	redialSoon  = 100 * time.Millisecond
	redialLast  = 2 * time.Second
	// endTime is how long a session that is over is kept open, for callers that
	// wait until the process of its service has ended. It is longer than these
	// waits.
	endTime = 15 * time.Second
	// resentTime is how much older than its connection a SYN-ACK may be if it
	// was retransmitted.
	resentTime = time.Minute
	// clockSlack is the inaccuracy of the age of a connection that the kernel
	// reports.
	clockSlack = 50 * time.Millisecond
)

// sessions has the launcher's session with the stack, and information about
// earlier ones.
type sessions struct {
	first  Broker                 // nil: all connections are native
	now    atomic.Pointer[Broker] // the last one
	redial func(context.Context) (Session, error)
	nudge  chan struct{} // there was a connection that could have used a stack
	here   here          // the addresses for which no session is needed

	// The fields that follow needs. They are set before it is called.
	ctx   context.Context
	log   *slog.Logger
	tasks *tasks
	renew func() // marks all listening sockets in the last session

	mu         sync.Mutex
	lastEnded  Broker    // the last session that was found to be over
	maybeAlive int       // number of sessions that are over and whose service may still run
	lastDead   time.Time // when the last of the other services was found to be dead
}

func newSessions(first Broker, redial func(context.Context) (Session, error)) *sessions {
	x := &sessions{first: first, redial: redial, nudge: make(chan struct{}, 1)}
	x.now.Store(&first)
	if b, ok := first.(*noStack); ok {
		x.lastEnded = b // it has announced nothing
	}
	return x
}

// last returns the last session, also if it is over, or nil.
func (x *sessions) last() Broker { return *x.now.Load() }

// mayReturn reports whether there may be a new session after the present one.
func (x *sessions) mayReturn() bool { return x.redial != nil && x.first != nil }

// close closes a session unless the caller of Run owns it.
func (x *sessions) close(b Broker) {
	if c, ok := b.(Session); ok && b != x.first {
		_ = c.Close()
	}
}

// live returns the session with the stack, or nil if there is none. If the
// session is over, it requests an earlier redial.
func (x *sessions) live() Broker {
	b := x.last()
	if b == nil {
		return nil
	}
	select {
	case <-b.Done():
		select {
		case x.nudge <- struct{}{}:
		default:
		}
		return nil
	default:
		return b
	}
}

// follow waits for the end of the session, and of each that comes after it. If another
// process has become the stack, the next session is with this process.
func (x *sessions) follow() {
	b := x.last()
	if _, none := b.(*noStack); none {
		b = nil
		if x.redial != nil {
			b = x.found()
		}
	}
	for b != nil {
		select {
		case <-b.Done():
		case <-x.ctx.Done():
			return
		case <-b.HandedOver():
			if x.redial != nil {
				if next := x.change(b); next != nil {
					b = next
					continue
				}
			}
			select {
			case <-b.Done():
			case <-x.ctx.Done():
				return
			}
		}
		x.ended(b)
		if x.redial == nil {
			return
		}
		b = x.found()
	}
}

// change opens a session with the process that is the stack now, marks all listening
// sockets in it, and returns it. Session b continues until its last connection has ended.
// change returns nil if b ends before, or the program. While there is no new session,
// connections use b.
func (x *sessions) change(b Broker) Broker {
	said := ""
	for pause := redialFirst; ; pause = min(2*pause, redialLast) {
		next, err := x.redial(x.ctx)
		if err == nil && x.handedOverToo(next) {
			x.leave(next)
		} else if err == nil {
			var now Broker = next
			x.now.Store(&now)
			x.log.Info("another process is the stack now: new connections use it")
			x.renew()
			x.leave(b)
			return now
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			x.log.Info("another process is the stack now: connections still use the one before", "err", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			continue
		case <-b.Done():
		case <-x.ctx.Done():
		}
		timer.Stop()
		return nil
	}
}

// handedOverToo reports whether a new session is with a process that has handed over: it says so
// before its sockets have lost their names, and then such a session ends at once.
func (x *sessions) handedOverToo(b Broker) bool {
	timer := time.NewTimer(redialFirst)
	defer timer.Stop()
	select {
	case <-b.HandedOver():
		return true
	case <-b.Done():
		return true
	case <-timer.C:
	case <-x.ctx.Done():
	}
	return false
}

// leave ends session b, for which there is another one, after its last connection.
func (x *sessions) leave(b Broker) {
	b.Leave()
	x.tasks.begin("the wait for the end of a session", func() {
		select {
		case <-b.Done():
		case <-x.ctx.Done():
		}
		x.close(b)
	})
}

// open calls f with the session, and again with the next one if the launcher has left the
// session meanwhile. It returns the session that f used last, or nil if there is none.
func (x *sessions) open(f func(Broker) error) (Broker, error) {
	for {
		b := x.live()
		if b == nil {
			return nil, broker.ErrServiceGone
		}
		if err := f(b); !errors.Is(err, broker.ErrLeft) {
			return b, err
		}
	}
}

// ended records that a session has ended, and waits in a goroutine for the end of its
// service.
func (x *sessions) ended(b Broker) {
	x.mu.Lock()
	x.lastEnded = b
	x.maybeAlive++
	x.mu.Unlock()
	what := "the stack has ended"
	if e, ok := b.(interface{ Err() error }); ok {
		if errors.Is(e.Err(), broker.ErrNoMemory) {
			what = "the session with the stack has ended because the kernel had no memory for a message"
		}
		if fell, ok := errors.AsType[*guard.Error](e.Err()); ok {
			x.tasks.count()
			x.log.Error("internal error, please report it: the session with the stack has ended", "err", fell, "stack", string(fell.Stack))
		}
	}
	if x.redial != nil {
		x.log.Warn(what + ": new connections are TCP until a stack runs again")
	} else {
		x.log.Warn(what + ": new connections are TCP")
	}
	x.tasks.begin("the wait for the end of the stack", func() {
		end := time.NewTimer(endTime)
		defer end.Stop()
		select {
		case <-b.Dead():
			x.mu.Lock()
			x.maybeAlive--
			x.lastDead = time.Now()
			x.mu.Unlock()
		case <-end.C:
		case <-x.ctx.Done():
		}
		x.close(b)
	})
}

// found waits until there is a stack again, marks all listening sockets in the
// new session, and returns this session. It returns nil when the program has
// ended.
func (x *sessions) found() Broker {
	pause := redialFirst
	for last := time.Now(); ; last = time.Now() {
		if !x.awaitRedial(last, pause) {
			return nil
		}
		b, err := x.redial(x.ctx)
		if err != nil {
			x.log.Debug("no stack", "err", err)
			pause = min(2*pause, redialLast)
			continue
		}
		var now Broker = b
		x.now.Store(&now)
		x.log.Info("there is a stack again: connections use SMC-R if the peer does")
		x.renew()
		return now
	}
}

// awaitRedial waits until pause after the last attempt, or less if the program
// could use a stack. It returns false when the program has ended.
func (x *sessions) awaitRedial(last time.Time, pause time.Duration) bool {
	timer := time.NewTimer(time.Until(last.Add(pause)))
	defer timer.Stop()
	nudge := x.nudge
	for {
		select {
		case <-timer.C:
			return true
		case <-nudge:
			nudge = nil // once
			timer.Reset(time.Until(last.Add(min(pause, redialSoon))))
		case <-x.ctx.Done():
			return false
		}
	}
}

// awaitDeath waits until the service of a session that is over has ended, so that its
// eBPF program does not announce SMC any more. It waits no longer than limit.
func (x *sessions) awaitDeath(b Broker, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-b.Dead():
	case <-timer.C:
	case <-x.ctx.Done():
	}
}

// mayHaveAnnounced reports whether a SYN-ACK sent at that time may have announced SMC
// for a stack that has ended. The eBPF program of the stack announces SMC, and
// it ends with the process.
func (x *sessions) mayHaveAnnounced(sent time.Time) bool {
	b, over := x.last(), false
	if b == nil {
		return false
	}
	select {
	case <-b.Done():
		over = true
	default:
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// A session that ended a moment ago is not counted yet.
	return x.maybeAlive > 0 || over && x.lastEnded != b || sent.Before(x.lastDead)
}

// everEnded reports whether a session has ever ended.
func (x *sessions) everEnded() bool {
	b := x.last()
	if b == nil {
		return false
	}
	select {
	case <-b.Done():
		return true
	default:
		return b != x.first
	}
}

// Broker is a session with the stack service. *broker.Client implements it; see
// there for the methods.
type Broker interface {
	Listen(ctx context.Context, sock int) error
	Connect(sock int, req broker.ConnectRequest) (*broker.ClientConn, error)
	Accept(sock int, local, remote netip.AddrPort) (*broker.ClientConn, error)
	Done() <-chan struct{}
	Dead() <-chan struct{}
	HandedOver() <-chan struct{}
	Leave()
	// PID, ByOption, Local and Note are as those of *broker.Client.
	PID() int
	ByOption() bool
	Local() bool
	Note(notes []broker.Note) error
}
