// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"smcr/rdmaverbs"
	"smcr/userstack/linkgroup"
	"smcr/userstack/wire"
)

// group drives one link group: it owns the lock of the protocol core, its
// queue pairs, memory and timer.
//
// Whoever has an event locks mu, hands it to the core and calls unlock. What
// the core wants done then is carried out by unlock, outside the lock, by
// one goroutine at a time and in order. Completions may be announced while
// the lock is held, even by its holder (closing a queue pair flushes it), so
// the announcement only marks pollWanted and lets the holder look.
type group struct {
	s    *Stack
	log  *slog.Logger
	peer wire.PeerID // as in the proposal or ACCEPT
	role linkgroup.Role
	lan  lan
	// terms are nil in version 1. What the peer told of itself is guarded
	// by mu.
	terms *terms

	mu                  sync.Mutex
	core                *linkgroup.Group
	pollWanted          atomic.Bool
	running             bool               // a goroutine carries out actions
	acts                []linkgroup.Action // the executor's, reused
	later               []func()           // releases, carried out after the actions queued before them
	timer               *time.Timer
	armed               time.Time // when timer fires; zero if it is stopped
	links               []*link
	leftover            []leftover
	pds                 map[int]rdmaverbs.PD
	sendPool            map[int][]*region // free send buffers by size
	first               chan error        // outcome of the first contact, buffered
	dead                bool
	conns               map[*Conn]struct{}
	peerAddr            netip.Addr // of the first connection
	sendBytes, rmbBytes uint64     // memory allocated

	// executor scratch
	wrs []rdmaverbs.SendWR
	wc  [32]rdmaverbs.WC
	wc2 [8]rdmaverbs.WC
}

// link is the driver's part of a linkgroup.Link.
type link struct {
	g    *group
	core *linkgroup.Link
	dev  *device
	qp   rdmaverbs.QP
	cq   rdmaverbs.CQ
	rbuf []byte
	rmr  rdmaverbs.MR
	more *longBuf // version 2: for messages longer than recvSlot
	init linkgroup.Endpoint
	peer linkgroup.Endpoint
	mtu  uint8 // path MTU code
	gone atomic.Bool
}

// Sizes of the queues of a link. The receive queue is larger than what a
// peer of the same kind has outstanding, so that it does not run dry.
const (
	sendDepth = 192
	recvDepth = 384
	recvSlot  = 64 // bytes a receive: a 44-byte message, aligned
)

// tokenFlag marks work request ids of the send side.
const tokenFlag = 1 << 63

func newGroup(s *Stack, role linkgroup.Role, t *terms, peer wire.PeerID, at lan, devs []*device) *group {
	g := &group{
		s: s, role: role, terms: t, peer: peer, lan: at,
		pds:      map[int]rdmaverbs.PD{},
		sendPool: map[int][]*region{},
		first:    make(chan error, 1),
		conns:    map[*Conn]struct{}{},
	}
	id := s.nextGroupID()
	g.log = s.log.With("lgr", fmt.Sprintf("%x", id), "role", role.String())
	timers := linkgroup.DefaultTimers(role)
	// Programs are to see within a second that the stack of their peer died.
	timers.TCPGrace = 500 * time.Millisecond
	if idle := s.cfg.GroupIdle; idle > 0 {
		timers.Idle = idle
		if role == linkgroup.Client {
			timers.Idle += min(idle/10, 10*time.Second)
		}
	}
	if s.cfg.tuneTimers != nil {
		s.cfg.tuneTimers(role, &timers)
	}
	cfg := linkgroup.Config{
		Role: role, ID: id, LocalPeerID: s.peerID, PeerID: peer, VLAN: at.rt.VLAN,
		MaxLinks: s.cfg.MaxLinks, MaxConns: s.cfg.MaxConns,
		SendQueue: sendDepth, EyeCatcher: s.cfg.EyeCatcher, Timers: timers, Log: g.log,
	}
	if role == linkgroup.Client {
		cfg.MaxConns = 0 // the most there can be: the server decides
	}
	if t != nil {
		cfg.Routed = t.routed
		cfg.Version, cfg.PeerOS, cfg.MaxLinks = wire.Version2, t.peerOS, int(t.maxLinks)
		if role == linkgroup.Client || cfg.MaxConns == 0 {
			cfg.MaxConns = int(t.maxConns)
		}
		cfg.MaxConns = min(cfg.MaxConns, int(t.maxConns))
	}
	for _, d := range devs {
		if cd, err := d.core(t.subnet()); err == nil {
			cfg.Devices = append(cfg.Devices, cd)
		}
	}
	g.timer = time.AfterFunc(time.Hour, g.onTimer)
	g.timer.Stop()
	g.core = linkgroup.New(cfg, (*groupEnv)(g), time.Now())
	return g
}

