// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"smcr/guard"
)

// End is the relay's end of a program's connection: a [Socket], or the model of
// one in a simulation.
type End interface {
	io.Reader
	io.Writer
	// SetReadDeadline ends the calls that wait to read if t is in the past.
	SetReadDeadline(t time.Time) error
	// CloseWrite shuts down writing.
	CloseWrite() error
	// Close ends all calls that wait.
	Close() error
	// HungUp reports whether the program has closed its end, rather than only shut
	// down writing. After this side has shut down writing too, the two cases cannot be
	// told apart, and HungUp is true in both.
	HungUp() bool
	// Peek returns, without waiting, what a read of one byte would return: 0 or 1, and
	// an error. The error is EAGAIN if the read would wait, and ECONNRESET if the program has
	// reset the connection behind the end of its stream.
	Peek() (n int, err error)
	// Unread returns how many bytes the program has written that are not read yet.
	Unread() int
	// AwaitHangUp waits until HungUp is true. AwaitInput waits until a read would not
	// wait, and returns what Peek returns then. Both fail when this side closes the
	// socket, or when its read deadline has passed.
	AwaitHangUp() error
	AwaitInput() (n int, err error)
}

// Stream is the network side of a relay: a *userstack.Conn.
//
// ReadFrom sends to the peer what it reads from the [End] of the relay. It returns nil at
// the end of file, EPIPE if the peer has closed the connection, and otherwise the error of
// the End. WriteTo writes what the peer sends to the End or to io.Discard. It returns nil
// at the end of file, net.ErrClosed after Close, and otherwise the error of the End.
type Stream interface {
	io.ReaderFrom
	io.WriterTo
	CloseWrite() error
	Close() error
	// Abort closes the connection and resets it for the peer.
	Abort() error
	// Done returns a channel that is closed when the connection has ended on both
	// sides.
	Done() <-chan struct{}
}

// ErrRides is the error of ReadFrom and WriteTo of a [Stream] that moves the bytes without
// the relay from then on. [Relay.Carry] returns then, and can be called again.
var ErrRides = errors.New("relay: nothing to do but what the stream does alone")

// Relay moves bytes between a program's connection and the network until both
// directions have ended. Each way to end a connection on one side leads to one on the
// other side:
//
//	program                         network
//	shutdown(SHUT_WR), close     -> CloseWrite
//	the same after end of file   -> Close: neither side can send more
//	reset: a close with data     -> Abort
//	unread, or SO_LINGER 0
//	MSG_OOB                     <-> urgent byte, at its place in the stream
//	end of file                  <- peer sends no more
//	ECONNRESET                   <- reset
//	                                (after the end of file: EPIPE, as TCP does)
//
// What a program wrote before it closed its end still goes to the peer. If the peer sends
// data meanwhile, this takes at most DrainIdle without progress, and at most DrainLimit in
// all; then the connection is reset.
//
// The exported fields must be set before the first call. Run calls Carry and Finish.
type Relay struct {
	App End
	Net Stream
	// ResetProgram has the close of App reset the program's connection.
	ResetProgram func()
	// Detach, if not nil, makes Net stop using App. It is called before App is closed.
	Detach func()
	// Ended, if not nil, reports whether Net has carried both streams to their ends by itself, and has ended App's and its own.
	Ended func() bool
	// Sending, if not nil, reports whether Net is about to send something that it has read: the peer has room for it.
	Sending func() bool
	// Carried, if not nil, is called when no more bytes are moved, before the
	// connection is closed.
	Carried func()
	// DrainIdle and DrainLimit bound the wait for the data of a program that has closed
	// its end with unread data of the peer: DrainIdle is the time without progress,
	// DrainLimit the time in all. 0 means 1 second and 10 seconds.
	DrainIdle, DrainLimit time.Duration
	// Guard catches panics. A panic resets the connection.
	Guard *guard.Guard

	once        sync.Once
	appHungUp   atomic.Bool   // the program closed its end, or both sides shut down writing
	reset       atomic.Bool   // the connection was reset, not closed
	resetBehind atomic.Bool   // the program has reset the connection behind the end of its stream
	undelivered atomic.Bool   // data came after the program had closed its end
	upRead      chan struct{} // closed when up does not read from the program any more
	downOver    chan struct{} // closed when down has returned
	rides       atomic.Bool   // both directions returned ErrRides
	working     atomic.Int32  // how many directions are running
}

