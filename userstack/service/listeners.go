// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/quota"
	"smcr/userstack/broker"
	"smcr/userstack/network"
)

// A listening socket may announce SMC only while each process that accepts on it has a
// launcher, which passes the accepted connection to this service: any other process would
// read CLC messages as data. But a program can pass the socket on, and its launcher can be
// killed. The mark of the socket cannot be taken off then, because nobody here has the
// socket: a copy would keep its port in use. So the service has the whole address announce
// nothing (Silence).
//
//	event                                | listener            | connections that wait, or were accepted
//	a launcher listens, or adopts it     | has this launcher   | -
//	its last launcher has ended          | silent, at once     | reset, also those that come within seconds
//	a process without launcher accepts   | silent from now on  | the accepted one is reset when that process
//	 (it has read, or has written)       |                     | has read or written
//	 and then its launchers ask again    | announces again     | -
//	 (two times, or twice as often as    |                     |
//	 the last time)                      |                     |
//	a launcher adopts it, none had it    | announces again     | -
//	closed                               | forgotten           | -
//
// A reset is all that can be done for a connection whose peer was told of SMC: its PROPOSAL
// is or will be in the stream. A client under smcr run connects again, over TCP.

const (
	// maxListening limits the listening sockets of all launchers, and of one user except
	// root. Others stay native.
	maxListening     = 8192
	maxListeningUser = 2048
	// keepTick is the interval of the checks while there are listening sockets, and
	// keepSoon while connections of listeners without launcher may still be made.
	keepTick = 500 * time.Millisecond
	keepSoon = 50 * time.Millisecond
	// soonTime is how long after the end of its launcher a listener may still send a
	// SYN-ACK that was announced before. It covers the retransmissions of some lost ones.
	soonTime = 3 * time.Second
	// unlistened is how long a socket may be marked before it listens.
	unlistened = 10 * time.Second
	// firstAsks is how many connections launchers must ask about, after a process without
	// launcher has accepted one: the launcher may have lost a descriptor, and its program got
	// a connection that nobody had asked about. The number doubles each time, up to mostAsks.
	firstAsks = 2
	mostAsks  = 1 << 16
)

// errManyListeners means that a listening socket stays native.
var errManyListeners = fmt.Errorf("service: too many listening sockets: %w", unix.EUSERS)

// errNotMarked is the answer to Adopt for a socket that nobody has announced.
var errNotMarked = fmt.Errorf("service: the listening socket does not announce SMC: %w", unix.ENOENT)

// markedSocket is a marked listening socket.
type markedSocket struct {
	launchers map[*broker.Launcher]struct{}
	uid       uint32
	since     time.Time // of the mark, or when its last launcher ended
	foreign   bool      // a process without launcher accepts on it
	port      uint16    // of it, if foreign
	asks      int       // connections about which launchers must ask before foreign ends
	need      int       // the value with which asks began
}

// orphan reports whether the socket must not announce SMC.
func (x *markedSocket) orphan() bool { return x.foreign || len(x.launchers) == 0 }

// listeners has the marked listening sockets of a service.
type listeners struct {
	keeper  network.ListenerKeeper // nil: nothing is announced
	sockets network.TCPSockets     // nil: not known
	netns   uint64
	log     *slog.Logger
	guard   *guard.Guard
	kick    chan struct{} // there is a first listening socket, or one without launcher
	// retired reports whether another process is the stack. Launchers leave this one then,
	// and still are those of their sockets.
	retired func() bool

	mu    sync.Mutex
	open  map[*broker.Launcher]map[uint64]*markedSocket // by the cookies of the sockets
	known map[uint64]*markedSocket
	users map[uint32]int
	stray int // how many known ones are foreign

	checking sync.Mutex                    // guards what follows, and is taken before mu
	silent   map[network.LocalAddress]bool // true: this service has silenced it

	warned atomic.Bool
	// looks are the connections at which this service is looking, by their cookies. mu guards it.
	looks map[uint64]bool
}

