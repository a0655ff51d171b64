// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"time"

	"smcr/userstack/broker"
	"smcr/userstack/internal/bounded"
)

// Whoever has a TCP socket can keep its lock for ever, and what asks for its address or its
// state then waits. So nothing does that while it has the lock of the table, and nothing waits
// longer than lockedTime for the socket of another user. Time in which this process does not run
// does not count: on a busy machine, the other thread probably does not run either.
const lockedTime = 250 * time.Millisecond

// errLocked means that the state of the other end of a connection cannot be found out.
var errLocked = fmt.Errorf("service: the client's socket is locked by a system call of its program: %w", bounded.ErrLocked)

// aside calls f in a goroutine. It returns false if f takes longer than lockedTime. Then f goes
// on.
func (t *localTable) aside(f func()) bool {
	done := make(chan struct{})
	go t.guarded(func() {
		defer close(done)
		f()
	})()
	return bounded.Wait(done, lockedTime)
}

// claim finds the localConn whose TCP connection ends in fd, an accepted socket of
// l. No other caller gets the same one. An error means that the connection had
// a localConn and must be TCP: CLC messages are not trusted on it, because a program at
// the other end can send anything.
func (t *localTable) claim(fd int, l *broker.Launcher) (*localConn, error) {
	t.mu.Lock()
	none := len(t.leaving) == 0 && len(t.pending) == 0 && t.memories.empty()
	t.mu.Unlock()
	if none {
		return nil, nil
	}
	server, err := socketAddr(bounded.Sockname(fd))
	if err != nil {
		return nil, nil
	}
	client, err := socketAddr(bounded.Peername(fd))
	if err != nil {
		return nil, nil
	}
	name := tuple{unzoned(client), unzoned(server)}
	t.nameAll(server.Port(), name)
	f, err := t.find(name, l)
	if f == nil || err != nil {
		return nil, err
	}
	err = joinable(fd)
	if err == nil {
		err = idleTCP(fd)
	}
	if err == nil {
		err = t.idle(f)
	}
	if err == nil && !f.sealed && l.UID != f.client.Launcher().UID {
		err = errNotSealed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.pending[name] != f: // it became TCP meanwhile
		t.memories.forget(name)
		return nil, errNotPlaced
	case err != nil:
		// The program of the server uses TCP from now on.
		t.forget(f)
		close(f.refused)
		return nil, err
	}
	delete(t.pending, name)
	f.accept = true
	close(f.taken)
	return f, nil
}

// find returns the localConn with a name, if launcher l may have it.
func (t *localTable) find(name tuple, l *broker.Launcher) (*localConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.pending[name]
	switch {
	case f == nil && t.memories.forget(name):
		return nil, errNotPlaced
	case f == nil:
		return nil, nil
	case !l.Local:
		// The program of another launcher listens on the port too, and chose this.
		t.forget(f)
		close(f.refused)
		return nil, errNotChosen
	}
	return f, nil
}

// idle returns nil if no byte was sent on the client's socket.
func (t *localTable) idle(f *localConn) error {
	result := make(chan error, 1)
	if !t.aside(func() { result <- f.sock.Control(idleTCP) }) {
		return errLocked
	}
	select {
	case err := <-result:
		return err
	default: // a panic
		return errLocked
	}
}

// nameAll names the localConns to a port, until there is one with this name. It waits once for
// one whose socket is locked.
func (t *localTable) nameAll(port uint16, name tuple) {
	t.mu.Lock()
	var all []*localConn
	for f := range t.leaving[port] {
		if !f.slow {
			all = append(all, f)
		}
	}
	t.mu.Unlock()
	if len(all) == 0 {
		return
	}
	named := make(chan *localConn, len(all))
	for _, f := range all {
		go t.guarded(func() {
			defer func() { named <- f }()
			t.nameOf(f)
		})()
	}
	found, late := make(chan struct{}), make(chan struct{})
	defer close(found)
	go t.guarded(func() {
		if !bounded.Wait(found, lockedTime) {
			close(late)
		}
	})()
	done := map[*localConn]bool{}
	for len(done) < len(all) {
		select {
		case f := <-named:
			done[f] = true
			t.mu.Lock()
			there := t.pending[name] != nil
			t.mu.Unlock()
			if there {
				return
			}
		case <-late:
			t.mu.Lock()
			defer t.mu.Unlock()
			for _, f := range all {
				f.slow = f.slow || !done[f]
			}
			return
		}
	}
}

// nameOf returns the addresses of a localConn, zero if its TCP connection is not made.
func (t *localTable) nameOf(f *localConn) tuple {
	t.mu.Lock()
	name, leaves := f.name, t.leaving[f.port][f]
	t.mu.Unlock()
	if !leaves {
		return name
	}
	var client, server netip.AddrPort
	if f.sock.Control(func(fd int) (err error) {
		if client, err = socketAddr(bounded.Sockname(fd)); err == nil {
			server, err = socketAddr(bounded.Peername(fd))
		}
		return err
	}) != nil {
		return name // not connected yet
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leaving[f.port][f] {
		f.name = tuple{unzoned(client), unzoned(server)}
		t.forget(f)
		t.pending[f.name] = f
	}
	return f.name
}
