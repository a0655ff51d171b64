// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/quota"
	"smcr/userstack/broker"
	"smcr/userstack/internal/epollset"
	"smcr/userstack/internal/joined"
	"smcr/userstack/internal/lastclose"
)

// holder keeps a descriptor of both ends of each pair between two programs, and both TCP
// sockets. It learns of the events of joined.Pair and carries out what that decides:
//
//	event           | comes from
//	----------------+------------------------------------------------------------
//	Placed          | the handler of the server's accept
//	Closed, Aborted | closes: nobody else has the end any more
//	Shut, Late      | the epoll set: EPOLLRDHUP, EPOLLIN of an end
//	Killed          | the epoll set: EPOLLERR of a TCP socket
type holder struct {
	guard *guard.Guard // nil: panics end the process, in tests
	log   *slog.Logger

	loaded chan struct{} // closed when the next two are set
	closes lastCloses    // nil: the kernel does not report last closes
	why    error         // the reason

	mu     sync.Mutex
	set    *epollset.Set // nil: not open
	next   uint64
	byID   map[uint64]*holding
	ends   map[uint64]holdingEnd // by the numbers of their inodes
	pairs  map[uint32]int        // by the user of the client
	relax  *time.Timer
	closed bool
}

// lastCloses is what the holder uses of lastclose.Watch.
type lastCloses interface {
	Add(number uint64) error
	Arm(number uint64, fd int) error
	Remove(number uint64)
	Relax()
	FD() int
	Read(f func(number uint64, unread bool))
	Close() error
}

// maxPairsUser limits the pairs of the clients of one user except root. All of them are half of
// lastclose.MaxFiles. The user of the server has no part in it: others decide how many
// connections that one gets.
const maxPairsUser = 2048

// errPairs is the reason why a user has no more pairs.
var errPairs = fmt.Errorf("%w: the user has %d pairs within the host", errNotLocal, maxPairsUser)

// relaxTime is how long the holder waits after the last pair before it stops watching.
const relaxTime = 10 * time.Second

// The data of an event of the epoll set: the number of the holding and one of these, or
// eventCloses.
const (
	eventEnd  = 0 // plus the side
	eventTCP  = 2 // plus the side
	eventBits = 2

	eventCloses = 0
)

type holdingEnd struct {
	h    *holding
	side joined.Side
}

// A holding is one pair.
type holding struct {
	o      *holder
	id     uint64
	uid    uint32 // the account of the client
	inodes [2]uint64

	mu   sync.Mutex
	pair *joined.Pair // nil: not begun
	side [2]heldSide
	over bool // the holder has no descriptor any more
	// used is closed when there is data or the end of the stream on the client's TCP
	// connection before placed.
	used chan struct{}
}

// heldSide is one side of a pair.
type heldSide struct {
	end  *broker.Descriptor
	sock *broker.Descriptor // TCP; nil: not accepted yet
	c    *broker.Conn       // nil: not accepted yet
	late bool               // Late is awaited
	left bool               // the TCP socket is closed
	done func()             // tells the launcher; nil until its handler has returned
	last chan struct{}      // closed after the last call on sock that may wait for its lock; nil: none
}

// load loads what the holder needs of the kernel, while the stack starts. It may not be able
// to do so later: see package confine.
func (o *holder) load() {
	o.loaded = make(chan struct{})
	go o.guarded(func() {
		defer close(o.loaded)
		if w, err := lastclose.Load(); err != nil {
			o.why = err
			o.log.Info("connections within the host stay TCP, also with --local", "err", err)
		} else {
			o.closes = w
		}
	})()
}

// available returns nil if pairs can be held.
func (o *holder) available() error {
	if o.loaded != nil {
		<-o.loaded
	}
	return o.why
}

// guarded returns a function that calls f.
func (o *holder) guarded(f func()) func() {
	if o.guard == nil {
		return f
	}
	return o.guard.Func("a pair within the host", f)
}

