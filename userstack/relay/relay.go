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

// End is the relay's end of a program's socketpair: a [Socket], or the model of
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
	// HungUp reports whether the program has closed its end entirely, as opposed
	// to having shut down writing. Once this side has shut down writing too there
	// is no difference any more: nothing is left to be carried.
	HungUp() bool
	// Peek tells, without waiting, how many bytes a read would return, at most
	// one, and its error, which is EAGAIN where it would wait.
	Peek() (n int, err error)
	// Unread returns how many bytes of the program wait to be read.
	Unread() int
	// AwaitHangUp waits until HungUp is true, and AwaitInput until Peek would not wait:
	// it returns what Peek would. They fail when the socket is closed here, or its
	// deadline for reading is over.
	AwaitHangUp() error
	AwaitInput() (n int, err error)
}

// Stream is the network side of a relay: a *userstack.Conn, or a [TCP].
//
// ReadFrom carries what the program writes, and gets the End of the relay. Its
// error is nil at the end of file, the End's own, or EPIPE where the peer has
// closed. WriteTo carries what the peer sends, to the End or to io.Discard. Its
// error is nil at the end of file, net.ErrClosed after Close, or the End's own.
type Stream interface {
	io.ReaderFrom
	io.WriterTo
	CloseWrite() error
	Close() error
	// Abort closes with a reset for the peer.
	Abort() error
	// Done is closed when the connection has ended on both sides. It may be
	// nil where nothing tells.
	Done() <-chan struct{}
}

// ErrRides is what both methods of a [Stream] return that carries the bytes alone
// from then on: [Relay.Carry] returns, and can be called again.
var ErrRides = errors.New("relay: nothing to do but what the stream does alone")

// Relay carries bytes between the program's end of a socketpair and the
// network until both directions are over, and maps the ways to end onto each
// other:
//
//	program                         network
//	shutdown(SHUT_WR)            -> CloseWrite
//	shutdown(SHUT_RD)            -> what the peer sends is thrown away, from the
//	                                first on that cannot be written
//	close                        -> Close, or Abort if data for the program is lost
//	close with SO_LINGER 0       -> Abort, unless the peer's end of file came first
//	shutdown after end of file   -> Close: nothing can follow in either direction
//	MSG_OOB                     <-> urgent byte, at its place in the stream
//	end of file                  <- peer sends no more
//	ECONNRESET                   <- reset
//
// What a program wrote before it closed still goes to the peer. Where the peer goes
// on sending, that is over after a second in which nothing moves, or ten.
//
// The exported fields are set before the first call. Run is Carry and Finish in one.
type Relay struct {
	App End
	Net Stream
	// Linger0 reports whether the program has set SO_LINGER with a time of 0.
	// If it is nil, a TCP socket is asked.
	Linger0 *atomic.Bool
	// Broken is called before the program's end is cut, so that it sees a reset
	// and not an end of file. Nothing is read from App any more then.
	Broken func(syscall.Errno)
	// Detach, if set, makes Net stop using App. It is called before App is
	// closed.
	Detach func()
	// Carried, if set, is called once the connection carries nothing more, before it
	// is closed.
	Carried func()
	// Left, if not nil, is closed when the launcher has gone, and the program with
	// it. One that is still there after a moment loses the connection.
	Left <-chan struct{}
	// Hurry, if not nil, is closed when what such a program wrote is not waited for
	// any more; OrphanLimit is how long it is, a minute unless told.
	Hurry       <-chan struct{}
	OrphanLimit time.Duration
	// LastQuiet is how long the connection of a program that has gone is kept for what
	// the program wrote, when the peer goes on sending and takes nothing; LastLimit
	// when it takes some. A second and ten unless told.
	LastQuiet, LastLimit time.Duration
	// Guard is told of panics, which cut the connection.
	Guard *guard.Guard

	once    sync.Once
	appUp   atomic.Bool   // the program closed its end entirely, or both sides their writing
	peerEOF atomic.Bool   // the program has read the end of the peer's stream
	reset   atomic.Bool   // the connection was cut, not closed
	lost    atomic.Bool   // data came for a program that had gone
	upRead  chan struct{} // closed when up does not read from the program any more
	rides   atomic.Bool   // both directions returned ErrRides
	working atomic.Int32  // directions at work
}