// begin prepares t for a stack.
func (t *listeners) begin(s *Service) {
	t.keeper, t.sockets, t.netns, t.log = s.programs.Keeper(), s.programs.Sockets(), s.netns, s.log
	t.retired = s.succession.handedOver
	t.kick = make(chan struct{}, 1)
	t.open, t.known, t.users = map[*broker.Launcher]map[uint64]*markedSocket{}, map[uint64]*markedSocket{}, map[uint32]int{}
	t.silent, t.looks = map[network.LocalAddress]bool{}, map[uint64]bool{}
	t.guard = s.programs.Guard()
	if t.keeper == nil || t.sockets == nil {
		t.keeper = nil
		return
	}
	// What the service before this one has silenced.
	addrs, err := t.keeper.Silent()
	if err != nil {
		t.log.Warn("listening sockets of ended programs may be forgotten", "err", err)
	}
	for _, a := range addrs {
		if a.NetNS == t.netns {
			t.silent[a] = false
		}
	}
}

// opened adds a launcher.
func (t *listeners) opened(l *broker.Launcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[l] = map[uint64]*markedSocket{}
}

// add records that launcher l sees each accept() on the socket fd. Without undo, it is known
// from now on.
func (t *listeners) add(l *broker.Launcher, fd int) (undo func(), err error) {
	if t.keeper == nil {
		return func() {}, nil
	}
	cookie := network.Cookie(fd)
	if err := t.insert(l, cookie); errors.Is(err, errManyListeners) {
		t.sweep(time.Now()) // some may be closed
		err = t.insert(l, cookie)
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	return func() { t.drop(l, cookie) }, nil
}

func (t *listeners) insert(l *broker.Launcher, cookie uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.open[l]
	if of == nil {
		return broker.ErrLauncherGone
	}
	x := t.known[cookie]
	if x == nil {
		uid := quota.Account(l.UID)
		if len(t.known) >= maxListening || uid != 0 && !quota.Fair(t.users[uid], 1, maxListeningUser, len(t.known), maxListening) {
			return errManyListeners
		}
		x = &markedSocket{launchers: map[*broker.Launcher]struct{}{}, uid: uid}
		t.known[cookie] = x
		t.users[uid]++
	}
	x.since = time.Now()
	x.launchers[l], of[cookie] = struct{}{}, x
	t.wake()
	return nil
}

// drop takes back insert.
func (t *listeners) drop(l *broker.Launcher, cookie uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open[l], cookie)
	if x := t.known[cookie]; x != nil {
		delete(x.launchers, l)
		if len(x.launchers) == 0 {
			t.forget(cookie, x)
		}
	}
}

// forget removes a socket. The caller holds mu.
func (t *listeners) forget(cookie uint64, x *markedSocket) {
	delete(t.known, cookie)
	if x.foreign {
		t.stray--
	}
	for l := range x.launchers {
		delete(t.open[l], cookie)
	}
	if t.users[x.uid]--; t.users[x.uid] == 0 {
		delete(t.users, x.uid)
	}
}

func (t *listeners) wake() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// gone removes a launcher. When it returns, sockets that no other launcher has do not announce
// SMC any more.
func (t *listeners) gone(l *broker.Launcher) {
	t.mu.Lock()
	of := t.open[l]
	delete(t.open, l)
	left := false
	for cookie, x := range of {
		delete(x.launchers, l)
		if len(x.launchers) > 0 {
			continue
		}
		if t.retired() {
			t.forget(cookie, x)
			continue
		}
		x.since, left = time.Now(), true
	}
	t.mu.Unlock()
	if left {
		t.sweep(time.Now())
		t.check(time.Now())
		t.wake()
	}
}

// renewed is called before a socket is marked. An address whose silent listener is closed is
// not silent any more.
func (t *listeners) renewed() {
	t.checking.Lock()
	any := len(t.silent) > 0
	t.checking.Unlock()
	if any {
		t.sweep(time.Now())
	}
}

