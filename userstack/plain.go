// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
	"smcr/userstack/tcpopt"
)

// Bounds of what a stack remembers of sockets that it does not carry. Beyond
// them connections are counted and not listed.
const (
	maxPlain     = 1 << 16
	maxPlainUser = 1 << 13 // of one user; root has no such bound
	// plainGrace is how long a socket may take to be connected, or to listen,
	// after the stack was asked about it.
	plainGrace = 30 * time.Second
	// plainSweep is how often sockets that have ended are forgotten.
	plainSweep = 30 * time.Second
)

// plain is what the stack knows of a program's TCP socket that it does not
// carry: a connection that stays TCP, or a listener.
type plain struct {
	owner    inside.Owner
	local    bool // ModeLocal: the socket is idle
	fallback nl.ConnFallback
	since    time.Time
	begun    bool // it was being connected, or was, when it was noted
	missed   bool // the last scan did not find it
}

// plainTable remembers such sockets by their cookies, which the kernel gives to
// no other socket. It holds no descriptor: whether a socket lives, what it is
// connected to and who owns it are questions to the kernel (sock_diag) at the
// time of a listing, so that nothing it shows can be stale.
type plainTable struct {
	scan func(found func(cookie uint64, c nl.Connection)) error // asks the kernel

	scanMu sync.Mutex // one scan at a time; before mu
	mu     sync.Mutex
	socks  map[uint64]plain
	users  map[uint32]int
	swept  time.Time
	timer  *time.Timer // nil: none is remembered
	closed bool
}

func newPlainTable(scan func(func(uint64, nl.Connection)) error) *plainTable {
	return &plainTable{scan: scan, socks: map[uint64]plain{}, users: map[uint32]int{}}
}

// note remembers a socket, unless there is no room.
func (t *plainTable) note(cookie uint64, p plain) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cookie == 0 || t.closed {
		return
	}
	t.forget(cookie)
	if len(t.socks) >= maxPlain || p.owner.UID != 0 && t.users[p.owner.UID] >= maxPlainUser {
		// Make room for the next.
		if now := time.Now(); t.timer != nil && now.Sub(t.swept) > time.Second {
			t.swept = now
			t.timer.Reset(0)
		}
		return
	}
	p.since = time.Now()
	t.socks[cookie] = p
	t.users[p.owner.UID]++
	if t.timer == nil {
		t.timer = time.AfterFunc(plainSweep, t.sweep)
	}
}

// forget removes a socket. mu is held.
func (t *plainTable) forget(cookie uint64) {
	p, ok := t.socks[cookie]
	if !ok {
		return
	}
	delete(t.socks, cookie)
	if t.users[p.owner.UID]--; t.users[p.owner.UID] == 0 {
		delete(t.users, p.owner.UID)
	}
}

// sweep forgets sockets that have ended.
func (t *plainTable) sweep() {
	_, _ = t.rows() // where the kernel cannot be asked, the bounds hold
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
	case len(t.socks) == 0:
		t.timer = nil
	default:
		t.timer.Reset(plainSweep)
	}
}

// rows lists the sockets that live, and forgets those that do not: one that two
// scans have missed, since the kernel's list may lack a socket while others come
// and go.
func (t *plainTable) rows() ([]nl.Connection, error) {
	t.scanMu.Lock()
	defer t.scanMu.Unlock()
	t.mu.Lock()
	known := make(map[uint64]plain, len(t.socks))
	for cookie, p := range t.socks {
		known[cookie] = p
	}
	closed := t.closed
	t.mu.Unlock()
	if len(known) == 0 || closed {
		return nil, nil
	}
	var out []nl.Connection
	found := map[uint64]bool{}
	err := t.scan(func(cookie uint64, c nl.Connection) {
		p, ok := known[cookie]
		// What a launcher of another user says of a socket is not repeated.
		if !ok || found[cookie] || p.owner.UID != 0 && p.owner.UID != c.UID {
			return
		}
		found[cookie] = true
		c.Cookie, c.PID, c.Command = cookie, p.owner.PID, p.owner.Command
		if c.State != smc.StateListen {
			c.Mode, c.Fallback = nl.ModeTCP, p.fallback
			if p.local {
				c.Mode = nl.ModeLocal
			}
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
		case p.missed && (p.begun || time.Since(p.since) > plainGrace):
			t.forget(cookie)
		default:
			p.missed = true
			t.socks[cookie] = p
		}
	}
	return out, nil
}

// close forgets everything and waits for a scan under way.
func (t *plainTable) close() {
	t.mu.Lock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
	clear(t.socks)
	t.mu.Unlock()
	t.scanMu.Lock() // for the scan
	defer t.scanMu.Unlock()
}

// fallbackFor returns why a connection stays TCP, in the numbers that Linux
// uses. It returns 0 for what is no fallback.
func fallbackFor(err error) (f nl.ConnFallback) {
	var d *DeclineError
	code := smc.DiagInternal
	switch {
	case errors.As(err, &d) && d.Remote:
		return nl.ConnFallback{Reason: uint32(smc.DiagPeerDeclined), Peer: uint32(d.Code)}
	case errors.As(err, &d):
		code = d.Code
	case errors.Is(err, ErrStackClosed), errors.Is(err, devices.ErrClosed):
		code = 0
	case errors.Is(err, ErrNotOnLink):
		code = smc.DiagNoRoute
	case errors.Is(err, ErrNoOption):
		code = smc.DiagConfig
	case errors.Is(err, tcpopt.ErrUnsupportedSocket):
		code = smc.DiagSocketOption
	default:
		code = declineFor(err).Code
	}
	return nl.ConnFallback{Reason: uint32(code)}
}

// StaysTCP counts a program's connection that stays TCP for the reason in err,
// and remembers its socket fd for listings. A *DeclineError of [Stack.Client] or
// [Stack.Server] is counted already. It returns the reason in numbers, and the
// peer's if the peer declined.
func (s programs) StaysTCP(o inside.Owner, fd int, client bool, err error) (reason, peer uint32) {
	f := fallbackFor(err)
	if f.Reason == 0 {
		return 0, 0
	}
	var d *DeclineError
	if !errors.As(err, &d) || d.uncounted {
		s.countFallback(client, smc.Diagnosis(f.Reason))
	}
	s.plains.note(network.Cookie(fd), plain{owner: o, fallback: f})
	return f.Reason, f.Peer
}

// LeftToTCP implements inside.Programs.
func (s programs) LeftToTCP(o inside.Owner, cookie uint64, client, short bool) {
	code := smc.DiagPeerNoSMC
	if short {
		code = smc.DiagShort
	}
	s.countFallback(client, code)
	s.plains.note(cookie, plain{owner: o, fallback: nl.ConnFallback{Reason: uint32(code)}, begun: true})
}

// Listens remembers a program's socket fd that is about to listen for listings.
func (s programs) Listens(o inside.Owner, fd int) { s.plains.note(network.Cookie(fd), plain{owner: o}) }

// NoSMC is the error of a connection whose peer does not speak SMC, as far as
// PeerAnnounced can tell.
func (s programs) NoSMC() error { return s.notAnnounced() }

// staysTCP is StaysTCP for a connection of this process.
func (s *Stack) staysTCP(tcp *net.TCPConn, client bool, err error) {
	rc, rerr := tcp.SyscallConn()
	if rerr != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) { s.programs().StaysTCP(inside.Self(), int(fd), client, err) }) // else it is closed
}
