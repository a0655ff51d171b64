// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
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
	// owed is what was sent for calls that did not get their answer (see sending).
	owed map[callID]owed
	// told is the call that was told of the connection, and may have lost the answer.
	told toldCall
}

// toldCall is a call that was answered at a time.
type toldCall struct {
	callID
	at time.Time
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

// isOver reports whether c was retired.
func (c *conn) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// detour is a request for a detour. The program waits in call n.
type detour struct {
	n    *notif
	done chan struct{}
}

// detourQueue passes requests for a detour to the goroutine that follows the
// connection.
type detourQueue struct {
	ch   chan *detour
	over chan struct{} // closed when nobody carries detours out any more
}

// requests returns the channel of requests. For a connection that cannot take a detour
// it is nil, and receiving from it blocks for ever.
func (q *detourQueue) requests() chan *detour {
	if q == nil {
		return nil
	}
	return q.ch
}

// direct marks c as a connection whose other end a program has.
func (c *conn) direct() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detours = &detourQueue{ch: make(chan *detour), over: make(chan struct{})}
}

// isDirect reports whether direct was called for c. It stays true during a detour.
func (c *conn) isDirect() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.detours != nil
}

// withSocket calls f with the TCP socket if the launcher has it, otherwise with a
// new socket. c.mu is held.
func (c *conn) withSocket(f func(fd int) error) error {
	if c.tcp >= 0 {
		return f(c.tcp)
	}
	fd, err := unix.Socket(c.domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}