// sweep forgets the sockets that are closed, and makes the addresses of those without
// launcher silent, and no others.
func (t *listeners) sweep(now time.Time) {
	t.checking.Lock()
	defer t.checking.Unlock()
	at := map[uint64]netip.AddrPort{}
	if err := t.sockets.Listening(func(cookie uint64, local netip.AddrPort) { at[cookie] = local }); err != nil {
		t.warn("cannot find listening sockets", err)
		return
	}
	want := map[network.LocalAddress]bool{}
	t.mu.Lock()
	for cookie, x := range t.known {
		addr, listens := at[cookie]
		switch {
		case listens && x.orphan():
			want[network.LocalAddress{NetNS: t.netns, AddrPort: plainAddr(addr)}] = true
		case !listens && (x.orphan() || now.Sub(x.since) > unlistened):
			t.forget(cookie, x)
		}
	}
	// A socket that the service before this one has silenced is none of those known here.
	for cookie, addr := range at {
		a := network.LocalAddress{NetNS: t.netns, AddrPort: plainAddr(addr)}
		if mine, silent := t.silent[a]; silent && !mine && t.known[cookie] == nil {
			want[a] = false
		}
	}
	t.mu.Unlock()
	for a, mine := range want {
		if was, silent := t.silent[a]; silent {
			t.silent[a] = was || mine
			continue
		}
		if err := t.keeper.Silence(a); err != nil {
			t.warn("a listening socket without launcher goes on announcing SMC", err)
			continue
		}
		t.silent[a] = mine
		t.log.Info("a listening socket does not announce SMC any more: a process without launcher has it", "address", a.AddrPort)
	}
	for a := range t.silent {
		if _, still := want[a]; still {
			continue
		}
		if err := t.keeper.Unsilence(a); err != nil {
			t.warn("a listening socket does not announce SMC", err)
			continue
		}
		delete(t.silent, a)
	}
}

// plainAddr is addr as in tcpopt: without a zone, and all unspecified addresses are one.
func plainAddr(addr netip.AddrPort) netip.AddrPort {
	ip := addr.Addr().Unmap().WithZone("")
	if ip.IsUnspecified() {
		ip = netip.IPv6Unspecified()
	}
	return netip.AddrPortFrom(ip, addr.Port())
}

// asked records that launcher l has asked about a connection that was accepted on a port.
func (t *listeners) asked(l *broker.Launcher, port uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stray == 0 {
		return // as almost always
	}
	for _, x := range t.open[l] {
		if !x.foreign || x.port != port {
			continue
		}
		if x.asks--; x.asks <= 0 {
			x.foreign = false // the next check lets it announce
			t.stray--
			t.wake()
		}
	}
}

// warn logs a failure, the first of its kind at most: the others would repeat it twice a
// second.
func (t *listeners) warn(what string, err error) {
	if !t.warned.Swap(true) {
		t.log.Warn(what, "err", err)
	}
}

// keep checks the listening sockets until ctx ends. Without any, it sleeps.
func (t *listeners) keep(ctx context.Context) {
	if t.keeper == nil {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.kick:
		case <-timer.C:
			t.tick(time.Now())
		}
		if d := t.pause(time.Now()); d > 0 {
			timer.Reset(d)
		} else {
			timer.Stop()
		}
	}
}

// tick makes the checks that are due.
func (t *listeners) tick(now time.Time) {
	t.mu.Lock()
	orphans := false
	for _, x := range t.known {
		orphans = orphans || x.orphan()
	}
	t.mu.Unlock()
	t.checking.Lock()
	silent := len(t.silent) > 0
	t.checking.Unlock()
	if orphans || silent {
		t.sweep(now)
	}
	t.check(now)
}

// pause returns the time until the next check, 0 if none is needed.
func (t *listeners) pause(now time.Time) time.Duration {
	t.checking.Lock()
	silent := len(t.silent) > 0
	t.checking.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.known {
		if x.orphan() && now.Sub(x.since) < soonTime {
			return keepSoon
		}
	}
	if silent || len(t.known) > 0 {
		return keepTick
	}
	return 0
}
