// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/network"
)

// A connection whose both programs are of this host needs nobody to carry its
// bytes: each program gets one end of a socketpair. The service sees both TCP
// sockets, and the kernel says of them that they are the ends of one connection.
//
//	client's handler (Connect)              | server's handler (Accept)
//	flight enters the table                 |
//	TCP connection is made                  |
//	Local: the launcher places one end      | finds the flight by its addresses, and
//	                                        | gives the other end at once
//	the client has it                       | joined
//	it has not (interrupted, ...)           | relays between the pair and TCP
//	the client has gone                     | the program reads the end of the stream
//	nobody accepts here (see awaitAccept)   | -
//
// From then on the service has no end of the pair. It keeps the TCP sockets, for
// options and listings, until an end of the pair is closed.

// errNotLocal is wrapped by the reason why a connection to this host stays TCP.
var errNotLocal = fmt.Errorf("%w: it is this host", userstack.ErrNotOnLink)

var (
	errNoLocal   = fmt.Errorf("%w, and --no-local is set", errNotLocal)
	errNoProgram = fmt.Errorf("%w, and no program under 'smcr run' listens there", errNotLocal)
	errBound     = fmt.Errorf("%w, and a socket is bound to a device", errNotLocal)
	errLinger    = fmt.Errorf("%w, and SO_LINGER is 0", errNotLocal)
	errNotPlaced = fmt.Errorf("%w, and the launcher was told too late", errNotLocal)
	errNotSealed = fmt.Errorf("%w, and the kernel cannot keep users from passing descriptors to each other (SO_PASSRIGHTS)", errNotLocal)
	errNotIdle   = errors.New("service: a TCP connection is not established and unused")
)

// outcome is what became of a flight at its client.
type outcome uint8

const (
	underWay  outcome = iota
	wentLocal         // the program has its end
	wentTCP           // the program has its TCP socket
	wentAway          // the program gave up
)

// candidate is Candidate of the stack. Where the peer is a program of this host, it
// returns a flight.
func (s *Service) candidate(c *broker.Conn, sock *broker.Descriptor, fd int, local netip.Addr, remote netip.AddrPort) (*flight, error) {
	err := s.programs.Candidate(ownerOf(c.Launcher()), local, remote.Addr(), fd)
	switch {
	case !errors.Is(err, network.ErrThisHost):
		return nil, err
	case s.local.off:
		return nil, errNoLocal
	case !s.local.hasListener(remote.Port(), nil):
		return nil, errNoProgram
	}
	if err := joinable(fd); err != nil {
		return nil, err
	}
	p, q, sealed, err := localPair()
	if err != nil {
		return nil, err
	}
	f := s.local.newFlight(c, sock, remote.Port(), p, q, sealed)
	uid := c.Launcher().UID
	if !sealed && !s.local.hasListener(f.port, &uid) {
		err = errNotSealed
	}
	if err == nil {
		err = s.programs.CandidateHere(ownerOf(c.Launcher()), fd)
	}
	if err == nil {
		err = s.local.depart(f)
	}
	if err != nil {
		_ = p.Close()
		_ = q.Close()
		return nil, err
	}
	return f, nil
}

// joinable tells why a socket is better left to TCP.
func joinable(fd int) error {
	if dev, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err != nil || dev != 0 {
		return errBound // the addresses alone would not name the connection
	}
	if l, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER); err == nil && l.Onoff != 0 && l.Linger == 0 {
		return errLinger // nobody could make a reset of the program's close
	}
	return nil
}

// soPassRights is SO_PASSRIGHTS (Linux 6.16).
const soPassRights = 83

// localPair makes the pair for two programs that may not trust each other. sealed
// tells that the kernel takes no descriptors from one of them for the other, who
// could hang in closing them.
func localPair() (p, q *broker.Descriptor, sealed bool, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, false, fmt.Errorf("service: socketpair: %w", err)
	}
	sealed = true
	for _, fd := range fds {
		sealed = unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, 0) == nil && sealed
	}
	return broker.NewDescriptor(fds[0]), broker.NewDescriptor(fds[1]), sealed, nil
}

// idleTCP is nil for a TCP socket on whose connection no byte went either way.
func idleTCP(fd int) error {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.State != tcpEstablished || info.Bytes_sent != 0 || info.Bytes_received != 0 {
		return errNotIdle
	}
	return nil
}