// Run moves bytes until the connection has ended, or until stop is closed, which resets
// the connection. It reports whether the connection was reset rather than closed.
func (r *Relay) Run(stop <-chan struct{}) (reset bool) {
	r.Carry(stop)
	return r.Finish()
}

// End closes both sides in place of Carry and Finish, without waiting for anything, if the stream has carried both directions to their
// ends in order, and the program has not reset the connection behind that. Otherwise it does nothing and returns false.
func (r *Relay) End() bool {
	if !r.ended() || r.undelivered.Load() || r.resetAfterEnd() {
		return false
	}
	r.Finish()
	return true
}

func (r *Relay) ended() bool { return r.Ended != nil && r.Ended() }

// Finish closes both sides after the last call of Carry has returned. It reports whether
// the connection was reset rather than closed.
func (r *Relay) Finish() (reset bool) {
	r.detach()
	if r.Carried != nil {
		r.Carried()
	}
	_ = r.Net.Close()
	_ = r.App.Close()
	return r.reset.Load()
}

// detach makes Net stop using App. App must not be closed before.
func (r *Relay) detach() {
	if r.Detach != nil {
		r.Detach()
	}
}

// Carry moves bytes until both directions have ended, by the relay or without it, or until the stream moves them
// without the relay. In the second case rides is true, and Carry may be called again.
// The connection is reset when stop is closed.
func (r *Relay) Carry(stop <-chan struct{}) (rides bool) {
	r.rides.Store(false)
	if r.ended() {
		r.guarded("the end of a relay", func() { r.reset.Store(r.close()) })
		return false
	}
	r.upRead, r.downOver = make(chan struct{}), make(chan struct{})
	done := make(chan struct{})
	r.working.Store(2)
	go r.direction("the relay of what a program writes", r.up, done)
	go r.direction("the relay of what a peer sends", r.down, done)
	r.guarded("the watch on a relay", func() { r.watch(stop, done) })
	<-done
	return r.rides.Load()
}

// direction calls carry, which moves the bytes of one direction. It closes done if the
// other direction has ended already.
func (r *Relay) direction(what string, carry func() (reset bool), done chan struct{}) {
	defer func() {
		if r.working.Add(-1) == 0 {
			close(done)
		}
	}()
	r.guarded(what, func() {
		if carry() {
			r.reset.Store(true)
		}
	})
}

// guarded calls f, and resets the connection if f panics.
func (r *Relay) guarded(what string, f func()) {
	if r.Guard.Do(what, f) != nil {
		r.cut()
	}
}

// watch ends the connection because of events that the two directions cannot see. It
// returns when done is closed.
func (r *Relay) watch(stop, done <-chan struct{}) {
	select {
	case <-stop:
	case <-r.Net.Done():
		// Both sides closed the connection, or it was reset while the program
		// did not read or write. The program would not notice that reset.
	case <-done:
	}
	select {
	case <-done: // nothing is left to end
	default:
		r.cut()
	}
}

const (
	// drainIdle and drainLimit are the defaults of the fields of Relay. drainTick is
	// the time between two checks.
	drainIdle  = time.Second
	drainLimit = 10 * time.Second
	drainTick  = 10 * time.Millisecond

	// restTime is how long what arrived before a reset may take to be written to the
	// program, which has room for most of it, and what the program wrote before one to be sent.
	restTime = 2 * time.Second
)

// cut resets both sides.
func (r *Relay) cut() {
	r.once.Do(func() {
		_ = r.Net.Abort()
		r.detach()
		if !r.appHungUp.Load() {
			r.reset.Store(true)
			_ = r.App.SetReadDeadline(time.Unix(1, 0))
			<-r.upRead
			r.ResetProgram()
		}
		_ = r.App.Close()
	})
}

// carryUp sends what the program writes, until the program writes no more.
func (r *Relay) carryUp() error {
	defer close(r.upRead)
	_, err := r.Net.ReadFrom(r.App)
	return err
}