// do hands one event to the core and carries out what follows from it.
func (g *group) do(f func(now time.Time)) {
	g.mu.Lock()
	f(time.Now())
	g.unlock()
}

func (g *group) onTimer() {
	g.mu.Lock()
	g.armed = time.Time{}
	if !g.dead {
		g.core.Tick(time.Now())
	}
	g.unlock()
}

// onComplete is the notify function of all completion queues of the group.
func (g *group) onComplete() {
	g.pollWanted.Store(true)
	if g.mu.TryLock() {
		g.unlock()
	}
}

// unlock carries out the actions that are queued and releases mu. If another
// goroutine carries out actions already, it takes these too.
func (g *group) unlock() {
	for {
		g.settle()
		g.mu.Unlock()
		// Completions announced while the lock was held are ours to take.
		if !g.pollWanted.Load() || !g.mu.TryLock() {
			return
		}
	}
}

func (g *group) settle() {
	if g.pollWanted.Swap(false) {
		g.poll()
	}
	if g.running {
		g.arm()
		return
	}
	g.running = true
	for {
		g.acts = g.core.TakeActions(g.acts[:0])
		later := g.later
		g.later = nil
		if len(g.acts) == 0 && len(later) == 0 {
			break
		}
		g.mu.Unlock()
		g.execute(g.acts)
		for _, f := range later {
			f()
		}
		g.closeDomains()
		g.mu.Lock()
		if g.pollWanted.Swap(false) {
			g.poll()
		}
	}
	g.running = false
	g.arm()
}

// arm sets the timer to the nearest deadline. A timer that is early only
// costs a look, so it is never set later.
func (g *group) arm() {
	if g.dead {
		g.timer.Stop()
		return
	}
	d, ok := g.core.Deadline()
	if !ok || (!g.armed.IsZero() && !d.Before(g.armed)) {
		return
	}
	g.armed = d
	g.timer.Reset(max(0, time.Until(d)))
}

// leftover is a message that had arrived on a link before it was closed. The
// core wants to know: what it acknowledged to the peer must not be lost.
type leftover struct {
	link *linkgroup.Link
	msg  []byte
}

// poll takes all completions and hands them to the core. mu is held.
func (g *group) poll() {
	for len(g.leftover) > 0 {
		m := g.leftover[0]
		g.leftover = g.leftover[1:]
		g.core.Received(time.Now(), m.link, m.msg)
	}
	for i := 0; i < len(g.links); i++ {
		l := g.links[i]
		if l.gone.Load() {
			continue
		}
		for {
			n := l.cq.Poll(g.wc[:])
			if n == 0 {
				break
			}
			now := time.Now()
			for j := range g.wc[:n] {
				l.complete(now, &g.wc[j])
			}
			if l.gone.Load() {
				break
			}
		}
	}
}

