// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/userstack/broker"
)

// tuple identifies a TCP connection by its addresses, as the client sees it.
type tuple struct{ client, server netip.AddrPort }

// A localConn is a connection whose two programs are, or may be, on this host. It
// exists from before the client's SYN until the server has accepted it.
type localConn struct {
	table  *localTable
	client *broker.Conn
	sock   *broker.Descriptor // the client's TCP socket
	port   uint16             // of the server
	p, q   *broker.Descriptor // the pair: the client's end, the server's
	held   *holding           // of both
	sealed bool               // neither end can pass descriptors to the other

	taken    chan struct{} // closed when the server's handler has it
	finished chan struct{} // closed when the result is known
	refused  chan struct{} // closed when the connection was accepted by a program that did not choose this

	// Guarded by localTable.mu.
	name                   tuple // zero until the client's port is known
	result                 outcome
	accept                 bool // taken is closed
	clientSide, serverSide localSide
}

// localTable has the local connections of a service.
type localTable struct {
	// exists reports whether there is a connection to a server of this network
	// namespace. Nil: this cannot be found out.
	exists func(tuple) bool
	guard  *guard.Guard // nil: panics end the process, in tests

	holder holder

	mu      sync.Mutex
	ports   map[uint16]map[uint32]bool // ports on which programs have listened, and their users
	defers  map[uint16]bool            // ports of listeners with TCP_DEFER_ACCEPT
	leaving map[uint16]map[*localConn]bool
	pending map[tuple]*localConn
}

// listens records that a program's socket is about to listen.
func (t *localTable) listens(fd int, uid uint32) {
	ap, err := socketAddr(unix.Getsockname(fd))
	if err != nil {
		return
	}
	defers, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deferring(ap.Port(), err == nil && defers != 0)
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

// deferring records whether a listener on a port has TCP_DEFER_ACCEPT. The kernel then
// completes a connection when the client has sent data, which does not go over TCP if the
// programs have a pair. The last listener counts. A launcher repeats Listen when a program sets
// the option later. The caller holds mu.
func (t *localTable) deferring(port uint16, defers bool) {
	switch {
	case !defers:
		delete(t.defers, port)
	case t.defers == nil:
		t.defers = map[uint16]bool{port: true}
	default:
		t.defers[port] = true
	}
}

// defersAccept reports whether a listener on a port has TCP_DEFER_ACCEPT.
func (t *localTable) defersAccept(port uint16) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.defers[port]
}

// hasListener reports whether a program, of user uid if it is given, has listened on
// a port.
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

// newLocalConn makes a localConn that is not in the table yet.
func (t *localTable) newLocalConn(c *broker.Conn, sock *broker.Descriptor, port uint16, p, q *broker.Descriptor, sealed bool) *localConn {
	f := &localConn{
		table: t, client: c, sock: sock, port: port, p: p, q: q, sealed: sealed,
		taken: make(chan struct{}), finished: make(chan struct{}), refused: make(chan struct{}),
	}
	f.clientSide = localSide{f: f, c: c, peer: &f.serverSide, placed: make(chan struct{})}
	f.serverSide = localSide{f: f, peer: &f.clientSide, placed: make(chan struct{})}
	return f
}

// add adds a localConn whose TCP connection is about to be made.
func (t *localTable) add(f *localConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leaving == nil {
		t.leaving, t.pending = map[uint16]map[*localConn]bool{}, map[tuple]*localConn{}
	}
	if t.leaving[f.port] == nil {
		t.leaving[f.port] = map[*localConn]bool{}
	}
	t.leaving[f.port][f] = true
}

