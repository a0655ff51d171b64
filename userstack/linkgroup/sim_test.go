// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"smcr/internal/testing/conntest"
	"smcr/smc"
	"smcr/userstack/conn"
)

// This file joins two groups in memory: fake adapters with queue pairs that
// deliver in order after random delays, registered memory that is checked on
// every write, fake time, and a CLC exchange. Everything follows from one
// seed.

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type event struct {
	at  time.Time
	seq int
	run func()
}

type events []*event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(*event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

type sim struct {
	t     testing.TB
	rng   *rand.Rand
	now   time.Time
	queue events
	seq   int
	hosts [2]*host // by Role
	qps   map[smc.QPN]*qp
	qpn   smc.QPN
	// maxDelay bounds each delay; zero makes everything take 1 µs.
	maxDelay time.Duration
	// slowConfirm is how much longer CONFIRM takes than other messages.
	slowConfirm time.Duration
	// refused has the reasons for which servers took no CONFIRM.
	refused []error
	// skew lets the messages of different links overtake each other in the
	// receiving host.
	skew bool
	// dead devices by GID
	dead map[smc.GID]bool
	// tap sees each message that is delivered.
	tap func(from *host, l *Link, msg []byte)
	// block drops messages for which it is true.
	block func(from *host, l *Link, msg []byte) bool
	// lies: a group gets messages that its peer did not send, so what the two ends of a connection say
	// of each other need not agree.
	lies  bool
	trace []string
	steps int // of run
	conns int
}

type host struct {
	s      *sim
	role   smc.Role
	g      *Group
	acts   []Action
	busyTo time.Time // received messages are processed in order
	first  error
	firstN int
	deadN  int
	deadE  error
	gone   bool
	apps   map[*Conn]*app
	rmbs   map[*region]bool
	chunks map[*conn.Chunk]bool // in use
	spare  []*conn.Chunk        // not in use; the last one is used first
	keep   bool                 // free chunks are not overwritten
	// noMemory makes NewChunk fail.
	noMemory bool
	failQP   int // NewQP calls that fail
}

type region struct {
	mem  []byte
	base uint64
	regs map[*Link]smc.RKey
}

type qp struct {
	h       *host
	l       *Link
	n       smc.QPN
	peer    smc.QPN
	state   int // 0 INIT 1 RTR 2 RTS 3 closed
	lastOut time.Time
	lastAck time.Time
	broken  bool
	mr      map[smc.RKey]*region
}

func newSim(t testing.TB, seed uint64) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: epoch, qps: map[smc.QPN]*qp{}, dead: map[smc.GID]bool{}}
	return s
}

func device(role smc.Role, i int) Device {
	gid := smc.GID{0: 0xfe, 1: 0x80, 14: byte(role) + 1, 15: byte(i) + 1}
	return Device{ID: i, Name: fmt.Sprintf("rxe%d", i), GID: gid, MAC: smc.MAC{2, 0, 0, 0, byte(role), byte(i)}, MTU: 3, Up: true}
}

func (s *sim) addHost(role smc.Role, devices int, edit func(*Config)) *host {
	h := &host{s: s, role: role, apps: map[*Conn]*app{}, rmbs: map[*region]bool{}, chunks: map[*conn.Chunk]bool{}}
	// The peer does as RFC 7609 says.
	cfg := Config{Role: role, ID: [4]byte{0, 0, byte(role) + 1, 0}, RMBEsPerRMB: 4, PeerOS: smc.OSZOS}
	for i := range devices {
		cfg.Devices = append(cfg.Devices, device(role, i))
	}
	cfg.Timers = DefaultTimers(role)
	cfg.Timers.AddLinkPause, cfg.Timers.DeleteLinkPause = 0, 0
	if edit != nil {
		edit(&cfg)
	}
	h.g = New(cfg, h, s.now)
	s.hosts[role] = h
	return h
}

func (s *sim) delay() time.Duration {
	if s.maxDelay == 0 {
		return time.Microsecond
	}
	return time.Microsecond + time.Duration(s.rng.Int64N(int64(s.maxDelay)))
}

func (s *sim) after(d time.Duration, f func()) {
	s.seq++
	heap.Push(&s.queue, &event{at: s.now.Add(d), seq: s.seq, run: f})
}

func (s *sim) at(t time.Time, f func()) {
	s.seq++
	heap.Push(&s.queue, &event{at: t, seq: s.seq, run: f})
}

// run processes events, and timers when there is no event before them,
// until cond holds or limit of fake time has passed.
func (s *sim) run(limit time.Duration, cond func() bool) bool {
	end := s.now.Add(limit)
	for !cond() {
		if s.steps++; s.steps%8 == 0 {
			s.check()
		}
		next := end
		var tick *host
		for _, h := range s.hosts {
			if h == nil {
				continue
			}
			if at, ok := h.g.Deadline(); ok && !at.After(next) {
				next, tick = at, h
			}
		}
		if len(s.queue) > 0 && !s.queue[0].at.After(next) {
			e := heap.Pop(&s.queue).(*event)
			if e.at.After(s.now) {
				s.now = e.at
			}
			e.run()
			continue
		}
		if tick == nil {
			if next.After(s.now) {
				s.now = next
			}
			return cond()
		}
		if next.After(s.now) {
			s.now = next
		}
		tick.g.Tick(s.now)
		tick.drain()
		if at, ok := tick.g.Deadline(); ok && !at.After(s.now) {
			s.t.Fatalf("%s: deadline %v still due after Tick at %v", tick.role, at.Sub(epoch), s.now.Sub(epoch))
		}
	}
	return true
}

