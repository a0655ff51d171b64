// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"smcr/guard"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// Limits of every device.
const (
	maxMsg    = 1 << 30 // bytes; 2^22 packets with the smallest MTU, a quarter of all PSNs
	maxInline = 256     // bytes
	maxQPWR   = 1 << 14
	maxRead   = 16
	maxCQE    = 1 << 20
)

// Device is a software RDMA device on one netdev. It has one port.
type Device struct {
	name      string
	maxQP     int
	numbers   QPNs
	window    windowLimit
	writeOnly bool
	log       *slog.Logger
	guard     *guard.Guard // nil: panics end the process
	wire      wire
	watch     io.Closer // nil if the netdev is not watched
	timers    *timers
	epoch     time.Time
	mrs       mrTable

	mu        sync.RWMutex
	port      port
	qps       map[uint32]*qp
	closedQPs closedQPs
	closed    bool

	events asyncEvents
	shards []*shard
	nextPD atomic.Uint32

	drops     dropCounters
	forgeries forgeryLog
}

type dropCounters struct {
	malformed, unknownQP, wrongPeer, wrongSource atomic.Uint64
}

// newDevice makes a device with wire w and starts it. The caller may set
// d.watch before it passes the device on.
func newDevice(name string, w wire, info netdevInfo, c config) (*Device, error) {
	d := &Device{
		name:      name,
		maxQP:     c.maxQP,
		numbers:   c.numbers,
		window:    c.window,
		writeOnly: c.writeOnly,
		log:       c.log.With("device", name),
		guard:     c.guard,
		wire:      w,
		epoch:     time.Now(),
		port:      port{types: c.types},
		qps:       make(map[uint32]*qp),
		events:    newAsyncEvents(),
	}
	d.port.set(info)
	d.makeShards(c.pollers)
	d.timers = newTimers(d.now, func(q *qp) { d.guarded("a timer of device "+name, q.expire) })
	if sp, ok := w.(spreader); ok && len(d.shards) > 1 {
		hs := make([]handler, len(d.shards))
		for i, s := range d.shards {
			hs[i] = s.receive
		}
		sp.spread(hs)
	}
	if err := w.start(d.shards[0].receive); err != nil {
		d.timers.close()
		return nil, fmt.Errorf("softroce: start %s: %w", name, err)
	}
	return d, nil
}

func (d *Device) now() instant { return instant(time.Since(d.epoch)) }

// Name returns the device's name, such as "soft-eth0".
func (d *Device) Name() string { return d.name }

// Attr returns the limits and identity of the device.
func (d *Device) Attr() rdmaverbs.DeviceAttr {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return rdmaverbs.DeviceAttr{
		Provider: providerName,
		NumPorts: 1,
		MaxQP:    d.maxQP,
		MaxMR:    maxMR,
		MaxMsg:   maxMsg,
		MaxSGE:   2,
		MaxQPWR:  maxQPWR,
		MaxRead:  maxRead,
		NodeGUID: d.port.guid(),
		NetDev:   d.port.info.Name,
		IfIndex:  d.port.info.Index,
		HWAddr:   slices.Clone(d.port.info.HWAddr),

		OnDemandPaging: true,
	}
}

