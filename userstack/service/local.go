// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/internal/inside"
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
	errNotPlaced = fmt.Errorf("%w, and the call was interrupted", errNotLocal)
	errNotIdle   = errors.New("service: a TCP connection is not established and unused")
)

// tuple names a TCP connection as its client sees it.
type tuple struct{ client, server netip.AddrPort }

// outcome is what became of a flight at its client.
type outcome uint8

const (
	underWay  outcome = iota
	wentLocal         // the program has its end
	wentTCP           // the program has its TCP socket
	wentAway          // the program gave up
)

// A flight is a connection of which both programs are of this host, or may be: from
// before its client's SYN until an end of the pair is closed.
type flight struct {
	table  *localTable
	id     uint64
	client *broker.Conn
	sock   *broker.Descriptor // the client's TCP socket
	port   uint16             // of the server
	p, q   *broker.Descriptor // the pair: the client's end, the server's
	sealed bool               // neither end can pass descriptors to the other

	taken  chan struct{} // closed when the server's handler has it
	landed chan struct{} // closed when the outcome is known

	// Guarded by localTable.mu.
	name     tuple // zero until the client's port is known
	result   outcome
	accept   bool          // taken is closed
	hungUp   bool          // one of the ends was closed
	missing  int           // how many sides have not called side or noSide
	leave    []func()      // end a side each
	stranger chan struct{} // closed when somebody else has accepted
}

// localTable has the flights of a service.
type localTable struct {
	off bool // --no-local

	mu      sync.Mutex
	ports   map[uint16]map[uint32]bool // ports on which programs have listened, and their users
	leaving map[uint16]map[*flight]bool
	pending map[tuple]*flight
	byID    map[uint64]*flight
	watch   pairWatch
	closed  bool
}

// listens remembers that a program's socket is about to listen.
func (t *localTable) listens(fd int, uid uint32) {
	ap, err := socketAddr(unix.Getsockname(fd))
	if err != nil || t.off {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ports == nil {
		t.ports = map[uint16]map[uint32]bool{}
	}
	users := t.ports[ap.Port()] // 0: the kernel chooses one in listen()
	if users == nil {
		users = map[uint32]bool{}
		t.ports[ap.Port()] = users
	}
	users[uid] = true
}

// hasListener tells whether a program has listened on a port, of the user where one
// is given.
func (t *localTable) hasListener(port uint16, uid *uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range []uint16{port, 0} {
		users := t.ports[p]
		if uid == nil && len(users) > 0 || uid != nil && users[*uid] {
			return true
		}
	}
	return false
}

// candidate is Candidate of the stack. Where the peer is a program of this host, it
// returns a flight.
func (s *Service) candidate(c *broker.Conn, sock *broker.Descriptor, fd int, local netip.Addr, remote netip.AddrPort) (*flight, error) {
	err := s.programs().Candidate(local, remote.Addr(), fd)
	switch {
	case !errors.Is(err, inside.ErrThisHost):
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
	f := &flight{
		table: &s.local, client: c, sock: sock, port: remote.Port(), p: p, q: q, sealed: sealed, missing: 2,
		taken: make(chan struct{}), landed: make(chan struct{}), stranger: make(chan struct{}),
	}
	uid := c.Launcher().UID
	if !sealed && !s.local.hasListener(f.port, &uid) {
		err = fmt.Errorf("%w, and the kernel cannot keep users from passing descriptors to each other (SO_PASSRIGHTS)", errNotLocal)
	}
	if err == nil {
		err = s.programs().CandidateHere(fd)
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

// depart enters a flight whose connection is about to be made.
func (t *localTable) depart(f *flight) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leaving == nil {
		t.leaving, t.pending, t.byID = map[uint16]map[*flight]bool{}, map[tuple]*flight{}, map[uint64]*flight{}
	}
	if err := t.watch.add(t, f); err != nil {
		return err
	}
	t.byID[f.id] = f
	if t.leaving[f.port] == nil {
		t.leaving[f.port] = map[*flight]bool{}
	}
	t.leaving[f.port][f] = true
	return nil
}

// claim finds the flight whose TCP connection ends in fd, an accepted socket, for
// user uid. It is the caller's then: nobody else gets it.
func (t *localTable) claim(fd int, uid uint32) *flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.leaving) == 0 && len(t.pending) == 0 {
		return nil
	}
	server, err := socketAddr(unix.Getsockname(fd))
	if err != nil {
		return nil
	}
	client, err := socketAddr(unix.Getpeername(fd))
	if err != nil {
		return nil
	}
	name := tuple{unzoned(client), unzoned(server)}
	for f := range t.leaving[server.Port()] {
		t.nameIt(f)
	}
	f := t.pending[name]
	if f == nil || !f.sealed && uid != f.client.Launcher().UID || joinable(fd) != nil ||
		idleTCP(fd) != nil || f.result != wentTCP && f.sock.Control(idleTCP) != nil {
		return nil
	}
	delete(t.pending, name)
	f.accept = true
	close(f.taken)
	return f
}

// nameIt enters a flight under its addresses once the kernel has chosen them. mu is
// held.
func (t *localTable) nameIt(f *flight) {
	var client, server netip.AddrPort
	if f.sock.Control(func(fd int) (err error) {
		if client, err = socketAddr(unix.Getsockname(fd)); err == nil {
			server, err = socketAddr(unix.Getpeername(fd))
		}
		return err
	}) != nil {
		return // not connected yet
	}
	f.name = tuple{unzoned(client), unzoned(server)}
	t.forget(f)
	t.pending[f.name] = f
}

// forget takes a flight out of those that may be claimed. mu is held.
func (t *localTable) forget(f *flight) {
	if byPort := t.leaving[f.port]; byPort[f] {
		delete(byPort, f)
		if len(byPort) == 0 {
			delete(t.leaving, f.port)
		}
	}
	if t.pending[f.name] == f {
		delete(t.pending, f.name)
	}
}

func unzoned(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().WithZone(""), ap.Port())
}

