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
	// ShutDown shuts down both directions, and discards what the program has written
	// and nobody has read. The program reads an end of file after what it has, and its
	// writes fail with EPIPE.
	ShutDown() error
	// Close ends all calls that wait.
	Close() error
	// HungUp reports whether the program has closed its end, rather than only shut
	// down writing. After this side has shut down writing too, the two cases cannot be
	// told apart, and HungUp is true in both.
	HungUp() bool
	// Peek returns, without waiting, what a read of one byte would return: 0 or 1, and
	// an error. The error is EAGAIN if the read would wait.
	Peek() (n int, err error)
	// Unread returns how many bytes the program has written that are not read yet.
	Unread() int
	// AwaitHangUp waits until HungUp is true. AwaitInput waits until a read would not
	// wait, and returns what Peek returns then. Both fail when this side closes the
	// socket, or when its read deadline has passed.
	AwaitHangUp() error
	AwaitInput() (n int, err error)
}

// Stream is the network side of a relay: a *userstack.Conn, or a [TCP].
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
	// sides, or nil if the stream cannot detect that.
	Done() <-chan struct{}
}

// ErrRides is the error of ReadFrom and WriteTo of a [Stream] that moves the bytes without
// the relay from then on. [Relay.Carry] returns then, and can be called again.
var ErrRides = errors.New("relay: nothing to do but what the stream does alone")