// Port returns the state of port 1.
func (d *Device) Port(num int) (rdmaverbs.PortAttr, error) {
	if err := checkPort(num); err != nil {
		return rdmaverbs.PortAttr{}, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	a := d.port.attr()
	if d.closed {
		a.State = rdmaverbs.PortDown
	}
	return a, nil
}

func (d *Device) pathMTU(t rdmaverbs.GIDType) smc.MTU {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.port.info.pathMTU(t)
}

func checkPort(num int) error {
	if num != 1 {
		return fmt.Errorf("softroce: port %d, there is only port 1: %w", num, rdmaverbs.ErrInvalid)
	}
	return nil
}

// GIDs returns the GID table of port 1.
func (d *Device) GIDs(port int) ([]rdmaverbs.GIDEntry, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Clone(d.port.gids), nil
}

// usable returns ErrClosed if the device is closed and ErrNoDevice if its
// netdev is gone. d.mu is held.
func (d *Device) usable() error {
	switch {
	case d.closed:
		return fmt.Errorf("softroce: device %s: %w", d.name, rdmaverbs.ErrClosed)
	case d.port.gone:
		return fmt.Errorf("softroce: netdev of device %s is gone: %w", d.name, rdmaverbs.ErrNoDevice)
	}
	return nil
}

// AllocPD allocates a protection domain.
func (d *Device) AllocPD() (rdmaverbs.PD, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	p := &pd{dev: d}
	p.SetShard(int(d.nextPD.Add(1) - 1))
	return p, nil
}

// CreateCQ creates a completion queue.
func (d *Device) CreateCQ(depth int, notify func()) (rdmaverbs.CQ, error) {
	if depth <= 0 || depth > maxCQE {
		return nil, fmt.Errorf("softroce: completion queue of %d entries: must be 1 to %d: %w", depth, maxCQE, rdmaverbs.ErrInvalid)
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	return newCQ(d, depth, notify), nil
}

// Events returns the channel of asynchronous events.
func (d *Device) Events() <-chan rdmaverbs.AsyncEvent { return d.events.ch }

// addQP gives q a number and adds it to the table. Numbers are random, so that
// packets for a queue pair that was closed do not reach a new one.
func (d *Device) addQP(q *qp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	if len(d.qps) >= d.maxQP {
		return fmt.Errorf("softroce: device %s has %d queue pairs: %w", d.name, len(d.qps), rdmaverbs.ErrNoResources)
	}
	shards := uint32(len(d.shards))
	for {
		n := d.numbers.pick(rand.Uint32())
		n = n/shards*shards + uint32(q.shard.n)
		if n < 16 || n >= psnMask || d.qps[n] != nil || !d.numbers.has(n) { // special queue pairs, multicast
			continue
		}
		q.ep.qpn = n
		d.qps[n] = q
		return nil
	}
}

// removeQP removes q from the table. q is closed.
func (d *Device) removeQP(q *qp) {
	d.mu.Lock()
	delete(d.qps, q.ep.qpn)
	var p *closedQP
	if d.closedQPs.stats.add(&q.ep.stats); !d.closed {
		p = d.closedQPs.remember(q)
	}
	aside := p != nil && !d.port.active()
	d.mu.Unlock()
	d.timers.remove(q)
	if aside {
		q.closeNotice = p
		q.sendCloseNotice()
	}
}

func (d *Device) findQP(n uint32) *qp {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.qps[n]
}

func (d *Device) allQPs() []*qp {
	d.mu.RLock()
	defer d.mu.RUnlock()
	qs := make([]*qp, 0, len(d.qps))
	for _, q := range d.qps {
		qs = append(qs, q)
	}
	return qs
}

// receive is the wire's handler. It works in rounds: it gives some packets to
// their queue pairs, runs the notify functions, which may post answers, then
// lets each of those queue pairs send one batch. A queue pair that has more to
// send takes turns with the others.
func (s *shard) receive(pkts []inbound) {
	for len(pkts) > 0 {
		n := min(len(pkts), batchLen)
		s.deliver(pkts[:n])
		pkts = pkts[n:]
		s.answer()
	}
	for len(s.pending) > 0 {
		s.answer()
	}
}

func (s *shard) deliver(pkts []inbound) {
	for n := 0; n < len(pkts); {
		n += s.deliverSome(pkts[n:])
	}
}

// deliverSome delivers packets until a panic ends it, and returns how many of them need not
// be delivered any more.
func (s *shard) deliverSome(pkts []inbound) (n int) {
	d := s.d
	now := d.now()
	var q *qp // its lock is held
	if d.guard != nil {
		defer func() {
			if v := recover(); v != nil {
				n++
				if q == nil {
					d.guard.Caught("received packets", v)
					return
				}
				d.guard.Caught(q.String(), v)
				q.fault()
			}
		}()
	}
	var refused *closedQP
	var forged forgery
	for ; n < len(pkts); n++ {
		in := &pkts[n]
		t, err := header.ParseTransport(in.data)
		if t.BTH == nil {
			d.drops.malformed.Add(1)
			continue
		}
		if qpn := t.BTH.DestQP(); q == nil || q.ep.qpn != qpn {
			if last := q; last != nil {
				q = nil
				last.unlock()
			}
			found := d.findQP(qpn)
			if found == nil {
				d.drops.unknownQP.Add(1)
				// Several packets at once get one answer, for the first.
				if p, at := d.findClosed(now, in, t.BTH); p != nil && p != refused {
					refused = p
					d.sendClosedNAK(p, at, at)
				}
				continue
			}
			found.mu.Lock()
			q = found
		}
		if q.closed || !q.from(in) {
			d.drops.wrongPeer.Add(1)
			continue
		}
		if !q.port.accepts(in.srcPort) {
			d.drops.wrongSource.Add(1)
			forged = forgery{qpn: q.ep.qpn, peer: q.path.dgid, port: in.srcPort, want: q.port}
			continue
		}
		if see := q.trace.Load(); see != nil {
			q.showReceived(see, &t)
		}
		if q.receive(now, &t, err) {
			q.port.proved(in.srcPort)
		}
		if n := len(s.pending); n == 0 || s.pending[n-1] != q {
			s.pending = append(s.pending, q)
		}
	}
	if last := q; last != nil {
		q = nil
		last.unlock()
	}
	d.forgeries.tell(d.log, now, &forged, d.drops.wrongSource.Load())
	return n
}

// answer lets each pending queue pair send a batch.
func (s *shard) answer() {
	if s.round != nil {
		for _, q := range s.pending {
			// A shard may receive a packet for a queue pair of another shard:
			// the kernel chooses the socket for all packets that it joins, by
			// the first.
			q.shard.round.add(q)
		}
		clear(s.pending)
		s.pending = s.pending[:0]
		return
	}
	keep := s.pending[:0]
	for _, q := range s.pending {
		q.mu.Lock()
		if q.pump(1) {
			keep = append(keep, q)
		}
	}
	clear(s.pending[len(keep):])
	s.pending = keep
}

// netdevChanged handles a report of the netdev watch.
func (d *Device) netdevChanged(c netdevChange) {
	if c.Gone {
		d.fail("netdev deleted")
		return
	}
	d.mu.Lock()
	if d.port.gone || d.closed {
		d.mu.Unlock()
		return
	}
	wasUp, mtu, gids := d.port.info.Up, d.port.activeMTU(), d.port.gids
	d.port.set(c.Info)
	isUp, newMTU, newGIDs := d.port.info.Up, d.port.activeMTU(), d.port.gids
	d.mu.Unlock()

	if wasUp != isUp {
		t := rdmaverbs.EventPortErr
		if isUp {
			t = rdmaverbs.EventPortActive
		}
		d.log.Info("port changed", "active", isUp)
		d.events.report(rdmaverbs.AsyncEvent{Type: t, Port: 1})
	}
	if mtu != newMTU {
		d.events.report(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventMTUChange, Port: 1})
	}
	if !slices.Equal(gids, newGIDs) {
		d.events.report(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventGIDChange, Port: 1})
	}
}

