// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/wire"
)

// listener is a listening socket that the service marked, or must mark once
// there is a service. The launcher has a copy of it only for the moment of a call, and
// while threads wait in accept() that keep the socket open anyway (see copies).
type listener struct {
	s     *supervisor
	inode uint64
	saves atomic.Bool            // the program wants saved SYNs for itself
	known atomic.Pointer[Broker] // the last session that was told of it
	// adopted means that another launcher has marked the socket.
	adopted bool

	mu      sync.Mutex
	fd      int           // copy for waiters that are not alone in their process, or -1
	queue   int           // epoll instance with the socket, or -1 before the first wait
	sub     *subscription // of queue, armed while calls wait
	timer   *time.Timer
	waiters []*waiter
	// spare has the connections for the next calls of accept(): those that were
	// accepted early, or whose accept() was interrupted.
	spare line
	// todo has those of spare about which the service is not asked yet, and asking counts
	// those about which it is being asked.
	todo   line
	asking int
	early  early
	// deferred has the connections that are held back for TCP_DEFER_ACCEPT.
	deferred map[*accepted]deferral
}

// waiter is a call blocked in accept().
type waiter struct {
	n        *notif
	pidfd    int // becomes readable when the thread ends
	sub      *subscription
	deadline time.Time // of SO_RCVTIMEO, or zero
	shared   bool      // other threads of the process can close the socket meanwhile
}

// accepted is a connection taken from the backlog.
type accepted struct {
	sock     int  // the TCP socket
	nonblock bool // it was made with O_NONBLOCK
	shared   bool // others may have changed that
	remote   netip.AddrPort
	domain   int
	saved    bool               // the program saves SYNs of the listening socket
	syn      synSMC             // what readSYN found
	broker   Broker             // of cc
	cc       *broker.ClientConn // nil: native
	pair     *pair              // nil: native
	c        *conn              // made for the first call that gets it; nil: native
	passed   bool               // the service has its end of the pair, or cannot get it
	served   bool               // it has
	local    bool               // a program has the other end of the pair
	placed   placing            // left by a call that was interrupted
	follows  bool               // a goroutine follows c: it was not made for a call that waits

	deferAccept int       // TCP_DEFER_ACCEPT of the listening socket, in seconds
	until       time.Time // the program must not see it without data before; zero: it may

	done     chan struct{} // if not nil, closed when the service has been asked
	unusable bool          // the connection cannot be used

	left bool // the service says that the peer, which speaks SMC, has left before a PROPOSAL
}

// early is the state of a listener for connections that wait in the queue. The
// mu of the listener guards it.
type early struct {
	l       *listener
	watch   int // epoll instance with the listening socket, or -1
	sub     *subscription
	kick    chan struct{}
	running bool // a goroutine looks at the queue
	closed  bool
	place   *placeholder // in the queue, if spare is not empty
	taken   uint64       // connections taken from the queue so far
	mark    uint64       // value of taken when all connections that waited at the last look are taken
	idle    int          // looks in a row at a socket that does not listen
	placed  bool         // a placeholder was made
	slow    int          // tries in a row whose placeholder was not connected in time
	told    bool         // the log says that no placeholder can be made
	before  time.Time    // do not try to make a placeholder before this time
	shared  bool         // a process that the launcher does not see also accepts from the queue
	tid, fd int          // of the last call of the program on the socket
}

// stale returns the session if it does not know the listener yet. Then the
// caller must tell it: the next call of stale returns false.
func (l *listener) stale() (Broker, bool) {
	b := l.s.sessions.live()
	if b == nil {
		return nil, false
	}
	old := l.known.Load()
	if old != nil && *old == b {
		return nil, false
	}
	return b, l.known.CompareAndSwap(old, &b)
}

// knows reports whether session b was told of the listener.
func (l *listener) knows(b Broker) bool {
	known := l.known.Load()
	return known != nil && *known == b
}

// synSMC says whether the SYN of an accepted connection has the SMC option.
type synSMC uint8

const (
	synUnread synSMC = iota
	synUnknown
	synWithout
	synWith
)

// readSYN looks for the SMC option in the saved SYN, which the kernel returns
// only once. The caller must not use it if the program wants saved SYNs itself.
func (a *accepted) readSYN() synSMC {
	if a.syn != synUnread {
		return a.syn
	}
	a.syn = synUnknown
	var b [256]byte
	if n, err := getRaw(a.sock, unix.IPPROTO_TCP, unix.TCP_SAVED_SYN, b[:]); err == nil && n > 0 {
		a.syn = synWithout
		if smcOptionIn(b[:n]) {
			a.syn = synWith
		}
	}
	return a.syn
}

// smcOptionIn reports whether an IP packet with a TCP SYN, as TCP_SAVED_SYN returns
// it, announces SMC-R. The packet has no IPv6 extension headers.
func smcOptionIn(p []byte) bool {
	if len(p) == 0 {
		return false
	}
	ip := 40
	if p[0]>>4 == 4 {
		ip = int(p[0]&15) * 4
	}
	if len(p) < ip+20 {
		return false
	}
	end := min(ip+int(p[ip+12]>>4)*4, len(p))
	return wire.HasTCPOption(p[min(ip+20, end):end])
}