// Relay moves bytes between the program's socketpair and the network until both
// directions have ended. Each way to end a connection on one side leads to one on the
// other side:
//
//	program                         network
//	shutdown(SHUT_WR)            -> CloseWrite
//	shutdown(SHUT_RD)            -> what the peer sends is discarded, from the
//	                                first byte on that cannot be written
//	close                        -> Close, or Abort if data for the program is unread
//	close with SO_LINGER 0       -> Abort, unless the peer's end of file came first
//	shutdown after end of file   -> Close: neither side can send more
//	MSG_OOB                     <-> urgent byte, at its place in the stream
//	end of file                  <- peer sends no more
//	ECONNRESET                   <- reset
//	end of file, EPIPE           <- reset after the end of file, as in TCP's CLOSE-WAIT
//
// What a program wrote before it closed its end still goes to the peer. If the peer sends
// data meanwhile, this takes at most DrainIdle without progress, and at most DrainLimit in
// all; then the connection is reset.
//
// The exported fields must be set before the first call. Run calls Carry and Finish.
type Relay struct {
	App End
	Net Stream
	// Linger0 is true while the program has set SO_LINGER with a time of 0. If
	// Linger0 is nil, the relay reads the option from the socket of a [TCP].
	Linger0 *atomic.Bool
	// Broken prepares App so that the program sees a reset, and not an end of file,
	// when App is closed. The relay does not read from App any more when it calls
	// Broken.
	Broken func(syscall.Errno)
	// Detach, if not nil, makes Net stop using App. It is called before App is closed.
	Detach func()
	// Carried, if not nil, is called when no more bytes are moved, before the
	// connection is closed.
	Carried func()
	// LauncherGone, if not nil, is closed when the launcher has ended. The program ends
	// with its launcher; if it has not closed its end 200 ms later, the connection is
	// reset.
	LauncherGone <-chan struct{}
	// CutOrphans, if not nil, is closed to reset the connections of programs whose
	// launcher has ended, even if data of these programs is not sent yet. OrphanLimit
	// bounds the time without progress while this data is sent. 0 means one minute.
	CutOrphans  <-chan struct{}
	OrphanLimit time.Duration
	// DrainIdle and DrainLimit bound the wait for the data of a program that has closed
	// its end with unread data of the peer: DrainIdle is the time without progress,
	// DrainLimit the time in all. 0 means 1 second and 10 seconds.
	DrainIdle, DrainLimit time.Duration
	// Guard catches panics. A panic resets the connection.
	Guard *guard.Guard

	once        sync.Once
	appHungUp   atomic.Bool   // the program closed its end, or both sides shut down writing
	peerEOF     atomic.Bool   // the program has the end of the peer's stream
	reset       atomic.Bool   // the connection was reset, not closed
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

// Carry moves bytes until both directions have ended, or until the stream moves them
// without the relay. In the second case rides is true, and Carry may be called again.
// The connection is reset when stop is closed.
func (r *Relay) Carry(stop <-chan struct{}) (rides bool) {
	r.rides.Store(false)
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
	left := false
	select {
	case <-stop:
	case <-r.LauncherGone:
		left = true
	case <-r.Net.Done():
		// Both sides closed the connection, or it was reset while the program
		// did not read or write. The program would not notice that reset.
	case <-done:
	}
	select {
	case <-done: // nothing is left to end
		return
	default:
	}
	if !left || !r.awaitOrphan(stop, done) {
		r.cut()
	}
}

const (
	// orphanGrace is how long a program that was killed with its launcher may take to
	// end. orphanLimit is the default of Relay.OrphanLimit.
	orphanGrace = 200 * time.Millisecond
	orphanLimit = time.Minute

	// drainIdle and drainLimit are the defaults of the fields of Relay. drainTick is
	// the time between two checks.
	drainIdle  = time.Second
	drainLimit = 10 * time.Second
	drainTick  = 10 * time.Millisecond

	// restTime is how long what arrived before a reset may take to be written to the
	// program, which has room for most of it.
	restTime = 2 * time.Second
)

// awaitOrphan waits for the end of a connection whose launcher has ended. What the program
// wrote before it ended is still sent, as the kernel does for a TCP socket. awaitOrphan
// returns false if the connection must be reset. That is so if the program does not end
// soon, because a program cannot use its connections without its launcher.
func (r *Relay) awaitOrphan(stop, done <-chan struct{}) bool {
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
	r.appHungUp.Store(true) // no program is there that could see a reset
	limit := cmp.Or(r.OrphanLimit, orphanLimit)
	tick.Reset(limit / 20)
	for p := r.left(); ; {
		select {
		case <-done:
			return true
		case <-stop:
			return false
		case <-r.CutOrphans:
			return false
		case <-r.Net.Done():
			return false
		case <-tick.C:
		}
		if now := r.left(); now.progress != p.progress {
			p = now
		} else if now.at.Sub(p.at) >= limit {
			return false
		}
	}
}

// progress is how much of what the program wrote has left: the bytes that the relay has not
// read yet, and over TCP also those that the peer has not acknowledged and those that it has.
type progress struct {
	unread, unsent int
	acked          uint64
}

// moment is the progress at a time.
type moment struct {
	progress
	at time.Time
}

func (r *Relay) left() moment {
	m := moment{progress{unread: r.App.Unread()}, time.Now()}
	if tcp, ok := r.Net.(*TCP); ok {
		m.unsent, m.acked = tcp.unsent()
	}
	return m
}

// cut resets both sides.
func (r *Relay) cut() {
	r.once.Do(func() {
		_ = r.Net.Abort()
		r.detach()
		if !r.appHungUp.Load() {
			r.reset.Store(true)
			// The launcher writes a byte into the pair. The program sees a
			// reset if this byte is still unread when App is closed, so up
			// must not read it. A deadline in the past is not enough: a read
			// that the deadline wakes still takes what has arrived by then.
			_ = r.App.SetReadDeadline(time.Unix(1, 0))
			<-r.upRead
			if r.peerEOF.Load() {
				_ = r.App.ShutDown()
			} else {
				r.Broken(syscall.ECONNRESET)
			}
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
		// Either the program closed its end with unread data (ECONNRESET), or the
		// network side accepts no more data: then the next write of the program
		// must fail.
		if errors.Is(err, syscall.ECONNRESET) && r.App.HungUp() {
			r.appHungUp.Store(true)
			r.drain()
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
	r.appHungUp.Store(true)
	linger0 := r.linger0()
	// SO_LINGER causes no reset after the end of file of both sides, as in TCP. A close
	// and a shutdown by the program look the same then.
	switch {
	case linger0 && !r.peerEOF.Load():
		_ = r.Net.Abort()
		return true
	case r.undelivered.Load() || r.closedUnread():
		r.drain()
		_ = r.Net.Abort()
		return true
	}
	if tcp, ok := r.Net.(*TCP); ok && linger0 {
		tcp.dropLinger()
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

// linger0 reports whether a close by the program must reset the connection.
func (r *Relay) linger0() bool {
	if r.Linger0 != nil {
		return r.Linger0.Load()
	}
	tcp, ok := r.Net.(*TCP)
	return ok && tcp.lingersZero()
}

// closedUnread reports whether the program closed its end with unread data. It uses a
// read and not SO_ERROR, because only a read waits for a close that is in progress.
func (r *Relay) closedUnread() bool {
	_, err := r.App.Peek()
	return errors.Is(err, syscall.ECONNRESET)
}

// down moves what the peer sends to the program. It reports whether the connection was
// reset.
func (r *Relay) down() (reset bool) {
	defer close(r.downOver)
	_, err := r.Net.WriteTo(r.App)
	if errors.Is(err, syscall.EPIPE) && !r.App.HungUp() {
		// The program has shut down reading, and may still write.
		_, err = r.Net.WriteTo(io.Discard)
	}
	switch {
	case errors.Is(err, ErrRides): // up records that
		return false
	case err == nil:
		r.peerEOF.Store(true)
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

// drain waits until the bytes that the program wrote are read from App and, over TCP,
// acknowledged by the peer. It gives up after DrainIdle without progress, and after
// DrainLimit in any case.
func (r *Relay) drain() {
	quiet := cmp.Or(r.DrainIdle, drainIdle)
	limit := time.Now().Add(cmp.Or(r.DrainLimit, drainLimit))
	tick := time.NewTimer(drainTick)
	defer tick.Stop()
	read := r.upRead
	var last moment
	for {
		select {
		case <-read:
			read = nil
		default:
		}
		now := r.left()
		if read == nil && now.unsent == 0 {
			return
		}
		if last.at.IsZero() || now.progress != last.progress {
			last = now
		}
		wait := min(last.at.Add(quiet).Sub(now.at), limit.Sub(now.at))
		if wait <= 0 {
			return
		}
		tick.Reset(min(drainTick, wait))
		select {
		case <-read:
			read = nil
		case <-tick.C:
		}
	}
}