// wireFailed is called when the wire refused to send.
func (d *Device) wireFailed(err error) {
	d.mu.RLock()
	closed := d.closed
	d.mu.RUnlock()
	if !closed {
		d.fail(err.Error())
	}
}

// fail puts all queue pairs into the error state, because the device cannot
// send or receive any more.
func (d *Device) fail(why string) {
	d.mu.Lock()
	was := d.port.gone || d.closed
	d.port.gone = true
	d.mu.Unlock()
	if was {
		return
	}
	d.log.Error("device lost", "reason", why)
	d.events.report(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventPortErr, Port: 1})
	d.events.report(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventDeviceFatal})
	for _, q := range d.allQPs() {
		q.mu.Lock()
		if q.guarded(func() { q.ep.fail(); q.ep.rsp.stop() }) {
			q.unlock()
		}
	}
}

// Close flushes all queue pairs, stops the device's goroutines and closes its
// sockets. Objects of the device may be closed afterwards. A notify function
// must not call it.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return fmt.Errorf("softroce: device %s: %w", d.name, rdmaverbs.ErrClosed)
	}
	d.closed = true
	d.mu.Unlock()

	if d.watch != nil {
		d.watch.Close()
	}
	for _, q := range d.allQPs() {
		q.mu.Lock()
		if !q.guarded(func() { q.ep.toError() }) {
			q.mu.Lock()
		}
		for q.ep.sending {
			q.idle.Wait()
		}
		q.unlock()
	}
	d.timers.close()
	err := d.wire.close()
	d.events.report(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventDeviceFatal})
	d.events.end()
	if err != nil {
		return fmt.Errorf("softroce: close %s: %w", d.name, err)
	}
	return nil
}

var _ rdmaverbs.Device = (*Device)(nil)
