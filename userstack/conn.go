// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
)

// TCPConn is the TCP connection that [Stack.Client] and [Stack.Server] run the
// rendezvous on. *net.TCPConn is one.
type TCPConn interface {
	net.Conn
	// SetLinger(0) makes Close send RST.
	SetLinger(sec int) error
}

// Conn is an SMC-R connection. It implements net.Conn and behaves as a
// *net.TCPConn does, half close included. Addresses are those of the TCP
// connection below, which stays open and carries no data.
type Conn struct {
	s      *Stack
	g      *group
	core   *linkgroup.Conn
	tcp    TCPConn
	client bool
	ino    uint64 // for listings
	owner  inside.Owner
	local  net.Addr
	remote net.Addr

	ready chan error     // outcome of announcing the RMB, buffered
	uwake chan struct{}  // urgent data, for the program
	drive *engine.Waiter // nil without an engine

	in       reader
	out      writer
	end      ending
	carried  carrying
	tcpWatch belowWatch

	// Bytes that the program has read and written; guarded by g.mu.
	rxBytes, txBytes uint64
}

// LocalAddr implements net.Conn: the address of the TCP connection below.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// reader is the part of a connection that a program reads with.
type reader struct {
	c        *Conn
	mu       sync.Mutex // one reader at a time
	wake     chan struct{}
	deadline deadline
	ready    func() bool // reports whether a wait is over
	peeked   bool        // the program has bytes from Peek; guarded by mu

	delivering bool // WriteTo hands out data that is not consumed yet; guarded by g.mu
}

// writer is the part of a connection that a program writes with.
type writer struct {
	c        *Conn
	mu       sync.Mutex // one writer at a time
	wake     chan struct{}
	deadline deadline
	ready    func() bool // reports whether a wait is over
	reserved int         // bytes that the program has from Reserve; guarded by mu

	full bool // the last reserve found too little room; guarded by g.mu
}

// ending is the part of a connection that ends it, and keeps its buffers until no
// goroutine copies to or from them.
type ending struct {
	c       *Conn
	closed  atomic.Bool   // Close or Abort was called
	linger0 atomic.Bool   // Close resets
	started atomic.Bool   // it was given out
	done    chan struct{} // closed when the connection has ended
	once    sync.Once
	err     error // how it ended; valid after done

	// Guarded by g.mu: the core takes back the buffers when over is set and holds
	// is 0.
	over       bool
	holds      int      // readers and writers in a buffer
	closeAfter bool     // Close came while data was being delivered
	after      []func() // called when the connection has ended
}

// carrying lets the engine carry the bytes of a connection.
type carrying struct {
	c *Conn
	p atomic.Pointer[carrier] // nil: not attached
}

// carrier moves the bytes between a connection and a program's socket on the
// engine's thread, without a goroutine to wake: what arrives is written to the
// socket at once, and what the program writes goes into the send buffer at once.
//
// It works while the connection rides, which takes no goroutine, and while
// goroutines are in ReadFrom or WriteTo, which own the two directions and wait
// here. Whatever is not plain data (the end of a stream, errors, urgent bytes,
// the end of the connection) ends the ride and the wait, and a goroutine deals
// with it as it would without an engine.
//
//	direction | begins               | moves bytes when               | is handed back when
//	in        | Ride, ReadFrom waits | the socket is readable and the | the socket has an urgent byte, ended or
//	          |                      | send buffer has room           | failed; the connection takes no more
//	out       | Ride, WriteTo waits  | data has arrived and the       | the socket failed; the connection has an
//	          |                      | socket has room                | urgent byte, ended or failed
//
//	state           | event                                    | next state
//	rides           | a direction is handed back; Recall       | goroutines, which back starts
//	goroutines      | ReadFrom and WriteTo both wait, and no   | ErrRides for both; the caller may Ride
//	                | Recall came                              |
//	either          | Detach                                   | not attached
//
// A direction that was not handed back goes on while the goroutines start.
type carrier struct {
	c    *Conn
	sock *engine.Socket
	task *engine.Task
	both func()           // moveBoth, kept so that calling it allocates nothing
	use  func(fd uintptr) // moveOn, likewise
	msg  engine.Message   // used by the loop

	mu       sync.Mutex // guards what follows; taken before the group's
	in       direction
	out      direction
	plain    bool   // the last event was of data only, and nothing was read since; see moveIn
	current  bool   // events are of the time since in is active
	back     func() // while the connection rides
	mayRide  bool   // Ride was called
	recalled bool
}

// direction is one of the two of a carrier.
type direction struct {
	active  bool // the loop moves bytes
	over    bool // it was handed back, and nobody took it yet
	waiting bool // a goroutine waits at back
	ready   bool // the socket may be readable, or have room
	n       int64
	err     error // of the socket; io.EOF at its end
	back    chan struct{}
}

// belowWatch is the engine's watch on a TCP connection.
type belowWatch struct {
	c  *Conn
	rc syscall.RawConn
	w  *engine.Watch
}