// claim finds the localConn whose TCP connection ends in fd, an accepted socket of
// l. No other caller gets the same one. An error means that the connection had
// a localConn and must be TCP: CLC messages are not trusted on it, because a program at
// the other end can send anything.
func (t *localTable) claim(fd int, l *broker.Launcher) (*localConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.leaving) == 0 && len(t.pending) == 0 {
		return nil, nil
	}
	server, err := socketAddr(unix.Getsockname(fd))
	if err != nil {
		return nil, nil
	}
	client, err := socketAddr(unix.Getpeername(fd))
	if err != nil {
		return nil, nil
	}
	name := tuple{unzoned(client), unzoned(server)}
	for f := range t.leaving[server.Port()] {
		t.nameIt(f)
	}
	f := t.pending[name]
	if f == nil {
		return nil, nil
	}
	if !l.Local {
		// The program of another launcher listens on the port too, and chose this.
		t.forget(f)
		close(f.refused)
		return nil, errNotChosen
	}
	if f.result == outcomeTCP {
		delete(t.pending, name)
		return nil, errNotPlaced
	}
	err = joinable(fd)
	if err == nil {
		err = idleTCP(fd)
	}
	if err == nil {
		err = f.sock.Control(idleTCP)
	}
	if err == nil && !f.sealed && l.UID != f.client.Launcher().UID {
		err = errNotSealed
	}
	if err != nil {
		return nil, err
	}
	delete(t.pending, name)
	f.accept = true
	close(f.taken)
	return f, nil
}

// nameIt sets the addresses of a localConn after the kernel has chosen them. The
// caller holds mu.
func (t *localTable) nameIt(f *localConn) {
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

// nameOf returns the addresses of a localConn whose TCP connection is made.
func (t *localTable) nameOf(f *localConn) tuple {
	t.mu.Lock()
	defer t.mu.Unlock()
	if byPort := t.leaving[f.port]; byPort[f] {
		t.nameIt(f)
	}
	return f.name
}

// forget removes a localConn from those that may be claimed. The caller holds mu.
func (t *localTable) forget(f *localConn) {
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

// tcpMemory is the time after which remember checks whether a connection that became
// TCP, and that its server has not accepted, still exists.
const tcpMemory = 2 * time.Minute

// finish sets the result of a localConn on the client's side. The first call counts.
func (t *localTable) finish(f *localConn, result outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.result != outcomePending {
		return
	}
	f.result = result
	close(f.finished)
	if result == outcomeLocal {
		return
	}
	f.held.forget()
	switch {
	case f.accept && result == outcomeTCP: // the server's handler needs p
	case f.accept:
		go f.p.Close() //nolint:errcheck // no one needs the result
	case result == outcomeTCP:
		t.nameIt(f)
		t.remember(f)
		t.drop(f)
	default:
		t.forget(f)
		t.drop(f)
	}
}

// remember keeps a localConn that became TCP until its server accepts it, or the
// connection has ended. The caller holds mu.
func (t *localTable) remember(f *localConn) {
	f.result = outcomeTCP
	t.pending[f.name] = f
	var again func()
	again = func() {
		if t.exists != nil && t.exists(f.name) {
			time.AfterFunc(tcpMemory, t.guarded(again))
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.forget(f)
	}
	time.AfterFunc(tcpMemory, t.guarded(again))
}

// guarded returns a function that calls f, which is about connections within the host.
func (t *localTable) guarded(f func()) func() {
	if t.guard == nil {
		return f
	}
	return t.guard.Func("a connection within the host", f)
}

// drop closes the pair of a localConn that was not claimed. The caller holds mu.
func (t *localTable) drop(f *localConn) {
	go func() {
		_ = f.p.Close()
		_ = f.q.Close()
	}()
}

// claimed reports whether a localConn is claimed.
func (t *localTable) claimed(f *localConn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return f.accept
}

// withdraw makes it impossible to claim a localConn, which is TCP then. It reports false if it was
// claimed before. The connection is remembered: if a launcher was only late, its program must get
// what is in the TCP connection, which has no CLC messages.
func (t *localTable) withdraw(f *localConn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.accept {
		return false
	}
	t.nameIt(f)
	t.forget(f)
	t.remember(f)
	return true
}

// localSide is one side of a localConn.
type localSide struct {
	f      *localConn
	peer   *localSide
	placed chan struct{} // closed when place has returned

	// Guarded by localTable.mu.
	c      *broker.Conn // nil: not accepted yet
	detour bool         // the service carries its bytes
	over   bool         // it does not any more
	then   []func()     // to be called when over is set
}

// divertedUntil reports whether the service carries the bytes of x. If so, f is called when
// that is over.
func (x *localSide) divertedUntil(f func()) bool {
	t := x.f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if !x.detour || x.over {
		return false
	}
	x.then = append(x.then, f)
	return true
}

// close ends the holding of pairs.
func (t *localTable) close() error { return t.holder.close() }
