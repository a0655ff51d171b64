// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"sync"

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
	uid    uint32             // of the client's launcher
	port   uint16             // of the server
	p, q   *broker.Descriptor // the pair: the client's end, the server's
	held   *holding           // of both
	sealed bool               // neither end can pass descriptors to the other

	taken    chan struct{} // closed when the server's handler has it
	finished chan struct{} // closed when the result is known
	refused  chan struct{} // closed when the connection was accepted by a program that uses TCP

	// Guarded by localTable.mu.
	name                   tuple // zero until the client's port is known
	slow                   bool  // the client's socket was locked when its name was asked for
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

	// listening lists the ports of the listening sockets. Nil: this cannot be found out.
	listening func() (map[uint16]bool, error)

	mu       sync.Mutex
	ports    localPorts
	leaving  map[uint16]map[*localConn]bool
	pending  map[tuple]*localConn
	memories localMemories
}

// newLocalConn makes a localConn that is not in the table yet.
func (t *localTable) newLocalConn(c *broker.Conn, sock *broker.Descriptor, port uint16, p, q *broker.Descriptor, sealed bool) *localConn {
	f := &localConn{
		table: t, client: c, sock: sock, port: port, p: p, q: q, sealed: sealed,
		taken: make(chan struct{}), finished: make(chan struct{}), refused: make(chan struct{}),
	}
	if c != nil { // as in tests
		f.uid = c.Launcher().UID
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

// finish sets the result of a localConn on the client's side. The first call counts.
func (t *localTable) finish(f *localConn, result outcome) {
	if result == outcomeTCP {
		t.nameOf(f)
	}
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
		t.remember(f)
		t.drop(f)
	default:
		t.forget(f)
		t.drop(f)
	}
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
	t.nameOf(f)
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.accept {
		return false
	}
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
