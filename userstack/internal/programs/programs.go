// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"smcr/guard"
	"smcr/quota"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
	"smcr/userstack/tcpopt"
)

// Programs is what a stack does for programs that have sockets of their own. A fd is
// the descriptor of a program's TCP socket.
type Programs struct {
	in         inside.Stack[*userstack.Conn]
	warnNoGate sync.Once
}

// New returns the verbs of a stack.
func New(stack *userstack.Stack) *Programs {
	return &Programs{in: inside.StackOf[*userstack.Conn](stack)}
}

// Guard returns the guard of the stack: panics that it catches count in the statistics
// of the stack.
func (p *Programs) Guard() *guard.Guard { return p.in.Guard() }

// Busy reports whether the stack has connections, or rendezvous that hold link groups.
func (p *Programs) Busy() bool { return p.in.Busy() }

// OnQuiet has f called after many connections have begun or ended, when for a while no
// more do, at most every few seconds. The process may give memory back then.
func (p *Programs) OnQuiet(f func()) { p.in.OnQuiet(f) }

// Carriage returns the way to carry a program's bytes over c. It allocates nothing.
func (p *Programs) Carriage(c *userstack.Conn) inside.Carriage { return p.in.Carriage(c) }

// ByOption reports whether the TCP option alone tells which peers speak SMC.
func (p *Programs) ByOption() bool { return p.in.Option() != nil }

// Locator returns what knows the addresses and TCP connections of the network
// namespace, or nil.
func (p *Programs) Locator() network.Locator {
	l, _ := p.in.Network().(network.Locator)
	return l
}

// Candidate decides whether a connection that a program is about to open can become
// SMC-R. If so, it marks the socket fd, so that the TCP handshake announces SMC.
// Otherwise the error says why, and the socket is unchanged.
func (p *Programs) Candidate(o inside.Owner, local, remote netip.Addr, fd int) error {
	option := p.in.Option()
	if err := p.in.CanAnnounce(local, remote); err != nil || option == nil {
		return err
	}
	return p.gated(o, fd, option.GateConnect, option.MarkConnect)
}

// Places returns where SMC must not be announced: what Candidate finds for whole networks.
func (p *Programs) Places() ([]inside.Place, error) { return p.in.Places() }

// CandidateHere marks the socket fd of a connection that a program is about to open to
// an address of this host, for which Candidate has returned network.ErrThisHost. No RoCE
// device is needed: the bytes of such a connection never leave the host. The gate is for
// a program that connects the marked socket to another host itself.
func (p *Programs) CandidateHere(o inside.Owner, fd int) error {
	if p.in.Closed() {
		return userstack.ErrStackClosed
	}
	option := p.in.Option()
	if option == nil {
		return userstack.ErrNoOption
	}
	return p.gated(o, fd, option.GateConnect, option.MarkConnect)
}

// Withdraw takes the mark of Candidate or CandidateHere off the socket fd, because no
// connection was made. The program or its launcher may connect the socket again. With the
// mark, that connection would announce SMC, and its gate would never open.
func (p *Programs) Withdraw(fd int) error {
	option := p.in.Option()
	if option == nil {
		return nil
	}
	return option.UnmarkConnect(fd)
}

// MarkListen has the SYN-ACKs of a program's listening socket answer the SMC option.
func (p *Programs) MarkListen(o inside.Owner, fd int) error {
	option := p.in.Option()
	if option == nil {
		return nil
	}
	owner := quota.Account(o.UID)
	if o.Trusted() {
		owner = 0
	}
	gate := func(fd int) error { return option.GateListen(fd, owner) }
	return p.gated(o, fd, gate, option.MarkListen)
}

// Keeper returns what knows what becomes of marked listening sockets, or nil.
func (p *Programs) Keeper() network.ListenerKeeper {
	k, _ := p.in.Option().(network.ListenerKeeper)
	return k
}

// Sockets returns what knows the TCP sockets of the network namespace, or nil.
func (p *Programs) Sockets() network.TCPSockets {
	s, _ := p.in.Network().(network.TCPSockets)
	return s
}

// gated marks a program's socket with gate. If the kernel has no gate, programs of the
// stack's own user are trusted: their sockets are marked with ungated.
func (p *Programs) gated(o inside.Owner, fd int, gate, ungated func(fd int) error) error {
	err := gate(fd)
	if !errors.Is(err, tcpopt.ErrNoGate) {
		return err
	}
	p.warnNoGate.Do(func() {
		p.in.Log().Warn("only programs of the stack's own user use SMC-R: the kernel would not keep those of others from sending CLC messages of their own", "err", err)
	})
	if !o.Trusted() {
		return err
	}
	return ungated(fd)
}

// ErrNotHere is the error of OpenHere for a connection that is not within this network namespace,
// as far as the kernel has seen.
var ErrNotHere = tcpopt.ErrNotHere

// OpenHere lets every process send on the connected or accepted socket fd of a
// connection within this network namespace, on which nobody speaks CLC. The error is
// ErrNotHere if the kernel has not seen both ends here: addresses do not tell.
func (p *Programs) OpenHere(fd int) error {
	g, err := p.gate(fd)
	if g == nil || err != nil {
		return err
	}
	return g.OpenHere(fd)
}