// complete handles one work completion. g.mu is held.
func (l *link) complete(now time.Time, wc *rdmaverbs.WC) {
	g := l.g
	if wc.Status != rdmaverbs.StatusSuccess {
		if !l.gone.Load() {
			g.core.LinkFailed(now, l.core, wc.Status.Err())
		}
		return
	}
	if wc.ID&tokenFlag != 0 {
		if t := wc.ID &^ tokenFlag; t != 0 && !l.gone.Load() {
			g.core.Sent(now, l.core, t)
		}
		return
	}
	slot := int(wc.ID)
	g.core.Received(now, l.core, l.message(slot, wc.Len))
	if l.gone.Load() {
		return
	}
	if _, err := l.qp.PostRecv(l.recvWR(slot)); err != nil {
		g.core.LinkFailed(now, l.core, err)
	}
}

func (l *link) recvWR(slot int) rdmaverbs.RecvWR {
	wr := rdmaverbs.RecvWR{ID: uint64(slot), SG: rdmaverbs.SGE{MR: l.rmr, Off: slot * recvSlot, Len: recvSlot}}
	if l.more != nil {
		wr.More = l.more.recv(slot)
	}
	return wr
}

// message returns the n bytes that arrived in a slot. They may be overwritten
// when the slot is posted again.
func (l *link) message(slot, n int) []byte {
	b := l.rbuf[slot*recvSlot:][:recvSlot]
	if n <= recvSlot || l.more == nil {
		return b[:min(n, recvSlot)]
	}
	return append(append(make([]byte, 0, n), b...), l.more.message(slot, n-recvSlot)...)
}

// execute carries out actions in order; mu is not held. Runs of work
// requests for one link are posted together.
func (g *group) execute(acts []linkgroup.Action) {
	var on *link
	g.wrs = g.wrs[:0]
	flush := func() {
		if len(g.wrs) == 0 {
			return
		}
		if on != nil && !on.gone.Load() {
			if _, err := on.qp.PostSend(g.wrs...); err != nil && !on.gone.Load() {
				l := on
				g.log.Debug("post failed", "link", l.core.ID(), "err", err)
				g.mu.Lock()
				if !g.dead && !l.gone.Load() {
					g.core.LinkFailed(time.Now(), l.core, err)
				}
				g.mu.Unlock() // the executor's loop takes what follows
			}
		}
		g.wrs = g.wrs[:0]
	}
	for i := range acts {
		a := &acts[i]
		switch a.Kind {
		case linkgroup.ActSend, linkgroup.ActWrite:
			l, _ := a.Link.Data.(*link)
			if l == nil || l.gone.Load() {
				continue
			}
			if l != on {
				flush()
				on = l
			}
			wr, err := l.workRequest(a)
			if err != nil {
				g.log.Error("no memory region for a send buffer", "err", err)
				g.mu.Lock()
				g.core.LinkFailed(time.Now(), l.core, err)
				g.mu.Unlock()
				continue
			}
			g.wrs = append(g.wrs, wr)
		default:
			flush()
			g.notify(a)
		}
	}
	flush()
}

func (l *link) workRequest(a *linkgroup.Action) (rdmaverbs.SendWR, error) {
	wr := rdmaverbs.SendWR{ID: a.Token | tokenFlag}
	if a.Token != 0 {
		wr.Flags |= rdmaverbs.Signaled
	}
	if a.Kind == linkgroup.ActSend {
		wr.Op = rdmaverbs.OpSend
		wr.Flags |= rdmaverbs.Solicited
		if len(a.Long) > maxInline && l.more != nil {
			wr.SG[0] = l.more.send(a.Long)
			return wr, nil
		}
		wr.Flags |= rdmaverbs.Inline
		wr.InlineData = a.Message()
		return wr, nil
	}
	r := a.Conn.SendHandle().(*region)
	mr, err := r.mr(l.g, l.dev, 0)
	if err != nil {
		return wr, err
	}
	wr.Op = rdmaverbs.OpWrite
	wr.SG[0] = rdmaverbs.SGE{MR: mr, Off: a.Off, Len: a.Len}
	wr.RemoteAddr, wr.RKey = a.RemoteAddr, a.RKey
	return wr, nil
}

