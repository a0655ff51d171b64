// SPDX-License-Identifier: Apache-2.0

package service

import (
	"time"

	"golang.org/x/sys/unix"

	"smcr/quota"
	"smcr/userstack/internal/bounded"
)

const (
	// maxPorts limits the ports on which the programs of all users have listened, and
	// maxPortsUser those of one user except root. Connections to further ones are not local.
	maxPorts     = 8192
	maxPortsUser = 2048
	// sweepPorts is the shortest time between two looks for ports that are not in use.
	sweepPorts = time.Second
	// missedTime is how long connections to a port stay TCP after a process without a launcher
	// accepted one. The bytes of that one waited for some seconds.
	missedTime = time.Minute
)

// localPorts are the ports on which programs have listened. localTable.mu guards them.
type localPorts struct {
	users  map[uint16]map[uint32]bool // by port
	count  map[uint32]int             // ports, by user
	all    int
	defers map[uint16]bool      // ports of listeners with TCP_DEFER_ACCEPT
	missed map[uint16]time.Time // until when connections to a port stay TCP
	swept  time.Time
}

// add reports whether there was room.
func (p *localPorts) add(port uint16, uid uint32) bool {
	users := p.users[port]
	if users[uid] {
		return true
	}
	account := quota.Account(uid)
	if p.all >= maxPorts || uid != 0 && !quota.Fair(p.count[account], 1, maxPortsUser, p.all, maxPorts) {
		return false
	}
	if p.users == nil {
		p.users, p.count = map[uint16]map[uint32]bool{}, map[uint32]int{}
	}
	if users == nil { // 0: the kernel chooses one in listen()
		users = map[uint32]bool{}
		p.users[port] = users
	}
	users[uid] = true
	p.count[account]++
	p.all++
	return true
}

// keep forgets the ports on which nobody listens.
func (p *localPorts) keep(listening map[uint16]bool) {
	for port, users := range p.users {
		if port == 0 || listening[port] {
			continue
		}
		for uid := range users {
			account := quota.Account(uid)
			if p.count[account]--; p.count[account] == 0 {
				delete(p.count, account)
			}
			p.all--
		}
		delete(p.users, port)
		delete(p.defers, port)
	}
	for port := range p.missed {
		if !listening[port] {
			delete(p.missed, port)
		}
	}
}

// listens records that a program's socket is about to listen.
func (t *localTable) listens(fd int, uid uint32) {
	ap, err := socketAddr(bounded.Sockname(fd))
	if err != nil {
		return
	}
	defers, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT)
	deferring := err == nil && defers != 0
	if t.listensAt(ap.Port(), uid, deferring) {
		return
	}
	t.sweepPorts()
	t.listensAt(ap.Port(), uid, deferring)
}

func (t *localTable) listensAt(port uint16, uid uint32, defers bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ports.add(port, uid) {
		return false
	}
	t.ports.deferring(port, defers)
	delete(t.ports.missed, port)
	return true
}

// misses records that a process without a launcher has accepted a connection to a port on which
// a program with a launcher has listened: it has inherited the socket, or shares the port.
func (t *localTable) misses(port uint16, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ports.missed == nil {
		t.ports.missed = map[uint16]time.Time{}
	}
	t.ports.missed[port] = now.Add(missedTime) // at most one for each port
}

// missed reports whether such a process has accepted a short time ago.
func (t *localTable) missed(port uint16, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.ports.missed[port]
	if ok && !now.Before(until) {
		delete(t.ports.missed, port)
		return false
	}
	return ok
}

// sweepPorts forgets the ports on which nobody listens, if it has not looked just before.
func (t *localTable) sweepPorts() {
	t.mu.Lock()
	now := time.Now()
	due := t.listening != nil && now.Sub(t.ports.swept) >= sweepPorts
	if due {
		t.ports.swept = now
	}
	t.mu.Unlock()
	if !due {
		return
	}
	listening, err := t.listening()
	if err != nil {
		return // the limits hold
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ports.keep(listening)
}

// deferring records whether a listener on a port has TCP_DEFER_ACCEPT. The kernel then
// completes a connection when the client has sent data, which does not go over TCP if the
// programs have a pair. The last listener counts. A launcher repeats Listen when a program sets
// the option later.
func (p *localPorts) deferring(port uint16, defers bool) {
	switch {
	case !defers:
		delete(p.defers, port)
	case p.defers == nil:
		p.defers = map[uint16]bool{port: true}
	default:
		p.defers[port] = true
	}
}

// defersAccept reports whether a listener on a port has TCP_DEFER_ACCEPT.
func (t *localTable) defersAccept(port uint16) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ports.defers[port]
}

// hasListener reports whether a program, of user uid if it is given, has listened on
// a port.
func (t *localTable) hasListener(port uint16, uid *uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range []uint16{port, 0} {
		users := t.ports.users[p]
		if uid == nil && len(users) > 0 || uid != nil && users[*uid] {
			return true
		}
	}
	return false
}
