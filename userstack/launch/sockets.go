// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"sync"
	"sync/atomic"
)

const (
	// maxRetired is the number of connections that are kept after their end. Programs
	// may still have their descriptors, and ask for the addresses or for an error.
	maxRetired = 4096
	// sweepFirst is the number of listeners from which the launcher searches for
	// closed ones when there is a new one.
	sweepFirst = 64
)

// sockets has what the launcher knows about the sockets of its programs, by inode:
// connections, listeners, and connect() calls that are not decided. Most system calls
// concern none of them, and to find this out needs no lock.
type sockets struct {
	mu        sync.Mutex
	conns     map[uint64]*conn     // of the TCP socket and of the program's end
	deciding  map[uint64]*decision // of the TCP socket
	listeners map[uint64]*listener
	sweepAt   int     // number of listeners from which some are probably closed
	retired   []*conn // over, oldest first
	foreign   foreign // sockets on which accept() is the kernel's

	nConns     atomic.Int64 // len(conns)
	nDeciding  atomic.Int64 // len(deciding)
	nListeners atomic.Int64 // len(listeners)
}

func newSockets() *sockets {
	return &sockets{
		conns: make(map[uint64]*conn), deciding: make(map[uint64]*decision), listeners: make(map[uint64]*listener),
	}
}

// anyConn reports whether there is a connection.
func (t *sockets) anyConn() bool { return t.nConns.Load() > 0 }

// anyToAsk reports whether there is a connection or a connect() that is not decided.
func (t *sockets) anyToAsk() bool { return t.nConns.Load() > 0 || t.nDeciding.Load() > 0 }

// anyListener reports whether there is a listener.
func (t *sockets) anyListener() bool { return t.nListeners.Load() > 0 }

// conn returns the connection of a socket, or nil.
func (t *sockets) conn(inode uint64) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conns[inode]
}

// connOrDecision returns the connection of a socket and the connect() on it that is
// not decided. Each of them may be nil.
func (t *sockets) connOrDecision(inode uint64) (*conn, *decision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conns[inode], t.deciding[inode]
}

// addConn adds c under inode. It returns false if there is another connection under
// this inode.
func (t *sockets) addConn(inode uint64, c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.conns[inode]; old != nil && old != c {
		return false
	}
	t.conns[inode] = c
	t.nConns.Store(int64(len(t.conns)))
	return true
}

// removeConn removes c, if it is the connection under inode.
func (t *sockets) removeConn(inode uint64, c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns[inode] == c {
		delete(t.conns, inode)
		t.nConns.Store(int64(len(t.conns)))
	}
}

// retire marks c as over and keeps it. If there are too many retired connections, it
// removes the oldest: from then on, its descriptor is a plain socketpair.
func (t *sockets) retire(c *conn) {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	t.mu.Lock()
	var oldest *conn
	t.retired = append(t.retired, c)
	if len(t.retired) > maxRetired {
		oldest = t.retired[0]
		t.retired[0] = nil
		t.retired = t.retired[1:]
	}
	t.mu.Unlock()
	if oldest == nil {
		return
	}
	oldest.mu.Lock()
	tcpInode, pair := oldest.tcpInode, oldest.pair
	oldest.mu.Unlock()
	t.removeConn(tcpInode, oldest)
	if pair != nil {
		t.removeConn(pair.inode, oldest)
	}
}

// decide records that the launcher decides about a connect() on the socket.
func (t *sockets) decide(inode uint64) *decision {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &decision{inode: inode, before: t.deciding[inode], done: make(chan struct{})}
	t.deciding[inode] = d
	t.nDeciding.Store(int64(len(t.deciding)))
	return d
}

// decided ends d. It may be called again.
func (t *sockets) decided(d *decision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.over {
		return
	}
	d.over, d.before = true, nil
	close(d.done)
	if t.deciding[d.inode] == d {
		delete(t.deciding, d.inode)
		t.nDeciding.Store(int64(len(t.deciding)))
	}
}

// listener returns the listener of a socket, or nil.
func (t *sockets) listener(inode uint64) *listener {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.listeners[inode]
}

// addListener adds l. It returns false if there is another listener for the socket.
func (t *sockets) addListener(l *listener) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listeners[l.inode] != nil {
		return false
	}
	t.listeners[l.inode] = l
	t.nListeners.Store(int64(len(t.listeners)))
	return true
}

// removeListener removes l, if it is in the table.
func (t *sockets) removeListener(l *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listeners[l.inode] == l {
		delete(t.listeners, l.inode)
		t.nListeners.Store(int64(len(t.listeners)))
	}
}

// allListeners returns all listeners, in no particular order.
func (t *sockets) allListeners() []*listener {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*listener, 0, len(t.listeners))
	for _, l := range t.listeners {
		all = append(all, l)
	}
	return all
}

// budget limits the number of things of one kind.
type budget struct {
	n   atomic.Int64
	max int64
}

// take takes one. It returns false if none is left.
func (b *budget) take() bool {
	if b.n.Add(1) > b.max {
		b.n.Add(-1)
		return false
	}
	return true
}

// give gives one back.
func (b *budget) give() { b.n.Add(-1) }

// left returns how many are left.
func (b *budget) left() int64 { return b.max - b.n.Load() }

// add takes one, also if none is left.
func (b *budget) add() { b.n.Add(1) }