// check verifies the invariants of both groups and of all pairs of ends.
func (s *sim) check() {
	for _, h := range s.hosts {
		if h == nil {
			continue
		}
		if err := h.g.Check(); err != nil {
			s.t.Fatalf("%s: %v", h.role, err)
		}
		for c, p := range h.apps {
			if !s.lies && p.other != nil && h.role == smc.Client && p.open && p.other.open && !p.closed && !p.other.closed {
				if err := conntest.CheckPair(&c.Conn, &p.other.c.Conn); err != nil {
					s.t.Fatal(err)
				}
			}
		}
	}
}

// runUntilIdle runs until nothing is under way.
func (s *sim) runUntilIdle() {
	for len(s.queue) > 0 {
		s.run(time.Second, func() bool { return len(s.queue) == 0 })
	}
}

// Env.

func (h *host) NewQP(l *Link, d Device) (Endpoint, error) {
	if h.failQP > 0 {
		h.failQP--
		return Endpoint{}, errors.New("no queue pair")
	}
	s := h.s
	s.qpn++
	q := &qp{h: h, l: l, n: 0x100 + s.qpn, mr: map[smc.RKey]*region{}}
	s.qps[q.n] = q
	l.Data = q
	return Endpoint{GID: d.GID, MAC: d.MAC, QPN: q.n, PSN: smc.PSN(s.rng.Uint32N(1 << 24)), MTU: d.MTU}, nil
}

func (h *host) ConnectQP(l *Link, peer Endpoint, mtu smc.MTU) error {
	q := l.Data.(*qp)
	if q.state != 0 || mtu == 0 || mtu > 5 {
		h.s.t.Fatalf("ConnectQP in state %d, mtu %d", q.state, mtu)
	}
	q.state, q.peer = 1, peer.QPN
	return nil
}

func (h *host) ReadyQP(l *Link) error {
	q := l.Data.(*qp)
	if q.state != 1 {
		h.s.t.Fatalf("ReadyQP in state %d", q.state)
	}
	q.state = 2
	return nil
}

func (h *host) CloseQP(l *Link) {
	q := l.Data.(*qp)
	q.state = 3
	delete(h.s.qps, q.n)
}

func (h *host) NewRMB(size int) ([]byte, any, error) {
	r := &region{mem: make([]byte, size), base: uint64(h.s.rng.Uint32())<<20 + 0x1000, regs: map[*Link]smc.RKey{}}
	h.rmbs[r] = true
	return r.mem, r, nil
}

func (h *host) RegisterRMB(handle any, l *Link) (smc.RKey, uint64, error) {
	r := handle.(*region)
	q := l.Data.(*qp)
	if r.regs[l] != 0 {
		h.s.t.Fatalf("RMB registered twice on link %d", l.id)
	}
	key := smc.RKey(h.s.rng.Uint32() | 1)
	r.regs[l] = key
	q.mr[key] = r
	return key, r.base + uint64(q.n), nil
}

func (h *host) DeregisterRMB(handle any, l *Link) {
	r := handle.(*region)
	q := l.Data.(*qp)
	delete(q.mr, r.regs[l])
	delete(r.regs, l)
}

func (h *host) ZeroRMB(handle any, off, n int) { clear(handle.(*region).mem[off:][:n]) }

// TrimRMB and FreeChunk overwrite memory that is not needed any more.
func (h *host) TrimRMB(handle any, off, n int) { overwrite(handle.(*region).mem[off:][:n]) }

// filler overwrites memory that is not needed any more.
var filler = bytes.Repeat([]byte{0xdb}, 64<<10)

// overwrite fills b with filler, so that a test finds reads from unused memory.
func overwrite(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, filler):]
	}
}

func (h *host) FreeRMB(handle any) {
	r := handle.(*region)
	if !h.rmbs[r] {
		h.s.t.Fatal("RMB freed twice")
	}
	for l, k := range r.regs {
		delete(l.Data.(*qp).mr, k)
	}
	delete(h.rmbs, r)
}

var errNoMemory = errors.New("no memory")

func (h *host) NewChunk(size int) (*conn.Chunk, error) {
	if h.noMemory {
		return nil, errNoMemory
	}
	i := len(h.spare) - 1
	for i >= 0 && len(h.spare[i].Mem) != size {
		i--
	}
	var k *conn.Chunk
	if i >= 0 {
		k = h.spare[i]
		h.spare = append(h.spare[:i], h.spare[i+1:]...)
	} else {
		k = &conn.Chunk{Mem: make([]byte, size)}
	}
	h.chunks[k] = true
	return k, nil
}