// notify tells waiters what happened.
func (g *group) notify(a *linkgroup.Action) {
	switch a.Kind {
	case linkgroup.ActWakeRead:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			wake(c.rwake)
		}
	case linkgroup.ActWakeWrite:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			wake(c.wwake)
		}
	case linkgroup.ActWakeUrgent:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			wake(c.uwake)
		}
	case linkgroup.ActConnReady:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			c.ready <- a.Err
		}
	case linkgroup.ActFirstLink:
		select {
		case g.first <- a.Err:
		default:
		}
	case linkgroup.ActConnClosed:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			c.ended(a.Err)
		}
	case linkgroup.ActGroupDead:
		g.onDead(a.Err)
	}
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// onDead forgets the group and frees what the core does not know of.
func (g *group) onDead(err error) {
	g.s.forgetGroup(g)
	g.log.Info("link group ended", "reason", err)
	select {
	case g.first <- errors.Join(linkgroup.ErrGroupDead, err):
	default:
	}
	g.mu.Lock()
	g.dead = true
	g.timer.Stop()
	links, pool := g.links, g.sendPool
	g.links, g.sendPool = nil, map[int][]*region{}
	g.mu.Unlock()
	for _, l := range links {
		l.destroy()
	}
	for _, list := range pool {
		for _, r := range list {
			r.free(g.s.mem)
		}
	}
}

// closeDomains closes the protection domains of a dead group. One that is
// still in use, because a connection's buffer is, is left for the next time.
func (g *group) closeDomains() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.dead {
		return
	}
	for id, pd := range g.pds {
		if err := pd.Close(); err == nil || !errors.Is(err, rdmaverbs.ErrBusy) {
			delete(g.pds, id)
		}
	}
}

// groupEnv is the core's view of its driver. Its methods run with mu held.
type groupEnv group

var _ linkgroup.Env = (*groupEnv)(nil)

func (e *groupEnv) Random() uint32 { return e.s.cfg.random() }

// pd returns the group's protection domain on dev: one a device, so that no
// other peer's queue pair reaches this group's memory (RFC 7609, section 5).
func (e *groupEnv) pd(dev *device) (rdmaverbs.PD, error) {
	if pd := e.pds[dev.id]; pd != nil {
		return pd, nil
	}
	pd, err := dev.rdma.AllocPD()
	if err != nil {
		return nil, err
	}
	e.pds[dev.id] = pd
	return pd, nil
}

// NewQP implements linkgroup.Env.
func (e *groupEnv) NewQP(cl *linkgroup.Link, d linkgroup.Device) (linkgroup.Endpoint, error) {
	dev := e.s.deviceByID(d.ID)
	if dev == nil {
		return linkgroup.Endpoint{}, fmt.Errorf("device %s is gone", d.Name)
	}
	l := &link{g: (*group)(e), core: cl, dev: dev}
	ep, err := l.create(e)
	if err != nil {
		l.destroy()
		return linkgroup.Endpoint{}, fmt.Errorf("create a queue pair on %s: %w", dev.name, err)
	}
	l.init = ep
	cl.Data = l
	e.links = append(e.links, l)
	return ep, nil
}

func (l *link) create(e *groupEnv) (ep linkgroup.Endpoint, err error) {
	pd, err := e.pd(l.dev)
	if err != nil {
		return ep, err
	}
	if l.cq, err = l.dev.rdma.CreateCQ(sendDepth+recvDepth, l.g.onComplete); err != nil {
		return ep, err
	}
	if l.rbuf, err = e.s.mem.get(recvDepth * recvSlot); err != nil {
		return ep, err
	}
	if l.rmr, err = pd.RegisterMR(l.rbuf, rdmaverbs.AccessLocalWrite); err != nil {
		return ep, err
	}
	if l.g.terms != nil {
		if l.more, err = newLongBuf(pd); err != nil {
			return ep, err
		}
	}
	sgid, gid, err := l.dev.sourceGID(l.g.terms.subnet())
	if err != nil {
		return ep, err
	}
	l.qp, err = pd.CreateQP(rdmaverbs.QPInit{
		SendCQ: l.cq, RecvCQ: l.cq, MaxSend: sendDepth, MaxRecv: recvDepth,
		Port: 1, SGIDIndex: sgid, Access: rdmaverbs.AccessLocalWrite | rdmaverbs.AccessRemoteWrite,
	})
	if err != nil {
		return ep, err
	}
	wrs := make([]rdmaverbs.RecvWR, recvDepth)
	for i := range wrs {
		wrs[i] = l.recvWR(i)
	}
	if _, err = l.qp.PostRecv(wrs...); err != nil {
		return ep, err
	}
	port, err := l.dev.rdma.Port(1)
	if err != nil {
		return ep, err
	}
	ep = linkgroup.Endpoint{GID: wire.GID(gid), QPN: l.qp.QPN(), PSN: e.s.cfg.random() >> 8, MTU: uint8(port.ActiveMTU)}
	copy(ep.MAC[:], port.HWAddr)
	return ep, nil
}