// add prepares the holding of a pair for a client of user uid. The caller still owns both ends.
func (o *holder) add(uid uint32, p, q *broker.Descriptor) (*holding, error) {
	if err := o.available(); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotHeld, err)
	}
	uid = quota.Account(uid)
	h := &holding{o: o, uid: uid, used: make(chan struct{})}
	h.side[joined.Client].end, h.side[joined.Server].end = p, q
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.open(); err != nil {
		return nil, err
	}
	if uid != 0 && !quota.Fair(o.pairs[uid], 1, maxPairsUser, len(o.byID), lastclose.MaxFiles/2) {
		return nil, errPairs
	}
	for s := range h.side {
		if err := h.side[s].end.Control(func(fd int) (err error) {
			if h.inodes[s], err = lastclose.Number(fd); err == nil {
				err = o.closes.Add(h.inodes[s])
			}
			return err
		}); err != nil {
			if s > 0 {
				o.closes.Remove(h.inodes[0])
			}
			return nil, err
		}
	}
	o.next++
	h.id = o.next
	o.byID[h.id] = h
	o.pairs[uid]++
	for s, n := range h.inodes {
		o.ends[n] = holdingEnd{h, joined.Side(s)}
	}
	return h, nil
}

// open makes the epoll set if there is none. The caller holds mu.
func (o *holder) open() (err error) {
	switch {
	case o.closed:
		return errEnds
	case o.set != nil:
		return nil
	}
	set, err := epollset.Open(o.guard, o.deliver)
	if err != nil {
		return err
	}
	if err := set.Add(o.closes.FD(), unix.EPOLLIN, eventCloses); err != nil {
		_ = set.Close()
		return err
	}
	o.set, o.byID, o.ends, o.pairs = set, map[uint64]*holding{}, map[uint64]holdingEnd{}, map[uint32]int{}
	return nil
}

// forget ends the holding without closing the ends and the TCP sockets.
func (h *holding) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leave()
}

// leave removes a holding from the holder. The caller holds h.mu.
func (h *holding) leave() {
	if h.over {
		return
	}
	h.over = true
	o := h.o
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byID, h.id)
	if o.pairs[h.uid]--; o.pairs[h.uid] == 0 {
		delete(o.pairs, h.uid)
	}
	for _, n := range h.inodes {
		delete(o.ends, n)
		o.closes.Remove(n)
	}
	if len(o.byID) > 0 || o.closed {
		return
	}
	if o.relax == nil {
		o.relax = time.AfterFunc(relaxTime, o.guarded(o.closes.Relax))
	} else {
		o.relax.Reset(relaxTime)
	}
}

// begin begins the holding of a pair whose client has its end. sock is the client's TCP
// socket, which stays the caller's until keep.
func (h *holding) begin(c *broker.Conn, sock *broker.Descriptor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return
	}
	h.pair = joined.New()
	x := &h.side[joined.Client]
	x.c, x.sock = c, sock
	h.watch(joined.Client)
	h.watch(joined.Server)
	_ = sock.Control(func(fd int) error {
		return h.o.set.Add(fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLONESHOT, h.id<<eventBits|eventTCP|uint64(joined.Client))
	})
	h.arm(joined.Client)
}

// placed tells the holding that the server has its end, or that it is on its way there.
func (h *holding) placed(c *broker.Conn, sock *broker.Descriptor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || h.pair == nil {
		return
	}
	x := &h.side[joined.Server]
	x.c, x.sock = c, sock
	h.watchTCP(joined.Client)
	h.watchTCP(joined.Server)
	h.handle(joined.Placed, joined.Server)
	h.arm(joined.Server)
}

// watch makes the set report the end of a side.
func (h *holding) watch(s joined.Side) {
	_ = h.side[s].end.Control(func(fd int) error {
		return h.o.set.Add(fd, unix.EPOLLRDHUP|unix.EPOLLET, h.id<<eventBits|eventEnd|uint64(s))
	})
}

// watchTCP makes the set report the TCP socket of a side. Errors are always reported.
func (h *holding) watchTCP(s joined.Side) {
	_ = h.side[s].sock.Control(func(fd int) error {
		_ = h.o.set.Remove(fd) // see begin
		return h.o.set.Add(fd, unix.EPOLLET, h.id<<eventBits|eventTCP|uint64(s))
	})
}

// arm lets the last close of a side be reported.
func (h *holding) arm(s joined.Side) {
	if err := h.side[s].end.Control(func(fd int) error { return h.o.closes.Arm(h.inodes[s], fd) }); err != nil {
		h.o.log.Error("the close of a connection within the host will not be seen", "err", err)
	}
}

