// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/oob"
)

// stream is the network side of a relayed connection: SMC-R, or TCP where it
// was declined after the program had let go of its socket. What it reads from
// and writes to is an *oob.Socket, so that urgent bytes stay such.
type stream interface {
	io.ReaderFrom
	io.WriterTo
	CloseWrite() error
	Close() error
	Abort() error
	// Done is closed when the connection has ended on both sides. It may be
	// nil where nothing tells.
	Done() <-chan struct{}
}

// programEnd is the service's end of a program's socketpair: a *net.UnixConn, or
// an *engine.Socket.
type programEnd interface {
	syscall.Conn
	SetReadDeadline(t time.Time) error
	CloseWrite() error
	Close() error
}

// relay carries bytes between the program's end of a socketpair and the
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
// broken is called before the program's end is cut, so that it sees a reset
// and not an end of file.
type relay struct {
	app      programEnd
	net      stream
	linger0  *atomic.Bool
	broken   func(syscall.Errno)
	passMark func()          // see oob.Socket
	carried  func()          // called once the connection carries nothing more; may be nil
	left     <-chan struct{} // closed when the launcher has gone; may be nil
	guard    *guard.Guard
	data     *oob.Socket // app, for the data

	once    sync.Once
	appUp   atomic.Bool   // the program closed its end entirely, or both sides their writing
	peerEOF atomic.Bool   // the program is told that the peer sends no more
	reset   atomic.Bool   // the connection was cut, not closed
	lost    atomic.Bool   // data came for a program that had gone
	upRead  chan struct{} // closed once up reads no more of what the program writes
	rides   atomic.Bool   // neither direction has anything to do, see ride.go
}

// run returns when the program's side is over. reset tells whether the
// connection was cut rather than closed.
func (r *relay) run(stop <-chan struct{}) (reset bool) {
	if !r.begin() {
		return true
	}
	r.carry(stop)
	return r.finish()
}

// begin reports false if the connection cannot be relayed, and cuts it.
func (r *relay) begin() bool {
	var err error
	if r.data, err = oob.New(r.app); err != nil {
		_ = r.net.Abort()
		_ = r.app.Close()
		return false
	}
	r.data.PassMark = r.passMark
	r.attach()
	return true
}

// finish ends both sides once they are over.
func (r *relay) finish() (reset bool) {
	r.detach()
	if r.carried != nil {
		r.carried()
	}
	_ = r.net.Close()
	_ = r.app.Close()
	return r.reset.Load()
}

// carry returns when both directions are over, or the connection rides.
func (r *relay) carry(stop <-chan struct{}) {
	r.rides.Store(false)
	r.upRead = make(chan struct{})
	done := make(chan struct{})
	watcher := make(chan struct{})
	go r.guarded("the watch on a relay", func() {
		defer close(watcher)
		select {
		case <-stop:
			r.cut(syscall.ECONNRESET)
		case <-r.left:
			if !r.linger(stop, done) {
				r.cut(syscall.ECONNRESET)
			}
		case <-r.net.Done():
			// Both sides closed it, or it was reset while the program was
			// idle, which would not notice otherwise.
			r.cut(syscall.ECONNRESET)
		case <-done:
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		r.guarded("the relay of what a program writes", func() {
			if r.up() {
				r.reset.Store(true)
			}
		})
	})
	wg.Go(func() {
		r.guarded("the relay of what a peer sends", func() {
			if r.down() {
				r.reset.Store(true)
			}
		})
	})
	wg.Wait()
	close(done)
	<-watcher
}

// guarded calls f, and cuts the connection if f panics.
func (r *relay) guarded(what string, f func()) {
	if r.guard.Do(what, f) != nil {
		r.cut(syscall.ECONNRESET)
	}
}

const (
	// orphanGrace is how long a program that was killed with its launcher may
	// take to go, and orphanLimit how long what it wrote may take to leave.
	orphanGrace = 200 * time.Millisecond
	orphanLimit = time.Minute

	// lastWords is how long the connection of a program that has gone takes
	// what the program wrote, when the peer goes on sending.
	lastWords = time.Second
)

// linger waits for the end of a connection whose launcher has gone, and reports
// false when it is to be cut: what a program wrote before it ended is still
// sent, as the kernel does for TCP. A program that outlives its launcher has no
// use of its connections.
func (r *relay) linger(stop, done <-chan struct{}) bool {
	limit := time.NewTimer(orphanLimit)
	defer limit.Stop()
	tick := time.NewTicker(orphanGrace / 20)
	defer tick.Stop()
	for begin := time.Now(); !hungUp(r.app); {
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
	case <-r.net.Done():
	case <-limit.C:
	}
	return false
}

// cut ends both sides abortively.
func (r *relay) cut(errno syscall.Errno) {
	r.once.Do(func() {
		_ = r.net.Abort()
		r.detach()
		if !r.appUp.Load() {
			r.reset.Store(true)
			// What the launcher puts into the pair makes the end a reset, but
			// only if up does not read it. A deadline in the past alone does
			// not see to that: a read that it wakes still takes what arrives
			// before it runs.
			_ = r.app.SetReadDeadline(time.Unix(1, 0))
			<-r.upRead
			r.broken(errno)
			letGo(r.app)
		}
		_ = r.app.Close()
	})
}

// letGo tells a launcher whose session has ended, and which Broken does not
// reach any more, that it may make a reset of the program's end itself.
func letGo(app programEnd) {
	if rc, err := app.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = broker.MarkLetGo(int(fd)) })
	}
}