// connectLocal serves the client of a flight whose TCP connection is made.
func (s *Service) connectLocal(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, f *flight) (goesOn bool) {
	hold(c, sock).setSide(&f.clientSide)
	switch placed, err := c.Local(ctx, f.p); {
	case err != nil:
		s.local.land(f, wentAway)
		return false
	case !placed:
		s.staysTCP(c, sock, true, errNotPlaced)
		s.local.land(f, wentTCP)
		s.openAgreed(f, sock)
		return false
	}
	s.local.land(f, wentLocal)
	s.isLocal(c, sock, true)
	if !s.awaitAccept(ctx, f) {
		return s.unaccepted(ctx, c, sock, f)
	}
	s.local.side(ctx, &f.clientSide, sock)
	return true
}

// acceptLocal serves the server of a flight, which has claimed it.
func (s *Service) acceptLocal(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, f *flight) (goesOn bool) {
	if s.local.outcome(f) == wentTCP {
		s.staysTCP(c, sock, false, errNotPlaced)
		_ = c.NotCandidate(errNotPlaced.Error())
		return false
	}
	s.local.mu.Lock()
	f.serverSide.c = c
	s.local.mu.Unlock()
	hold(c, sock).setSide(&f.serverSide)
	_, err := c.Local(ctx, f.q)
	_ = f.q.Close()
	if err == nil {
		select {
		case <-f.landed:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	result := s.local.outcome(f)
	if err == nil && result == wentLocal {
		s.isLocal(c, sock, false)
		s.local.side(ctx, &f.serverSide, sock)
		return true
	}
	s.local.mu.Lock()
	s.local.noSide(f)
	s.local.mu.Unlock()
	if result == wentTCP {
		s.openAgreed(f, sock)
		return s.relayHere(ctx, c, sock, f.p)
	}
	return false
}

// outcome returns what became of a flight so far.
func (t *localTable) outcome(f *flight) outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	return f.result
}

func (s *Service) isLocal(c *broker.Conn, sock *broker.Descriptor, client bool) {
	_ = sock.Control(func(fd int) error {
		s.programs.IsLocal(ownerOf(c.Launcher()), fd, client)
		return nil
	})
}

// awaitAccept waits until a handler of this service has the other side of a flight
// whose client has its end, and reports false if that is not to be.
func (s *Service) awaitAccept(ctx context.Context, f *flight) bool {
	select {
	case <-f.taken:
		return true
	default:
	}
	tcp, stop, err := s.local.watch.tcp(f)
	if err != nil {
		s.log.Warn("cannot watch a connection", "err", err)
	} else {
		defer stop()
	}
	look := s.lookForStranger(f)
	for elsewhere := false; !elsewhere; {
		select {
		case <-f.taken:
			return true
		case <-look.due():
			elsewhere = look.sees()
			continue
		case <-tcp: // whoever accepted speaks TCP, or nobody will
		case <-f.stranger:
		case <-ctx.Done():
		case <-s.ending.Done():
		}
		break
	}
	if f.abroad != nil && !f.withdrawAbroad() {
		return true
	}
	return !s.local.withdraw(f)
}

// strangerFirst is when it is asked first whether a process without a launcher of
// this stack has accepted a connection; each pause is twice the one before.
const (
	strangerFirst = time.Second
	strangerLast  = 16 * time.Second
)

// strangerLook asks that. A program's launcher tells of a connection as soon as it has
// it, so one that is accepted at two looks is somebody else's.
type strangerLook struct {
	locator network.Locator // nil: nobody knows
	name    tuple
	pause   time.Duration
	held    bool
}

// lookForStranger begins the looks for a flight whose server is at this stack.
func (s *Service) lookForStranger(f *flight) *strangerLook {
	l := &strangerLook{locator: s.programs.Locator(), name: s.local.nameOf(f), pause: strangerFirst}
	if f.abroad != nil && f.sock != nil {
		l.locator = nil // the other stack looks
	}
	return l
}

func (l *strangerLook) due() <-chan time.Time {
	if l.locator == nil {
		return nil
	}
	return time.After(l.pause)
}

func (l *strangerLook) sees() bool {
	l.pause = min(2*l.pause, strangerLast)
	before := l.held
	held, ok, err := l.locator.Finds(l.name.server, l.name.client)
	l.held = held && ok
	return err == nil && (before && l.held || !ok) // or the connection has ended
}

// unaccepted goes on with a flight that its client takes for made, after
// awaitAccept reported false: the program's bytes go over TCP. The kernel may reset
// that, which the relay passes on.
func (s *Service) unaccepted(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, f *flight) (goesOn bool) {
	s.openAgreed(f, sock)
	return s.relayHere(ctx, c, sock, f.q)
}

// openAgreed lets the programs send over TCP after all, where both stacks know that
// nobody speaks CLC on the connection.
func (s *Service) openAgreed(f *flight, sock *broker.Descriptor) {
	if f.abroad == nil {
		return // open already
	}
	if err := sock.Control(s.programs.OpenAgreed); err != nil {
		s.log.Warn("cannot open a connection to its program", "err", err)
	}
}