// gate returns the gate of a socket, or nil if it has none.
func (p *Programs) gate(fd int) (network.Gate, error) {
	option := p.in.Option()
	if option == nil {
		return nil, nil
	}
	return option.Gate(fd)
}

// PeerAnnounced reports whether the peer of a program's connected or accepted socket
// speaks SMC, as far as the TCP handshake or the configuration tells.
func (p *Programs) PeerAnnounced(fd int, remote netip.Addr) (bool, error) {
	option := p.in.Option()
	if option == nil {
		return p.in.Assumed(remote), nil
	}
	return option.PeerSMC(fd)
}

// Copies returns why a connection of a user must not be announced to remote: at this address the
// option of SMC in a SYN-ACK means nothing.
func (p *Programs) Copies(uid uint32, remote netip.AddrPort) error { return p.in.Copies(uid, remote) }

// Copied returns an error like that of Copies if the peer of a program's connected socket fd has
// copied the option of SMC from the SYN.
func (p *Programs) Copied(fd int, remote netip.AddrPort) error { return p.in.SYNACK(fd, remote) }

// NoAnswer returns why a connection of a user must be made again, without announcing SMC, after the
// rendezvous has ended with err. It is nil if err is not userstack.ErrNoAnswer.
func (p *Programs) NoAnswer(uid uint32, remote netip.AddrPort, err error) error {
	if !errors.Is(err, userstack.ErrNoAnswer) || p.in.Closed() {
		return nil
	}
	return p.in.NoAnswer(uid, remote, err)
}

// Quiet returns for how long nothing must be announced to remote for a user, because of NoAnswer.
func (p *Programs) Quiet(uid uint32, remote netip.AddrPort) time.Duration {
	return p.in.Quiet(uid, remote)
}

// NoSMC returns the error of a connection whose peer does not speak SMC, as far as
// PeerAnnounced can tell.
func (p *Programs) NoSMC() error { return p.in.NotAnnounced() }

// Serve is Stack.Server for a connection that a program accepted. It looks at the first
// bytes before it reads any, because the peer may send data, which is the program's:
// that the peer speaks SMC may be known from the configuration alone. A peer that
// announced SMC may not know that this end does, if something on the path took the option
// off the SYN-ACK, or if it connected before the stack marked the listening socket. If the
// peer sends data, the error is a *userstack.DeclineError. See inside.Stack.ServeUnsure for
// takeOver.
func (p *Programs) Serve(ctx context.Context, tcp inside.TCPConn, takeOver func() error) (*userstack.Conn, error) {
	return p.in.ServeUnsure(ctx, tcp, takeOver)
}

// Decline is Serve for a connection that is to stay TCP for lack of resources: it waits
// for what the peer proposes and declines. The error is a *userstack.DeclineError then;
// after another error the connection cannot be used.
func (p *Programs) Decline(ctx context.Context, tcp inside.TCPConn, why error) error {
	return p.in.Decline(ctx, tcp, why)
}

// StaysTCP counts a program's connection that stays TCP because of err, and notes its
// socket fd for listings. A *userstack.DeclineError of Stack.Client or Serve is counted
// already. It returns the reason as listings show it, and the reason of the peer if the
// peer declined.
func (p *Programs) StaysTCP(o inside.Owner, fd int, client bool, err error) (reason, peer uint32) {
	return p.in.StaysTCP(o, fd, client, err)
}

// StaysTCPOf is StaysTCP for the socket with this cookie.
func (p *Programs) StaysTCPOf(o inside.Owner, cookie uint64, client bool, err error) {
	p.in.StaysTCPOf(o, cookie, client, err)
}

// ListAlso has listings of connections include TCP sockets of programs that were not noted.
func (p *Programs) ListAlso(o inside.Others) { p.in.ListAlso(o) }

// LeftToTCP is StaysTCP for a connection that the stack was not asked about. The cookie
// of its socket identifies it. With short, connections to the peer were too short for
// SMC; otherwise the peer does not speak it.
func (p *Programs) LeftToTCP(o inside.Owner, cookie uint64, client, short bool) {
	code := smc.DiagPeerNoSMC
	if short {
		code = smc.DiagShort
	}
	p.in.CountFallback(client, code)
	s := inside.TCPSocket{Owner: o, Connected: true}
	s.Fallback.Reason = uint32(code)
	p.in.Note(cookie, s)
}

// IsLocal counts a connection between two programs of this host, and notes its TCP
// socket fd for listings.
func (p *Programs) IsLocal(o inside.Owner, fd int, client bool) {
	side := smc.Server
	if client {
		side = smc.Client
	}
	p.in.Stats().Local(side)
	p.in.Note(network.Cookie(fd), inside.TCPSocket{Owner: o, Local: true})
}

// Listens notes a program's socket fd that is about to listen, for listings.
func (p *Programs) Listens(o inside.Owner, fd int) {
	p.in.Note(network.Cookie(fd), inside.TCPSocket{Owner: o})
}