// carryUp reads what the program writes until there is no more.
func (r *relay) carryUp() error {
	defer close(r.upRead)
	_, err := r.net.ReadFrom(r.data)
	return err
}

// up carries what the program writes.
func (r *relay) up() (reset bool) {
	err := r.carryUp() // from here on it looks, but does not read
	if errors.Is(err, userstack.ErrRides) {
		r.rides.Store(true)
		return false
	}
	if errors.Is(err, syscall.EPIPE) {
		// The peer has closed. That is no error before the program writes:
		// it may be reading what came before the close.
		err = r.awaitWrite()
	}
	if err != nil {
		// Either the program closed with data unread (ECONNRESET), or the
		// network side takes no more: the program's next write must fail.
		if errors.Is(err, syscall.ECONNRESET) && hungUp(r.app) {
			r.appUp.Store(true)
		}
		r.cut(syscall.ECONNRESET)
		return true
	}
	if !hungUp(r.app) {
		if err := r.net.CloseWrite(); err != nil {
			r.cut(syscall.ECONNRESET)
			return true
		}
		if !r.awaitHangup() {
			return false
		}
	}
	r.appUp.Store(true)
	// After both sides' end of file SO_LINGER makes no reset, as with TCP. Nor
	// could it be told then whether the program closed or only shut down.
	if r.linger0.Load() && !r.peerEOF.Load() || r.lost.Load() || lostData(r.app) {
		_ = r.net.Abort()
		return true
	}
	_ = r.net.Close()
	return false
}

// awaitWrite waits until the program writes, which is an error then, or ends
// its side, which is none.
func (r *relay) awaitWrite() error {
	rc, err := r.app.SyscallConn()
	if err != nil {
		return err
	}
	var b [1]byte
	var rerr error
	err = rc.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			return false
		case err != nil:
			rerr = err
		case n > 0:
			rerr = syscall.EPIPE
		}
		return true
	})
	return errors.Join(err, rerr)
}

// down carries what the peer sends.
func (r *relay) down() (reset bool) {
	_, err := r.net.WriteTo(r.data)
	if errors.Is(err, syscall.EPIPE) && !hungUp(r.app) {
		// The program has shut down reading, and may go on writing.
		_, err = r.net.WriteTo(io.Discard)
	}
	switch {
	case errors.Is(err, userstack.ErrRides): // as up
		return false
	case err == nil:
		r.peerEOF.Store(true)
		_ = r.app.CloseWrite()
		return false
	case errors.Is(err, net.ErrClosed):
		// This side closed the connection: the program has gone.
		return false
	case errors.Is(err, syscall.EPIPE) && hungUp(r.app):
		// The program is gone and data for it is lost. What it wrote before
		// still goes to a peer that has room for it, as with TCP.
		r.lost.Store(true)
		select {
		case <-r.upRead:
		case <-time.After(lastWords):
		}
		r.appUp.Store(true)
		r.cut(0)
		return true
	default:
		r.cut(syscall.ECONNRESET)
		return true
	}
}

// hungUp reports whether the program has closed its end entirely, as opposed
// to having shut down writing. Once this side has shut down writing too there
// is no difference any more: nothing is left to be carried.
func hungUp(c programEnd) bool {
	rc, err := c.SyscallConn()
	if err != nil {
		return true
	}
	up := false
	if err := rc.Control(func(fd uintptr) { up = pollHup(int(fd)) }); err != nil {
		return true
	}
	return up
}

func pollHup(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}

// lostData reports whether the program, which has closed its end, left
// something unread. A read tells: it waits for a close that is half done,
// which SO_ERROR does not.
func lostData(c programEnd) bool {
	rc, err := c.SyscallConn()
	if err != nil {
		return false
	}
	lost := false
	_ = rc.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		lost = err == unix.ECONNRESET
	})
	return lost
}

// awaitHangup waits until the program closes its end entirely, and reports
// false if this side closed it first. The runtime's poller wakes a reader also
// for a hang-up, which is all that is waited for here; a waiting writer would
// hold the lock that down needs for what the peer still sends.
func (r *relay) awaitHangup() bool {
	rc, err := r.app.SyscallConn()
	if err != nil {
		return false
	}
	return rc.Read(func(fd uintptr) bool { return pollHup(int(fd)) }) == nil
}
