// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	"smcr/guard"
	"smcr/nl"
	"smcr/quota"
	"smcr/smc"
	"smcr/userstack/engine"
	"smcr/userstack/network"
)

// TCPConn is a TCP connection for which a stack runs a rendezvous.
type TCPConn interface {
	net.Conn
	syscall.Conn
	// SetLinger(0) makes Close send RST.
	SetLinger(sec int) error
}

// Held is a TCPConn whose program waits in connect() or accept() until it is let go. After a rendezvous that has succeeded, or stays TCP,
// that of a client was.
type Held interface {
	// LetGo lets the program go, and reports whether it is known to have its connection. Later calls only do that. It does not wait.
	LetGo() (has bool, err error)
}

// A Notifier tells who reads from a TCP connection when there may be something to read, so that no goroutine has to wait.
type Notifier interface {
	// Events returns how many events there were, and whether all were of data only: after an end, an error or an urgent byte, a read that
	// finds no more does not mean that there is nothing more.
	Events() (n uint64, plain bool)
	// Notify has f called after each event, possibly at once, by the thread of an engine, which f must not keep. f may be nil; a call of
	// the one before may still be running then. read are the first events, of which nothing is left to read: after any other, the next f
	// is called at once.
	Notify(f func(), read uint64)
}

// NotifierOf returns the Notifier of a TCP connection, which is a socket then, or nil.
func NotifierOf(tcp net.Conn) Notifier {
	if c, ok := tcp.(interface{ Notifier() Notifier }); ok {
		return c.Notifier()
	}
	return nil
}

// Stack is the part of a stack that carries the connections of other programs. C is
// *userstack.Conn, which this package cannot name. Package service is its user.
type Stack[C any] interface {
	// Guard is that of the stack: panics that it catches count in the statistics.
	Guard() *guard.Guard
	// Network is the network namespace of the stack.
	Network() network.Network
	// Places returns where SMC must not be announced, without opening a device. Of the places that have a peer,
	// the one with the longest prefix counts.
	Places() ([]Place, error)
	// Known returns the hosts with which there was a connection not long ago, and whose part of what a server has under way is theirs.
	Known() []Known
	// Recall has the stack know hosts that the stack before it knew, too.
	Recall([]Known)
	// NoAnswer returns why a connection of a user must be made again, without announcing SMC, after the
	// rendezvous with remote has ended with err, and remembers that. It is nil if err is not
	// userstack.ErrNoAnswer.
	NoAnswer(uid uint32, remote netip.AddrPort, err error) error
	// Quiet returns for how long nothing must be announced to remote for a user, because of NoAnswer.
	Quiet(uid uint32, remote netip.AddrPort) time.Duration
	// Agree runs the rendezvous of a role, as Stack.Client and Stack.Server do, for a connection of which both ends have announced SMC.
	// It calls done with the result, before it returns, or later on any thread, such as that of an engine, which done must not keep.
	//
	// The peer of a server may not know that this end has announced SMC, if something on the path took the option off the SYN-ACK: so
	// that looks at the first bytes before it reads any. If they are data, the error is a *userstack.DeclineError.
	Agree(ctx context.Context, role smc.Role, tcp TCPConn, done func(C, error))
	// StaysTCP counts a connection that stays TCP because of err, and notes its socket for listings,
	// which has this cookie. A *userstack.DeclineError of Agree is counted
	// already.
	StaysTCP(o Owner, cookie uint64, client bool, err error)
	// ListAlso has listings of connections include TCP sockets that were not noted.
	ListAlso(Others)
	// Carriage returns the way to carry a program's bytes over c. It allocates
	// nothing.
	Carriage(c C) Carriage
	// Busy reports whether the stack has connections, or rendezvous that hold link
	// groups. Then it must not end.
	Busy() bool
	// OnQuiet has f called after many connections have begun or ended, when for a
	// while no more do, at most every few seconds.
	OnQuiet(f func())
}

// Place is a part of the network: peers with addresses of Prefix, or with any if that is the zero Prefix, by the netdev with
// this index. Why is the reason why SMC must not be announced there, or 0. Near says that they are neighbours.
type Place struct {
	Dev    int
	Prefix netip.Prefix
	Why    smc.Diagnosis
	Near   bool
}

// Known is a host, as it is counted, from where it comes, and how long ago the last connection was made.
type Known struct {
	Host   netip.Addr
	Origin quota.Origin
	Age    time.Duration
}

// TCPSocket is a TCP socket of a program that the stack does not carry: of a
// connection that stays TCP, or a listener.
type TCPSocket struct {
	Owner    Owner
	Fallback nl.ConnFallback // why the connection stays TCP; zero for a listener
	// Connected tells that the socket was connected, or being connected, when it was
	// noted.
	Connected bool
	// Undecided tells that it is not known yet what will carry the connection. It is listed as one in INIT.
	Undecided bool
}

// Others is called at the begin of a listing, and returns what says of a socket whether it is listed although it was not
// noted, and as what.
type Others func() func(cookie, cgroup uint64, c nl.Connection) (TCPSocket, bool)

// An EngineEnd is a reader or writer that stands for a socket of the engine.
type EngineEnd interface {
	// Conn returns that socket.
	Conn() syscall.Conn
}

// Carriage carries the bytes of a connection to and from a program's socket.
type Carriage interface {
	// Loop returns the engine that serves the connection, or nil. The socket for
	// Attach must belong to it.
	Loop() *engine.Loop
	// Attach lets the engine carry the bytes between the connection and a program's
	// socket: while the connection rides, and in ReadFrom and WriteTo for an EngineEnd
	// that stands for sock.
	Attach(sock *engine.Socket)
	// Detach ends what Attach began. It must be called before sock is closed.
	Detach()
	// Ride has the engine carry both directions of an attached connection. Nobody may
	// call ReadFrom or WriteTo then. back is called once when these are to be called
	// again, which may be at once; it must not block. They return relay.ErrRides when
	// the connection can ride again. Ride returns false if the connection is not
	// attached.
	Ride(back func()) bool
	// Recall ends the ride for good: goroutines carry the bytes from then on.
	Recall()
	// Ended reports whether both streams of an attached connection have ended, and both ends were passed on: to the
	// peer, and to the program. It is so without ReadFrom and WriteTo, too. Nothing is left then but to close.
	Ended() bool
	// Sending reports whether there is something to be sent that the peer has room for.
	Sending() bool
	// Bytes returns how many bytes the connection has carried, in both directions
	// together.
	Bytes() uint64
	// ResetReason returns why the stack has reset the connection. It is "" if the
	// connection has not ended, or if one of the programs or the peer has ended it.
	ResetReason() string
}
