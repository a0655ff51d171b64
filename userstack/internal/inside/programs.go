// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"smcr/guard"
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

// Programs is what a stack does for programs that have sockets of their own.
// C is *userstack.Conn, which this package cannot name.
type Programs[C any] interface {
	// Candidate decides whether a connection that a program is about to open
	// can become SMC-R, and if so marks its socket fd so that the TCP handshake
	// announces SMC. Otherwise the error says why, and fd is untouched.
	Candidate(o Owner, local, remote netip.Addr, fd int) error
	// CandidateHere marks the socket fd of a connection that a program is about to
	// open to an address of this host, of which Candidate said ErrThisHost.
	CandidateHere(o Owner, fd int) error
	// OpenHere lets everybody send on the connected or accepted socket fd of a
	// connection within this host, on which nobody speaks CLC.
	OpenHere(fd int) error
	// MarkListen makes the SYN-ACKs of a program's listening socket answer the
	// SMC option.
	MarkListen(o Owner, fd int) error
	// PeerAnnounced reports whether the peer of a program's connected socket
	// speaks SMC, as far as the TCP handshake or the configuration tells.
	PeerAnnounced(fd int, remote netip.Addr) (bool, error)
	// ServerMaybe is Stack.Server for an accepted connection whose peer may not
	// speak CLC: it looks at the first bytes before it reads.
	ServerMaybe(ctx context.Context, tcp TCPConn) (C, error)
	// Decline is Stack.Server for an accepted connection that is to stay TCP for
	// lack of resources: it waits for what the peer proposes and declines. The
	// error is a *userstack.DeclineError then; after another one the connection
	// is of no use.
	Decline(ctx context.Context, tcp TCPConn, why error) error
	// StaysTCP counts a program's connection that stays TCP for the reason in
	// err, and remembers its socket fd for listings. A *userstack.DeclineError of
	// Stack.Client or Stack.Server is counted already. It returns the reason in
	// numbers, as listings have it, and where that is that the peer declined, the
	// peer's.
	StaysTCP(o Owner, fd int, client bool, err error) (reason, peer uint32)
	// OpenAgreed opens the gate of a connection on which neither end speaks CLC, as
	// the stack at the other end has agreed.
	OpenAgreed(fd int) error
	// Locator tells what the network namespace has, or is nil.
	Locator() network.Locator
	// IsLocal counts a connection that joins two programs of this host, and
	// remembers its TCP socket fd for listings.
	IsLocal(o Owner, fd int, client bool)
	// Listens remembers a program's socket fd that is about to listen, for
	// listings.
	Listens(o Owner, fd int)
	// LeftToTCP is StaysTCP for a connection that nobody asked the stack about. It is
	// known by the cookie of its socket. Short tells that connections to the peer
	// were too short for SMC, else the peer does not speak it.
	LeftToTCP(o Owner, cookie uint64, client, short bool)
	// Carried returns how many bytes the connection has carried, in both
	// directions together.
	Carried(c C) uint64
	// ByOption reports whether the TCP option alone tells which peers speak SMC.
	ByOption() bool
	// NoSMC is the error of a connection whose peer does not speak SMC, as far
	// as PeerAnnounced can tell.
	NoSMC() error
	// Busy reports what keeps the stack from ending when idle: connections,
	// and rendezvous that hold link groups.
	Busy() bool
	// OnQuiet has f called when many connections have begun or ended and for a
	// while no more do, at most every few seconds. It is for the process, which
	// may give memory back then.
	OnQuiet(f func())
	// Guard keeps a panic in one connection from ending the process. Who serves
	// a stack's connections uses it too: its panics count in the statistics.
	Guard() *guard.Guard
}

// bound is what package userstack has bound before any program code runs.
var bound Binding

// A Binding is the way to the unexported parts of package userstack. A config is a
// *userstack.Config, a stack a *userstack.Stack.
type Binding struct {
	SetHost  func(config any, h Host)
	Tune     func(config any, t Tuning)
	Programs func(stack any) any // returns a Programs[*userstack.Conn]
	Inspect  func(stack any) any // returns an Inspector[*userstack.Conn]
}

// Bind sets the way to the unexported parts of userstack, which calls it once, when it
// is initialized.
func Bind(b Binding) (done bool) {
	bound = b
	return true
}

// SetHost makes the stacks of config, a *userstack.Config, run on h.
func SetHost(config any, h Host) { bound.SetHost(config, h) }

// ProgramsOf returns what stack, a *userstack.Stack, does for programs. It
// allocates nothing.
func ProgramsOf[C any](stack any) Programs[C] { return bound.Programs(stack).(Programs[C]) }

// Owner is the process a connection belongs to, for listings.
type Owner struct {
	UID, PID uint32
	Command  string
}

type ownerKey struct{}

// WithOwner returns a context under which the Client and Server methods of a
// stack make connections that belong to o. Otherwise they belong to the calling
// process.
func WithOwner(ctx context.Context, o Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

// OwnerFrom returns the owner that ctx names, or the calling process.
func OwnerFrom(ctx context.Context) Owner {
	if o, ok := ctx.Value(ownerKey{}).(Owner); ok {
		return o
	}
	return Self()
}

// Self is the calling process.
func Self() Owner {
	return Owner{UID: uint32(os.Geteuid()), PID: uint32(os.Getpid()), Command: filepath.Base(os.Args[0])}
}