// keep lets one side of a pair continue without its handler, which has called begin or
// placed. The holding owns the TCP socket from now on.
func (h *holding) keep(ctx context.Context, s joined.Side, x *localSide) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.side[s].c
	end, release := c.Keep(), c.Retain()
	ends := sync.OnceFunc(end)
	// The session of a launcher that has ended does not wait for the program's end.
	stop := context.AfterFunc(ctx, h.o.guarded(func() {
		if x.divertedUntil(ends) {
			return
		}
		ends()
	}))
	h.side[s].done = h.o.guarded(func() {
		release()
		stop()
		if !x.divertedUntil(ends) {
			ends()
		}
	})
	if h.side[s].left {
		// No guard: done has one.
		go h.side[s].done()
	}
}

// deliver handles the events of the set.
func (o *holder) deliver(events []uint64) {
	for _, data := range events {
		if data == eventCloses {
			o.closes.Read(o.reported)
			continue
		}
		o.mu.Lock()
		h := o.byID[data>>eventBits]
		o.mu.Unlock()
		if h == nil {
			continue
		}
		s := joined.Side(data & 1)
		if data&eventTCP != 0 {
			h.tcpEvent(s)
		} else {
			h.endEvent(s)
		}
	}
}

// reported handles the report of a last close.
func (o *holder) reported(number uint64, unread bool) {
	o.mu.Lock()
	e := o.ends[number]
	o.mu.Unlock()
	if e.h == nil {
		return
	}
	h, s := e.h, e.side
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || h.pair == nil {
		return
	}
	// What the program wrote before, and whether it shut down writing, come first.
	h.look(s.Peer())
	kind := joined.Closed
	abort := func(fd int) error {
		if l, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER); err == nil && l.Onoff != 0 && l.Linger == 0 {
			kind = joined.Aborted
		}
		return nil
	}
	_ = h.side[s].sock.Control(abort)
	_ = h.side[s].end.Control(func(fd int) error {
		if unread && waiting(fd) > 0 {
			kind = joined.Aborted
		}
		return abort(fd)
	})
	h.handle(kind, s)
}

// waiting returns how many bytes wait in a socket.
func waiting(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// endEvent handles an event of the end of a side.
func (h *holding) endEvent(s joined.Side) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || h.pair == nil {
		return
	}
	h.look(s)
}

// look looks for bytes that came late, and for the end of the stream, at the end of side s.
// Both are from the peer of s. The caller holds h.mu.
func (h *holding) look(s joined.Side) {
	bytes, ended := 0, false
	_ = h.side[s].end.Control(func(fd int) error {
		bytes = waiting(fd)
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(p, 0)
		ended = err == nil && p[0].Revents&unix.POLLRDHUP != 0
		return nil
	})
	if h.side[s].late && bytes > 0 {
		h.handle(joined.Late, s)
	}
	if ended {
		h.handle(joined.Shut, s.Peer())
	}
}

// tcpEvent handles an event of the TCP socket of a side.
func (h *holding) tcpEvent(s joined.Side) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over || h.pair == nil || h.side[s].sock == nil:
		return
	case h.side[joined.Server].sock == nil:
		select {
		case <-h.used:
		default:
			close(h.used)
		}
		return
	}
	failed := false
	_ = h.side[s].sock.Control(func(fd int) error {
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(p, 0)
		failed = err == nil && p[0].Revents&unix.POLLERR != 0
		return nil
	})
	if failed {
		h.handle(joined.Killed, s)
	}
}

// handle handles an event and carries out what follows. The caller holds h.mu.
func (h *holding) handle(k joined.Kind, s joined.Side) {
	for _, a := range h.pair.Handle(joined.Event{Kind: k, Side: s}) {
		h.do(a)
	}
	if h.pair.Done() {
		h.leave()
	}
}

// close ends all holdings. The pairs of programs that still have their ends continue as the
// kernel carries them.
func (o *holder) close() error {
	if o.loaded != nil {
		<-o.loaded
	}
	o.mu.Lock()
	o.closed = true
	set := o.set
	var all []*holding
	for _, h := range o.byID {
		all = append(all, h)
	}
	if o.relax != nil {
		o.relax.Stop()
	}
	o.mu.Unlock()
	var err error
	if set != nil {
		err = set.Close()
	}
	for _, h := range all {
		h.mu.Lock()
		h.leave()
		for s := range h.side {
			_ = h.side[s].end.Close()
			if sock := h.side[s].sock; sock != nil {
				_ = sock.Close()
			}
		}
		h.mu.Unlock()
	}
	if o.closes != nil {
		if cerr := o.closes.Close(); err == nil {
			err = cerr
		}
	}
	return err
}
