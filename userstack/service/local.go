// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/internal/joined"
	"smcr/userstack/network"
)

// If both programs of a connection are on this host and have chosen it, no process carries
// its bytes: each program gets one end of a socketpair. The service sees both TCP sockets, and
// the kernel reports that they are the two ends of one connection.
//
//	client's handler (Connect)              | server's handler (Accept)
//	adds a localConn to the table           |
//	TCP connection is made                  |
//	Local: the launcher places one end      | finds the localConn by its addresses, and
//	                                        | gives the other end to the program
//	the client has its end                  | complete
//	it does not (interrupted, ...)          | relays between the pair and TCP
//	the client has closed                   | the program reads the end of the stream
//	no accept here (see awaitAccept)        | -
//
// The service keeps both ends and both TCP sockets, so that a close looks like that of TCP:
// see holder.

// errNotLocal is wrapped by the reason why a connection to this host stays TCP.
var errNotLocal = network.ErrThisHost

var (
	errNoProgram = fmt.Errorf("%w, and no program under 'smcr run --local' listens there", errNotLocal)
	errBound     = fmt.Errorf("%w, and a socket is bound to a device", errNotLocal)
	errNotChosen = fmt.Errorf("%w, and the server was not started with --local", errNotLocal)
	errNotPlaced = fmt.Errorf("%w, and the launcher was told too late", errNotLocal)
	errNotSealed = fmt.Errorf("%w, and the kernel cannot keep users from passing descriptors to each other (SO_PASSRIGHTS)", errNotLocal)
	errNotHeld   = fmt.Errorf("%w, and the stack cannot see when a program closes its end", errNotLocal)
	errDefers    = fmt.Errorf("%w, and the server has set TCP_DEFER_ACCEPT", errNotLocal)
	errNotHere   = fmt.Errorf("%w by its address, but the server is not: it was not found in this network namespace", errNotLocal)
	errNotIdle   = errors.New("service: a TCP connection is not established and unused")
)

// outcome is the result of a localConn on the client's side.
type outcome uint8

const (
	outcomePending outcome = iota
	outcomeLocal           // the program has its end
	outcomeTCP             // the program has its TCP socket
	outcomeClosed          // the program gave up
)

// candidate calls Candidate of the stack. If the peer is a program of this host, it
// returns a localConn.
func (s *Service) candidate(c *broker.Conn, sock *broker.Descriptor, fd int, local netip.Addr, remote netip.AddrPort) (*localConn, error) {
	if s.machine.has(remote.Addr()) {
		return nil, errNotLocal
	}
	err := s.programs.Candidate(ownerOf(c.Launcher()), local, remote.Addr(), fd)
	switch {
	case !errors.Is(err, network.ErrThisHost):
		return nil, err
	case !c.Launcher().Local:
		return nil, errNotLocal
	case s.local.defersAccept(remote.Port()):
		return nil, errDefers
	case !s.local.hasListener(remote.Port(), nil):
		return nil, errNoProgram
	case s.local.missed(remote.Port(), time.Now()):
		return nil, errNotChosen
	}
	if err := joinable(fd); err != nil {
		return nil, err
	}
	p, q, sealed, err := localPair()
	if err != nil {
		return nil, err
	}
	f := s.local.newLocalConn(c, sock, remote.Port(), p, q, sealed)
	uid := c.Launcher().UID
	if !sealed && !s.local.hasListener(f.port, &uid) {
		err = errNotSealed
	}
	if err == nil {
		f.held, err = s.local.holder.add(uid, p, q)
	}
	if err == nil {
		err = s.programs.CandidateHere(ownerOf(c.Launcher()), fd)
	}
	if err != nil {
		if f.held != nil {
			f.held.forget()
		}
		_ = p.Close()
		_ = q.Close()
		return nil, err
	}
	s.local.add(f)
	return f, nil
}

// joinable returns nil, or the reason why a socket must stay TCP.
func joinable(fd int) error {
	if dev, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err != nil || dev != 0 {
		return errBound // the addresses alone would not identify the connection
	}
	return nil
}

const (
	soPassRights = 83 // SO_PASSRIGHTS (Linux 6.16)
	soBufLock    = 72 // SO_BUF_LOCK
)

// pairMemory is SO_SNDBUF of both ends, in bytes, unless a program sets it. It is about what
// TCP grows to (net.ipv4.tcp_wmem), and the kernel charges it to the sender's cgroup.
const pairMemory = 4 << 20

// localPair makes the pair for two programs that may not trust each other. sealed
// means that the kernel refuses to pass descriptors over the pair. Without it, the
// close of a passed descriptor could block the receiver.
func localPair() (p, q *broker.Descriptor, sealed bool, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, false, fmt.Errorf("service: socketpair: %w", err)
	}
	sealed = true
	for _, fd := range fds {
		sealed = unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, 0) == nil && sealed
		// The kernel doubles the value.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, pairMemory/2)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, soBufLock, 0) // the program has not set it
	}
	return broker.NewDescriptor(fds[0]), broker.NewDescriptor(fds[1]), sealed, nil
}

