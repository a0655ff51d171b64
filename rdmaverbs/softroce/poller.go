// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"slices"
	"sync"

	"smcr/rdmaverbs"
)

var _ rdmaverbs.Sharded = (*pd)(nil)

// A Poller runs the packet I/O of devices on one thread, in rounds. In a round
// it first calls the functions that read packets, and at the end those that
// send. It calls one function at a time.
type Poller interface {
	// WatchReadable calls take whenever fd is readable. stop ends this; it must
	// be called before fd is closed. A call of take may still run while stop
	// returns.
	WatchReadable(fd int, take func()) (stop func(), err error)
	// AtEnd returns a function that schedules one call of send, at the end of
	// the present round or of the next. Any goroutine may call schedule.
	AtEnd(send func()) (schedule func())
	// WhenIdle returns a function that schedules one call of f, at most about
	// 100 µs later.
	WhenIdle(f func()) (schedule func())
}

// WithPoller makes p read the sockets of devices and send their packets,
// instead of goroutines. Work requests that are posted within a round are sent
// at its end, in as few system calls as possible. p must not end before the
// devices are closed.
//
// With several Pollers, each device gives all queue pairs of a protection
// domain to one of them: to each in turn, or to the one that
// [rdmaverbs.Sharded] selects. This Poller also reads the UDP packets for these
// queue pairs. The first Poller reads RoCE version 1, and packets that a device
// sends to itself.
func WithPoller(p ...Poller) Option {
	return func(c *config) { c.pollers = slices.Clone(p) }
}

// SetShard implements rdmaverbs.Sharded.
func (p *pd) SetShard(n int) { p.shard.Store(uint32(n)) }

// shard is the part of a device that one thread serves. A device has one shard
// for each Poller, and one if there is no Poller.
type shard struct {
	d       *Device
	n       int
	pending []*qp       // only the handler uses it
	round   *roundQueue // nil without a Poller
}

// makeShards makes the shards of a device.
func (d *Device) makeShards(pollers []Poller) {
	d.shards = make([]*shard, max(1, len(pollers)))
	for i := range d.shards {
		s := &shard{d: d, n: i}
		d.shards[i] = s
		if len(pollers) > 0 {
			s.round = &roundQueue{}
			s.round.schedule = pollers[i].AtEnd(s.sendRound)
			s.round.idle = pollers[i].WhenIdle(s.ackRound)
		}
	}
}

// spreader is a wire that can receive with several threads.
type spreader interface {
	// spread is called before start. Handler i gets the packets of the queue
	// pairs whose number modulo the number of handlers is i.
	spread([]handler)
}

// WithWriteOnly sends each packet of an RDMA WRITE as a separate message
// (opcode WRITE ONLY), as if it had been posted that way. All full packets then
// have the same length, so the IP stack carries more of them at once.
func WithWriteOnly() Option { return func(c *config) { c.writeOnly = true } }

// roundQueue holds the queue pairs of a shard with a Poller that have something
// to send.
//
// If only an acknowledgement is due, it waits: the program often answers at
// once, and then one packet carries both. This saves the peer a wake-up.
type roundQueue struct {
	schedule func()
	idle     func() // schedules ackRound

	acks []*qp // queue pairs whose acknowledgement waits; only the poller's thread uses it

	mu  sync.Mutex
	in  []*qp
	out []*qp // only the poller's thread uses it
}

// add makes q send at the end of the round. No lock of q is held.
func (s *roundQueue) add(q *qp) {
	s.mu.Lock()
	if !q.toSend {
		q.toSend = true
		s.in = append(s.in, q)
		if len(s.in) == 1 {
			s.schedule()
		}
	}
	s.mu.Unlock()
}

// ackMost is the largest number of packets for which an acknowledgement may
// wait.
const ackMost = 32

// holdACK delays the acknowledgement of q until the poller is idle, if q has
// nothing else to send. It reports whether it did. q.mu is held. The poller's
// thread calls it.
func (s *roundQueue) holdACK(q *qp) bool {
	if !q.ep.onlyACK(ackMost) {
		return false
	}
	if q.ackHeld {
		return true
	}
	q.ackHeld = true
	s.acks = append(s.acks, q)
	if len(s.acks) == 1 {
		s.idle()
	}
	return true
}

// ackRound sends the delayed acknowledgements.
func (s *shard) ackRound() {
	for i, q := range s.round.acks {
		q.mu.Lock()
		q.ackHeld = false
		if q.pump(1) {
			s.round.add(q)
		}
		s.round.acks[i] = nil
	}
	s.round.acks = s.round.acks[:0]
}

// take returns the queue pairs added since the last call.
func (s *roundQueue) take() []*qp {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in, s.out = s.out[:0], s.in
	for _, q := range s.out {
		q.toSend = false
	}
	return s.out
}

// sendRound sends for the queue pairs that have something to send, one batch
// for each in turn.
func (s *shard) sendRound() {
	qs := s.round.take()
	for left := len(qs); left > 0; {
		left = 0
		for i, q := range qs {
			if q == nil {
				continue
			}
			if s.sendFor(q) {
				left++
			} else {
				qs[i] = nil
			}
		}
	}
}

// sendFor sends one batch of q. It reports whether there is more to send in this round.
func (s *shard) sendFor(q *qp) (more bool) {
	q.mu.Lock()
	held := false
	if !q.guarded(func() { held = s.round.holdACK(q) }) {
		return false
	}
	if held {
		q.unlock()
		return false
	}
	return q.pump(1)
}

// deferSend leaves the sending to the end of the Poller's round. The device has a Poller.
// q.mu is held, and deferSend releases it.
func (q *qp) deferSend() {
	ready := q.ep.ready()
	q.unlock()
	if ready {
		q.shard.round.add(q)
	}
}
