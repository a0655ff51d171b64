// SPDX-License-Identifier: Apache-2.0

package tcptable

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"smcr/guard"
	"smcr/nl"
	"smcr/quota"
	"smcr/smc"
	"smcr/userstack/internal/inside"
)

// Limits of a table. Sockets beyond them are not listed.
const (
	maxSockets = 1 << 16
	maxUser    = 1 << 13 // of one user; root has no such bound
	// grace is how long a socket may take to be connected, or to listen, after it
	// was noted.
	grace = 30 * time.Second
	// sweepEvery is the time between sweeps.
	sweepEvery = 30 * time.Second
)

// entry is a socket that the table remembers.
type entry struct {
	inside.TCPSocket
	since  time.Time
	missed bool // the last scan did not find it
}

// Table remembers sockets by their cookies, which the kernel gives to no other
// socket. It holds no descriptor. Whether a socket exists, what it is connected to and
// who owns it is asked of the kernel (sock_diag) for each listing, so a listing is never
// out of date.
type Table struct {
	scan  Scan // asks the kernel
	guard *guard.Guard

	scanMu sync.Mutex // one scan at a time; before mu
	mu     sync.Mutex
	others inside.Others // or nil
	socks  map[uint64]entry
	most   int // the number of sockets since socks was made
	users  map[uint32]int
	swept  time.Time
	timer  *time.Timer // nil: none is remembered
	closed bool
}

// A Scan calls found for each TCP socket of the network namespace, with its cookie and the number of its cgroup.
type Scan func(found func(cookie, cgroup uint64, c nl.Connection)) error

// New returns a table. g handles panics in the timer of the table.
func New(g *guard.Guard, scan Scan) *Table {
	return &Table{guard: g, scan: scan, socks: map[uint64]entry{}, users: map[uint32]int{}}
}

// ListAlso has Rows list sockets that are not noted.
func (t *Table) ListAlso(o inside.Others) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others = o
}

// Note remembers a socket, unless there is no room. A second call for the same socket
// replaces the first.
func (t *Table) Note(cookie uint64, s inside.TCPSocket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cookie == 0 || t.closed {
		return
	}
	if old, ok := t.socks[cookie]; ok && old.Owner.UID == s.Owner.UID { // no more room is needed
		t.socks[cookie] = entry{TCPSocket: s, since: time.Now()}
		return
	}
	t.forget(cookie)
	uid := quota.Account(s.Owner.UID)
	if len(t.socks) >= maxSockets || uid != 0 && !quota.Fair(t.users[uid], 1, maxUser, len(t.socks), maxSockets) {
		// Make room for the next.
		if now := time.Now(); t.timer != nil && now.Sub(t.swept) > time.Second {
			t.swept = now
			t.timer.Reset(0)
		}
		return
	}
	t.socks[cookie] = entry{TCPSocket: s, since: time.Now()}
	t.most = max(t.most, len(t.socks))
	t.users[uid]++
	if t.timer == nil {
		t.timer = time.AfterFunc(sweepEvery, t.guard.Func("the table of TCP sockets", t.sweep))
	}
}

// forget removes a socket. mu is held.
func (t *Table) forget(cookie uint64) {
	p, ok := t.socks[cookie]
	if !ok {
		return
	}
	delete(t.socks, cookie)
	uid := quota.Account(p.Owner.UID)
	if t.users[uid]--; t.users[uid] == 0 {
		delete(t.users, uid)
	}
}

// sweep forgets sockets that do not exist any more.
func (t *Table) sweep() {
	defer t.sweepLater() // also after a panic
	_, _ = t.rows(false) // if the kernel cannot be asked, the limits hold
}

func (t *Table) sweepLater() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
	case len(t.socks) == 0:
		t.timer = nil
	default:
		t.timer.Reset(sweepEvery)
	}
}

// Rows lists the sockets that exist, in the order of their inodes, and forgets the
// others. A socket is forgotten when two scans have missed it, because the kernel's list
// can lack a socket while others come and go.
func (t *Table) Rows() ([]nl.Connection, error) { return t.rows(true) }

// rows is Rows, with or without the sockets of ListAlso.
func (t *Table) rows(also bool) ([]nl.Connection, error) {
	t.scanMu.Lock()
	defer t.scanMu.Unlock()
	t.mu.Lock()
	closed, none, others := t.closed, len(t.socks) == 0, t.others
	t.mu.Unlock()
	if !also {
		others = nil
	}
	if none && others == nil || closed {
		return nil, nil
	}
	other := func(cookie, cgroup uint64, c nl.Connection) (s inside.TCPSocket, ok bool) { return s, false }
	if others != nil {
		other = others()
	}
	// A connection that is decided, and noted, after it was undecided for others, is among these.
	t.mu.Lock()
	known := maps.Clone(t.socks)
	t.mu.Unlock()
	var out []nl.Connection
	found := map[uint64]bool{}
	err := t.scan(func(cookie, cgroup uint64, c nl.Connection) {
		p, ok := known[cookie]
		// The number may be that of a later socket.
		if found[cookie] || ok && p.Owner.UID != 0 && p.Owner.UID != c.UID {
			return
		}
		if !ok {
			if p.TCPSocket, ok = other(cookie, cgroup, c); !ok {
				return
			}
			c.UID = p.Owner.UID
		}
		found[cookie] = true
		c.Cookie, c.PID, c.Command = cookie, p.Owner.PID, p.Owner.Command
		switch {
		case p.Undecided:
			c.State, c.Mode = smc.StateInit, nl.ModeSMCR
		case c.State != smc.StateListen:
			c.Mode, c.Fallback = nl.ModeTCP, p.Fallback
		}
		out = append(out, c)
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b nl.Connection) int { return cmp.Compare(a.Inode, b.Inode) })
	t.mu.Lock()
	defer t.mu.Unlock()
	for cookie, was := range known {
		p, ok := t.socks[cookie]
		switch {
		case !ok || p.since != was.since:
		case found[cookie]:
			p.missed = false
			t.socks[cookie] = p
		case p.missed && (p.Connected || time.Since(p.since) > grace):
			t.forget(cookie)
		default:
			p.missed = true
			t.socks[cookie] = p
		}
	}
	t.shrink()
	return out, nil
}

// shrink gives back the memory of a table that had many more sockets: a map keeps it. mu is
// held.
func (t *Table) shrink() {
	if t.most < 1024 || len(t.socks) > t.most/4 {
		return
	}
	small := make(map[uint64]entry, len(t.socks))
	for cookie, p := range t.socks {
		small[cookie] = p
	}
	t.socks, t.most = small, len(small)
}

// Close forgets all sockets and returns when no scan runs any more.
func (t *Table) Close() {
	t.mu.Lock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
	clear(t.socks)
	t.mu.Unlock()
	t.scanMu.Lock()
	defer t.scanMu.Unlock()
}