// idleTCP returns nil if no byte was sent in either direction on the connection of
// a TCP socket, and none waits to be sent (TCP_CORK).
func idleTCP(fd int) error {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.State != tcpEstablished || info.Bytes_sent != 0 || info.Bytes_received != 0 || info.Notsent_bytes != 0 {
		return errNotIdle
	}
	return nil
}

// connectLocal serves the client of a localConn after its TCP connection is made.
func (s *Service) connectLocal(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, f *localConn) (goesOn bool) {
	hold(c, sock, s.cfg.MinKeepAlive).setSide(&f.clientSide)
	switch placed, err := f.clientSide.place(ctx, c); {
	case err != nil:
		s.local.finish(f, outcomeClosed)
		return false
	case !placed:
		s.staysTCP(c, sock, true, errNotPlaced)
		s.local.finish(f, outcomeTCP)
		return false
	}
	f.held.begin(c, sock)
	s.local.finish(f, outcomeLocal)
	s.isLocal(c, sock, true)
	if !s.awaitAccept(ctx, f) {
		// The program's bytes go over TCP. If the kernel resets the TCP connection, the
		// relay resets the program's end.
		f.held.forget()
		_ = f.p.Close()
		return s.relayHere(ctx, c, sock, f.q)
	}
	f.held.keep(ctx, joined.Client, &f.clientSide)
	return true
}

// acceptLocal serves the server of a localConn, after it has claimed it.
func (s *Service) acceptLocal(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, f *localConn) (goesOn bool) {
	if s.local.outcome(f) == outcomeTCP {
		s.staysTCP(c, sock, false, errNotPlaced)
		_ = c.NotCandidate(errNotPlaced.Error())
		return false
	}
	hold(c, sock, s.cfg.MinKeepAlive).setSide(&f.serverSide)
	_, err := f.serverSide.place(ctx, c)
	select {
	case <-f.finished:
	case <-ctx.Done():
		err = context.Cause(ctx)
		<-f.finished // soon: the client's launcher was asked before
	}
	switch s.local.outcome(f) {
	case outcomeLocal:
		// If the launcher has gone, the program has closed, as far as the client can see.
		s.isLocal(c, sock, false)
		f.held.placed(c, sock)
		f.held.keep(ctx, joined.Server, &f.serverSide)
		return true
	case outcomeTCP:
		_ = f.q.Close()
		if err != nil {
			_ = f.p.Close()
			return false
		}
		return s.relayHere(ctx, c, sock, f.p)
	default:
		_ = f.q.Close()
		return false
	}
}

// outcome returns the current result of a localConn.
func (t *localTable) outcome(f *localConn) outcome {
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

// awaitAccept waits until a handler of this service has the server's side of a
// localConn whose client has its end. It reports false if that will not happen.
func (s *Service) awaitAccept(ctx context.Context, f *localConn) bool {
	select {
	case <-f.taken:
		return true
	default:
	}
	look := newAcceptCheck(s.programs.Locator(), &s.local, f)
	for elsewhere := false; !elsewhere; {
		select {
		case <-f.taken:
			return true
		case <-look.due():
			elsewhere = look.elsewhere()
			continue
		case <-f.refused:
		case <-f.held.used: // the process that accepted uses TCP, or the connection has ended
		case <-ctx.Done():
		case <-s.ending.Done():
		}
		break
	}
	if !s.local.withdraw(f) {
		return true
	}
	if look.other {
		s.local.misses(f.port, time.Now())
	}
	return false
}

// acceptCheckFirst is the time of the first check whether a process without a launcher
// of this stack has accepted a connection; each pause is twice the one before.
const (
	acceptCheckFirst = time.Second
	acceptCheckLast  = 16 * time.Second
)

// acceptCheck checks whether another process has accepted a connection. A program's
// launcher reports a connection as soon as the program has it. So if two checks find
// the connection accepted, another process has it.
type acceptCheck struct {
	locator network.Locator // nil: cannot be found out
	name    tuple
	pause   time.Duration
	held    bool
	other   bool // another process has the connection
}

// newAcceptCheck begins the checks for a localConn whose server uses this stack.
func newAcceptCheck(locator network.Locator, t *localTable, f *localConn) *acceptCheck {
	return &acceptCheck{locator: locator, name: t.nameOf(f), pause: acceptCheckFirst}
}

// due returns a channel that is ready when the next check is due, or nil if there are
// no checks.
func (l *acceptCheck) due() <-chan time.Time {
	if l.locator == nil {
		return nil
	}
	return time.After(l.pause)
}

// elsewhere makes one check. It reports whether another process has the connection,
// or the connection has ended.
func (l *acceptCheck) elsewhere() bool {
	l.pause = min(2*l.pause, acceptCheckLast)
	before := l.held
	held, ok, err := l.locator.Finds(l.name.server, l.name.client)
	l.held = held && ok
	l.other = err == nil && before && l.held
	return l.other || err == nil && !ok // !ok: the connection has ended
}