// idleTCP is nil for a TCP socket on whose connection no byte went either way.
func idleTCP(fd int) error {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.State != tcpEstablished || info.Bytes_sent != 0 || info.Bytes_received != 0 {
		return errNotIdle
	}
	return nil
}

// tcpMemory is how long the server of a connection whose client has its TCP socket
// may take to accept it: then the client's announcement of SMC counts again.
const tcpMemory = 2 * time.Minute

// land tells what became of a flight at its client, once.
func (t *localTable) land(f *flight, result outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.result != underWay {
		return
	}
	f.result = result
	close(f.landed)
	if result == wentLocal {
		// The last reference is the program's.
		_ = unix.Close(f.p.Take())
		return
	}
	t.noSide(f)
	switch {
	case f.accept && result == wentTCP: // the server's handler needs p
	case f.accept:
		go f.p.Close() //nolint:errcheck // nobody is left to be told
	case result == wentTCP:
		t.nameIt(f)
		time.AfterFunc(tcpMemory, func() { t.withdraw(f) })
		t.drop(f)
	default:
		t.forget(f)
		t.drop(f)
	}
}

// drop ends the pair of a flight that nobody has claimed. mu is held.
func (t *localTable) drop(f *flight) {
	delete(t.byID, f.id)
	go func() {
		_ = f.p.Close()
		_ = f.q.Close()
	}()
}

// claimed tells whether a flight is claimed.
func (t *localTable) claimed(f *flight) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return f.accept
}

// withdraw reports whether nobody has claimed a flight, and nobody will.
func (t *localTable) withdraw(f *flight) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.accept {
		return false
	}
	t.forget(f)
	delete(t.byID, f.id)
	return true
}

// connectLocal serves the client of a flight whose TCP connection is made.
func (s *Service) connectLocal(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, f *flight) (goesOn bool) {
	hold(c, sock)
	switch placed, err := c.Local(ctx, f.p); {
	case err != nil:
		s.local.land(f, wentAway)
		return false
	case !placed:
		s.staysTCP(c, sock, true, errNotPlaced)
		s.local.land(f, wentTCP)
		return false
	}
	s.local.land(f, wentLocal)
	s.isLocal(c, sock, true)
	if !s.awaitAccept(ctx, f) {
		return s.unaccepted(ctx, c, sock, f)
	}
	s.local.side(ctx, f, c, sock)
	return true
}

// acceptLocal serves the server of a flight, which has claimed it.
func (s *Service) acceptLocal(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, f *flight) (goesOn bool) {
	if s.local.outcome(f) == wentTCP {
		s.staysTCP(c, sock, false, errNotPlaced)
		_ = c.NotCandidate(errNotPlaced.Error())
		return false
	}
	hold(c, sock)
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
		s.local.side(ctx, f, c, sock)
		return true
	}
	s.local.mu.Lock()
	s.local.noSide(f)
	s.local.mu.Unlock()
	if result == wentTCP {
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
		s.programs().IsLocal(ownerOf(c.Launcher()), fd, client)
		return nil
	})
}

// side lets one side of a flight go on without its handler, until an end of the
// pair is closed or the launcher leaves.
func (t *localTable) side(ctx context.Context, f *flight, c *broker.Conn, sock *broker.Descriptor) {
	end := c.Keep()
	var once sync.Once
	leave := func() {
		once.Do(func() {
			_ = sock.Close()
			end()
		})
	}
	stop := context.AfterFunc(ctx, leave)
	t.mu.Lock()
	defer t.mu.Unlock()
	f.leave = append(f.leave, func() { stop(); leave() })
	t.noSide(f)
}

// noSide counts a side of a flight that is settled, one way or the other. mu is
// held.
func (t *localTable) noSide(f *flight) {
	f.missing--
	t.review(f)
}

// review ends a flight that is over. mu is held.
func (t *localTable) review(f *flight) {
	if !f.hungUp || f.missing > 0 {
		return
	}
	delete(t.byID, f.id)
	leave := f.leave
	f.leave = nil
	for _, l := range leave {
		go l()
	}
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
	select {
	case <-f.taken:
		return true
	case <-tcp: // whoever accepted speaks TCP, or nobody will
	case <-f.stranger:
	case <-ctx.Done():
	case <-s.ending.Done():
	}
	return !s.local.withdraw(f)
}

// unaccepted goes on with a flight that its client takes for made, after
// awaitAccept reported false: the program's bytes go over TCP. The kernel may reset
// that, which the relay passes on.
func (s *Service) unaccepted(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, f *flight) (goesOn bool) {
	return s.relayHere(ctx, c, sock, f.q)
}