func (h *host) FreeChunk(k *conn.Chunk) {
	if !h.chunks[k] {
		h.s.t.Fatal("chunk freed twice")
	}
	delete(h.chunks, k)
	if !h.keep {
		overwrite(k.Mem)
	}
	h.spare = append(h.spare, k)
}

func (h *host) Random() uint32 { return h.s.rng.Uint32() }

// drain carries out actions like a driver. Memory that is not needed any more is
// overwritten at once.
func (h *host) drain() {
	h.acts = h.g.TakeActions(h.acts)
	for h.g.Trim(h.s.now, 0) {
	}
	for _, a := range h.acts {
		if h.gone {
			h.s.t.Fatalf("%s: action %s after group-dead", h.role, a.Kind)
		}
		switch a.Kind {
		case ActSend, ActWrite:
			h.s.post(a)
		case ActWakeRead, ActWakeWrite:
			if p := h.apps[a.Conn]; p != nil {
				p.wake()
			}
		case ActConnReady:
			if p := h.apps[a.Conn]; p != nil {
				p.ready, p.readyErr = true, a.Err
			}
		case ActFirstLink:
			h.first = a.Err
			h.firstN++
		case ActConnClosed:
			p := h.apps[a.Conn]
			if p == nil || p.closed {
				h.s.t.Fatalf("%s: conn-closed for an unknown connection or again", h.role)
			}
			p.closed, p.closeErr = true, a.Err
			a.Conn.Release()
		case ActGroupDead:
			h.gone = true
			h.deadN++
			h.deadE = a.Err
		}
	}
}

// post hands a work request to the fabric.
func (s *sim) post(a Action) {
	q := a.Link.Data.(*qp)
	if q.state == 3 {
		return
	}
	if q.state != 2 {
		s.t.Fatalf("post on a queue pair in state %d", q.state)
	}
	at := s.now.Add(s.delay())
	if at.Before(q.lastOut) {
		at = q.lastOut
	}
	q.lastOut = at
	var src []byte
	if a.Kind == ActWrite {
		src = a.Chunk.Mem[a.Off:][:a.Len]
	}
	s.at(at, func() { s.deliver(q, a, src) })
}

func (s *sim) deliver(q *qp, a Action, src []byte) {
	if q.state == 3 || q.broken {
		return
	}
	p := s.qps[q.peer]
	down := s.dead[q.l.local.GID] || s.dead[q.l.peer.GID]
	drop := a.Kind == ActSend && s.block != nil && s.block(q.h, q.l, a.Message())
	if p == nil || p.state < 1 || down || drop && s.tap == nil {
		q.broken = true
		s.after(10*time.Millisecond, func() { s.breakQP(q) })
		return
	}
	if a.Kind == ActWrite {
		s.write(p, a, src)
	} else {
		msg := append([]byte(nil), a.Message()...)
		if s.tap != nil {
			s.tap(q.h, q.l, msg)
		}
		// A blocked message is acknowledged by the adapter but never
		// processed.
		if !drop {
			at := s.now.Add(s.delay())
			if at.Before(p.h.busyTo) && !s.skew {
				at = p.h.busyTo
			}
			if s.skew && at.Before(p.lastAck) {
				at = p.lastAck
			}
			p.lastAck = at
			p.h.busyTo = at
			s.at(at, func() {
				if !p.h.gone {
					p.h.g.Received(s.now, p.l, msg)
					p.h.drain()
				}
			})
		}
	}
	if a.Token == 0 {
		return
	}
	s.after(s.delay(), func() {
		if q.state != 3 && !q.broken && !q.h.gone {
			q.h.g.Sent(s.now, q.l, a.Token)
			q.h.drain()
		}
	})
}

func (s *sim) breakQP(q *qp) {
	q.broken = true
	if q.state != 3 && !q.h.gone {
		q.h.g.LinkFailed(s.now, q.l, errors.New("retries exceeded"))
		q.h.drain()
	}
}

// write does an RDMA WRITE that [Group.CheckWrite] allows.
func (s *sim) write(p *qp, a Action, src []byte) {
	r := p.mr[a.RKey]
	if r == nil {
		s.t.Fatalf("write with RKey %s that is not registered", a.RKey)
	}
	off := int(a.RemoteAddr - (r.base + uint64(p.n)))
	if off < 0 || off+a.Len > len(r.mem) || a.Len != len(src) || a.Len == 0 {
		s.t.Fatalf("write of %d bytes at %d outside of the RMB", a.Len, off)
	}
	if ok, err := p.h.g.CheckWrite(s.now, a.RKey, a.RemoteAddr, r.mem[off:][:a.Len], src); !ok || err != nil {
		s.t.Fatalf("rkey %s off %d conn %#x link %d: a write to the RMB is known: %v, %v", a.RKey, off, a.Conn.Token(), a.Link.id, ok, err)
	}
	copy(r.mem[off:], src)
}
