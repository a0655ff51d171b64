// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"smcr/guard"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/engine"
	"smcr/userstack/network"
)

// TCPConn is a program's TCP socket. Its Read and Write must not rely on
// O_NONBLOCK, which the program can change.
type TCPConn interface {
	net.Conn
	syscall.Conn
	// SetLinger(0) makes Close send RST.
	SetLinger(sec int) error
}

// Sole is implemented by a TCPConn whose socket no other process has.
type Sole interface {
	TCPConn
	Sole()
}

// Stack is the part of a stack that carries the connections of other programs. C is
// *userstack.Conn, which this package cannot name. Package programs is its user.
type Stack[C any] interface {
	// Log, Guard and Stats are those of the stack: panics caught by the guard count
	// in the statistics.
	Log() *slog.Logger
	Guard() *guard.Guard
	Stats() *stats.Collector
	// Network is the network namespace of the stack.
	Network() network.Network
	// Option marks sockets for the TCP option of SMC. It is nil if that is not
	// permitted.
	Option() network.OptionMarker
	// Closed reports whether the stack is being closed.
	Closed() bool
	// CanAnnounce returns why SMC cannot be announced to remote, or nil.
	CanAnnounce(local, remote netip.Addr) error
	// Places returns what CanAnnounce finds for whole networks, without opening a device. Of the places that have a peer,
	// the one with the longest prefix counts.
	Places() ([]Place, error)
	// Copies returns why a connection of a user must not be announced to remote, which CanAnnounce does not
	// know: at this address the option of SMC in a SYN-ACK means nothing.
	Copies(uid uint32, remote netip.AddrPort) error
	// SYNACK returns an error like that of Copies if the SYN-ACK of the connected socket fd
	// says so, and remembers that.
	SYNACK(fd int, remote netip.AddrPort) error
	// NoAnswer remembers that the rendezvous of a user with remote has ended with err, which is
	// userstack.ErrNoAnswer, and returns an error like that of Copies.
	NoAnswer(uid uint32, remote netip.AddrPort, err error) error
	// Quiet returns for how long nothing must be announced to remote for a user, because of NoAnswer.
	Quiet(uid uint32, remote netip.AddrPort) time.Duration
	// Assumed reports whether remote speaks SMC according to the configuration. It is
	// false if Option is not nil.
	Assumed(remote netip.Addr) bool
	// NotAnnounced returns the error of a connection whose peer does not speak SMC.
	NotAnnounced() error
	// ServeUnsure is Stack.Server for a connection whose peer may send something
	// else than CLC messages. It looks at the first bytes before it reads any. If they
	// are data, the error is a *userstack.DeclineError.
	//
	// takeOver gets the program's end of the connection, if it is not nil. ServeUnsure calls
	// it before it waits for the peer and before it sends ACCEPT, and ends with its error. So
	// it does not call it for a connection that ends or stays TCP at once.
	ServeUnsure(ctx context.Context, tcp TCPConn, takeOver func() error) (C, error)
	// Decline waits for the proposal of the peer and declines it because of why. The
	// error is a *userstack.DeclineError then; after another error the connection
	// cannot be used.
	Decline(ctx context.Context, tcp TCPConn, why error) error
	// StaysTCP counts and notes a connection that stays TCP because of err, see
	// Programs.StaysTCP.
	StaysTCP(o Owner, fd int, client bool, err error) (reason, peer uint32)
	// StaysTCPOf is StaysTCP for the socket with this cookie.
	StaysTCPOf(o Owner, cookie uint64, client bool, err error) (reason, peer uint32)
	// ListAlso has listings of connections include TCP sockets that were not noted.
	ListAlso(Others)
	// CountFallback counts a connection that stays TCP.
	CountFallback(client bool, code smc.Diagnosis)
	// Note remembers a socket that the stack does not carry, for listings. The
	// kernel's cookie identifies it.
	Note(cookie uint64, s TCPSocket)
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
// this index. Why is the reason why SMC must not be announced there, or 0.
type Place struct {
	Dev    int
	Prefix netip.Prefix
	Why    smc.Diagnosis
}

// TCPSocket is a TCP socket of a program that the stack does not carry: of a
// connection that stays TCP or within the host, or a listener.
type TCPSocket struct {
	Owner    Owner
	Local    bool            // nl.ModeLocal: the socket below a connection within the host
	Fallback nl.ConnFallback // why the connection stays TCP; zero for a listener
	// Connected tells that the socket was connected, or being connected, when it was
	// noted.
	Connected bool
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
	// AfterDone has f called once when the connection has ended, or at once if it
	// has. f must not block.
	AfterDone(f func())
	// KeepLinkAlive has the link tested when it and the connection have been idle for
	// so long. Zero switches that off.
	KeepLinkAlive(idle time.Duration)
	// Bytes returns how many bytes the connection has carried, in both directions
	// together.
	Bytes() uint64
	// ResetReason returns why the stack has reset the connection. It is "" if the
	// connection has not ended, or if one of the programs or the peer has ended it.
	ResetReason() string
}