// path describes the way to the peer. 7 retries and RNR retries without end
// are what Linux uses. The timeout is 17 (537 ms), above the 15 of Linux:
// processes on a busy host may be kept waiting longer than a kernel, and a
// lost packet rarely has to wait for it.
//
// The hop limits are those of Linux: RoCE packets to a neighbour do not pass a
// router. Behind a router the provider finds the next hop.
func (l *link) path() rdmaverbs.PathInfo {
	p := rdmaverbs.PathInfo{
		DGID: rdmaverbs.GID(l.peer.GID), DMAC: append([]byte(nil), l.peer.MAC[:]...),
		DQPN: l.peer.QPN, RQPSN: l.peer.PSN, SQPSN: l.init.PSN,
		PathMTU: rdmaverbs.MTU(l.mtu), HopLimit: 1,
		Timeout: 17, RetryCnt: 7, RNRRetry: 7, MinRNR: 5, MaxRdAtom: 1, MaxDestRd: 1,
	}
	if l.g.terms != nil && l.g.terms.routed {
		p.DMAC, p.HopLimit = nil, 64
	}
	return p
}

// ConnectQP implements linkgroup.Env.
func (e *groupEnv) ConnectQP(cl *linkgroup.Link, peer linkgroup.Endpoint, mtu uint8) error {
	l := cl.Data.(*link)
	l.peer = peer
	l.mtu = mtu
	return l.qp.ToRTR(l.path())
}

// ReadyQP implements linkgroup.Env.
func (e *groupEnv) ReadyQP(cl *linkgroup.Link) error {
	l := cl.Data.(*link)
	return l.qp.ToRTS(l.path())
}

// CloseQP implements linkgroup.Env.
func (e *groupEnv) CloseQP(cl *linkgroup.Link) {
	l, _ := cl.Data.(*link)
	if l == nil || l.gone.Swap(true) {
		return
	}
	if err := l.qp.Close(); err != nil {
		e.log.Warn("close queue pair", "err", err)
	}
	for {
		n := l.cq.Poll(e.wc2[:])
		if n == 0 {
			break
		}
		for _, wc := range e.wc2[:n] {
			if wc.Status == rdmaverbs.StatusSuccess && wc.ID&tokenFlag == 0 {
				e.leftover = append(e.leftover, leftover{cl, append([]byte(nil), l.message(int(wc.ID), wc.Len)...)})
				e.pollWanted.Store(true)
			}
		}
	}
	for i, o := range e.links {
		if o == l {
			e.links = append(e.links[:i], e.links[i+1:]...)
			break
		}
	}
	e.later = append(e.later, l.destroy)
}

// destroy frees the queues and receive buffers of a link. It runs without
// the group's lock.
func (l *link) destroy() {
	l.gone.Store(true)
	if l.qp != nil {
		_ = l.qp.Close()
	}
	if l.rmr != nil {
		_ = l.rmr.Close()
	}
	if l.more != nil {
		l.more.close()
		l.more = nil
	}
	if l.cq != nil {
		_ = l.cq.Close()
	}
	if l.rbuf != nil {
		l.g.s.mem.put(l.rbuf)
		l.rbuf = nil
	}
}