// Run returns when the program's side is over, or stop is closed, which cuts the
// connection. reset reports whether it was cut rather than closed.
func (r *Relay) Run(stop <-chan struct{}) (reset bool) {
	r.Carry(stop)
	return r.Finish()
}

// Finish ends both sides once Carry has returned and does not go on.
func (r *Relay) Finish() (reset bool) {
	r.detach()
	if r.Carried != nil {
		r.Carried()
	}
	_ = r.Net.Close()
	_ = r.App.Close()
	return r.reset.Load()
}

// detach makes Net stop using App, before App is closed.
func (r *Relay) detach() {
	if r.Detach != nil {
		r.Detach()
	}
}

// Carry returns when both directions are over, or with rides when the stream carries
// them alone. It may be called again then.
func (r *Relay) Carry(stop <-chan struct{}) (rides bool) {
	r.rides.Store(false)
	r.upRead = make(chan struct{})
	done := make(chan struct{})
	r.working.Store(2)
	go r.direction("the relay of what a program writes", r.up, done)
	go r.direction("the relay of what a peer sends", r.down, done)
	r.guarded("the watch on a relay", func() { r.watch(stop, done) })
	<-done
	return r.rides.Load()
}

// direction carries one, and closes done if the other is over.
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

// guarded calls f, and cuts the connection if f panics.
func (r *Relay) guarded(what string, f func()) {
	if r.Guard.Do(what, f) != nil {
		r.cut()
	}
}

// watch ends a connection for what neither direction sees.
func (r *Relay) watch(stop, done <-chan struct{}) {
	left := false
	select {
	case <-stop:
	case <-r.Left:
		left = true
	case <-r.Net.Done():
		// Both sides closed it, or it was reset while the program was
		// idle, which would not notice otherwise.
	case <-done:
	}
	select {
	case <-done: // then all is told
		return
	default:
	}
	if !left || !r.linger(stop, done) {
		r.cut()
	}
}

const (
	// orphanGrace is how long a program that was killed with its launcher may
	// take to go, and orphanLimit how long what it wrote may take to leave.
	orphanGrace = 200 * time.Millisecond
	orphanLimit = time.Minute

	// lastQuiet and lastLimit: see Relay. lastTick is how often is looked.
	lastQuiet = time.Second
	lastLimit = 10 * time.Second
	lastTick  = 10 * time.Millisecond
)

// linger waits for the end of a connection whose launcher has gone, and reports
// false when it is to be cut: what a program wrote before it ended is still
// sent, as the kernel does for TCP. A program that outlives its launcher has no
// use of its connections.
func (r *Relay) linger(stop, done <-chan struct{}) bool {
	limit := time.NewTimer(cmp.Or(r.OrphanLimit, orphanLimit))
	defer limit.Stop()
	tick := time.NewTicker(orphanGrace / 20)
	defer tick.Stop()
	for begin := time.Now(); !r.App.HungUp(); {
		if time.Since(begin) > orphanGrace {
			return false
		}
		select {
		case <-stop:
			return false
		case <-done:
			return true
		case <-tick.C:
		}
	}
	r.appUp.Store(true) // nobody is left to be told of a reset
	select {
	case <-done:
		return true
	case <-stop:
	case <-r.Hurry:
	case <-r.Net.Done():
	case <-limit.C:
	}
	return false
}

// cut ends both sides abortively.
func (r *Relay) cut() {
	r.once.Do(func() {
		_ = r.Net.Abort()
		r.detach()
		if !r.appUp.Load() {
			r.reset.Store(true)
			// What the launcher puts into the pair makes the end a reset, but
			// only if up does not read it. A deadline in the past alone does
			// not see to that: a read that it wakes still takes what arrives
			// before it runs.
			_ = r.App.SetReadDeadline(time.Unix(1, 0))
			<-r.upRead
			r.Broken(syscall.ECONNRESET)
		}
		_ = r.App.Close()
	})
}