// up moves what the program writes to the network, and then ends the network side as the
// program ended its side. It reports whether the connection was reset.
func (r *Relay) up() (reset bool) {
	err := r.carryUp() // from here on nothing is read from App, only peeked at
	if errors.Is(err, ErrRides) {
		r.rides.Store(true)
		return false
	}
	if errors.Is(err, syscall.EPIPE) {
		// The peer has closed the connection. That is no error until the program
		// writes: the program may still read what the peer sent before.
		var n int
		if n, err = r.App.AwaitInput(); err == nil && n > 0 {
			err = syscall.EPIPE
		}
	}
	if err != nil {
		// Either the program has reset the connection (ECONNRESET), or the network side
		// accepts no more data: then the next write of the program must fail.
		if errors.Is(err, syscall.ECONNRESET) && r.App.HungUp() {
			r.appHungUp.Store(true)
			r.awaitSent()
		} else {
			r.awaitRest()
		}
		r.cut()
		return true
	}
	if !r.App.HungUp() {
		if err := r.Net.CloseWrite(); err != nil {
			r.cut()
			return true
		}
		if r.App.AwaitHangUp() != nil {
			return false // this side closed App first
		}
	}
	return r.close()
}

// close closes the network side as the program has closed its end, after the end of what that wrote. It reports whether
// the connection was reset.
func (r *Relay) close() (reset bool) {
	r.appHungUp.Store(true)
	if r.undelivered.Load() || r.resetAfterEnd() {
		r.awaitSent()
		_ = r.Net.Abort()
		return true
	}
	_ = r.Net.Close()
	return false
}

// awaitRest lets down write what arrived before the connection was reset: a program reads that
// first over TCP.
func (r *Relay) awaitRest() {
	t := time.NewTimer(restTime)
	defer t.Stop()
	select {
	case <-r.downOver:
	case <-t.C:
	}
}

// awaitSent waits until what the program wrote before it reset the connection is sent, as far as the peer has room for it:
// the peer reads that first over TCP.
func (r *Relay) awaitSent() {
	if r.Sending == nil {
		return
	}
	const first, last = 20 * time.Microsecond, 5 * time.Millisecond
	began := time.Now()
	for wait := first; r.Sending() && time.Since(began) < restTime; wait = min(2*wait, last) {
		time.Sleep(wait)
	}
}

// resetAfterEnd reports whether the program has reset the connection behind the end of its
// stream, by a close with unread data for example. The socket tells it once.
func (r *Relay) resetAfterEnd() bool {
	if _, err := r.App.Peek(); errors.Is(err, syscall.ECONNRESET) {
		r.resetBehind.Store(true)
	}
	return r.resetBehind.Load()
}

// down moves what the peer sends to the program. It reports whether the connection was
// reset.
func (r *Relay) down() (reset bool) {
	defer close(r.downOver)
	_, err := r.Net.WriteTo(r.App)
	switch {
	case errors.Is(err, ErrRides): // up records that
		return false
	case err == nil:
		_ = r.App.CloseWrite()
		return false
	case errors.Is(err, net.ErrClosed):
		// This side closed the connection because the program closed its end.
		return false
	case errors.Is(err, syscall.EPIPE) && r.App.HungUp():
		// The program has closed its end, and data for it cannot be delivered. What
		// the program wrote before still goes to the peer, if the peer accepts
		// data, as with TCP.
		r.undelivered.Store(true)
		r.drain()
		r.appHungUp.Store(true)
		r.cut()
		return true
	default:
		r.cut()
		return true
	}
}

// drain waits until the bytes that the program wrote are read from App. It gives up after
// DrainIdle without progress, and after DrainLimit in any case.
func (r *Relay) drain() {
	quiet := cmp.Or(r.DrainIdle, drainIdle)
	limit := time.Now().Add(cmp.Or(r.DrainLimit, drainLimit))
	tick := time.NewTimer(drainTick)
	defer tick.Stop()
	last, at := -1, time.Time{} // what was unread, and since when
	for {
		now := time.Now()
		if n := r.App.Unread(); n != last {
			last, at = n, now
		}
		wait := min(at.Add(quiet).Sub(now), limit.Sub(now))
		if wait <= 0 {
			return
		}
		tick.Reset(min(drainTick, wait))
		select {
		case <-r.upRead:
			return
		case <-tick.C:
		}
	}
}