// carryUp reads what the program writes until there is no more.
func (r *Relay) carryUp() error {
	defer close(r.upRead)
	_, err := r.Net.ReadFrom(r.App)
	return err
}

// up carries what the program writes.
func (r *Relay) up() (reset bool) {
	err := r.carryUp() // from here on it looks, but does not read
	if errors.Is(err, ErrRides) {
		r.rides.Store(true)
		return false
	}
	if errors.Is(err, syscall.EPIPE) {
		// The peer has closed. This is no error before the program writes: it
		// may still read data from before the close.
		var n int
		if n, err = r.App.AwaitInput(); err == nil && n > 0 {
			err = syscall.EPIPE
		}
	}
	if err != nil {
		// Either the program closed with data unread (ECONNRESET), or the
		// network side takes no more: the program's next write must fail.
		if errors.Is(err, syscall.ECONNRESET) && r.App.HungUp() {
			r.appUp.Store(true)
			r.lastWords()
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
			return false // this side closed it first
		}
	}
	r.appUp.Store(true)
	linger0 := r.linger0()
	// After both sides' end of file SO_LINGER makes no reset, as with TCP. Nor
	// could it be told then whether the program closed or only shut down.
	switch {
	case linger0 && !r.peerEOF.Load():
		_ = r.Net.Abort()
		return true
	case r.lost.Load() || r.lostData():
		r.lastWords()
		_ = r.Net.Abort()
		return true
	}
	if tcp, ok := r.Net.(*TCP); ok && linger0 {
		tcp.dropLinger()
	}
	_ = r.Net.Close()
	return false
}

// linger0 reports whether the program's close must be a reset.
func (r *Relay) linger0() bool {
	if r.Linger0 != nil {
		return r.Linger0.Load()
	}
	tcp, ok := r.Net.(*TCP)
	return ok && tcp.lingersZero()
}

// lostData reports whether the program closed its end with data unread. It uses
// a read, because a read waits for a close that is in progress, and SO_ERROR
// does not.
func (r *Relay) lostData() bool {
	_, err := r.App.Peek()
	return errors.Is(err, syscall.ECONNRESET)
}

// down carries what the peer sends.
func (r *Relay) down() (reset bool) {
	_, err := r.Net.WriteTo(r.App)
	if errors.Is(err, syscall.EPIPE) && !r.App.HungUp() {
		// The program has shut down reading, and may still write.
		_, err = r.Net.WriteTo(io.Discard)
	}
	switch {
	case errors.Is(err, ErrRides): // as up
		return false
	case err == nil:
		r.peerEOF.Store(true)
		_ = r.App.CloseWrite()
		return false
	case errors.Is(err, net.ErrClosed):
		// This side closed the connection: the program has gone.
		return false
	case errors.Is(err, syscall.EPIPE) && r.App.HungUp():
		// The program is gone and data for it is lost. What it wrote before
		// still goes to a peer that has room for it, as with TCP.
		r.lost.Store(true)
		r.lastWords()
		r.appUp.Store(true)
		r.cut()
		return true
	default:
		r.cut()
		return true
	}
}

// lastWords waits until the peer has the bytes that the program wrote, if the
// stream can tell, and as long as there is progress.
func (r *Relay) lastWords() {
	tcp, _ := r.Net.(*TCP)
	quiet := cmp.Or(r.LastQuiet, lastQuiet)
	begin := time.Now()
	limit := begin.Add(cmp.Or(r.LastLimit, lastLimit))
	tick := time.NewTimer(lastTick)
	defer tick.Stop()
	moved, read := begin, r.upRead
	left, sent := 0, uint64(0)
	for {
		select {
		case <-read:
			read = nil
		default:
		}
		n, acked := 0, uint64(0)
		if tcp != nil {
			n, acked = tcp.unsent()
		}
		if read == nil && n == 0 {
			return
		}
		now := time.Now()
		if n = r.App.Unread(); n != left || acked != sent {
			left, sent, moved = n, acked, now
		}
		wait := min(moved.Add(quiet).Sub(now), limit.Sub(now))
		if wait <= 0 {
			return
		}
		tick.Reset(min(lastTick, wait))
		select {
		case <-read:
			read = nil
		case <-tick.C:
		}
	}
}
