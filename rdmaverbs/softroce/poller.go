// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"slices"
	"sync"

	"smcr/rdmaverbs"
)

var _ rdmaverbs.Sharded = (*pd)(nil)

// A Poller runs the packet I/O of devices on one thread, in rounds: it reads
// what has arrived, has others act on it, and then has the devices send. Its
// functions are called one at a time.
type Poller interface {
	// WatchReadable calls take while fd is readable. The function that it
	// returns ends that, while fd is still open; a call may be under way then.
	WatchReadable(fd int, take func()) (stop func(), err error)
	// AtEnd returns a function that has send called once, at the end of the
	// present round or the next. Any goroutine may call it.
	AtEnd(send func()) (schedule func())
	// WhenIdle returns a function that has f called once, at the latest some
	// 100 µs later.
	WhenIdle(f func()) (schedule func())
}

// WithPoller has the sockets of devices read, and their packets sent, by p
// instead of by goroutines. What is posted within a round leaves in as few
// system calls as possible at its end. p must outlive the devices.
//
// With several, each device gives the queue pairs of a protection domain to one
// of them: the next one, or that of [rdmaverbs.Sharded]. What arrives over UDP for these
// is read by this one; RoCE version 1, and what a device sends to itself, is read
// by the first.
func WithPoller(p ...Poller) Option {
	return func(c *config) { c.pollers = slices.Clone(p) }
}

// SetShard implements rdmaverbs.Sharded.
func (p *pd) SetShard(n int) { p.shard.Store(uint32(n)) }

// shard is what one thread serves of a device. Without Pollers, or with one,
// there is one.
type shard struct {
	d       *Device
	n       int
	pending []*qp      // used by the handler alone
	sendq   *sendQueue // nil without a Poller
}

// makeShards makes the shards of a device.
func (d *Device) makeShards(pollers []Poller) {
	d.shards = make([]*shard, max(1, len(pollers)))
	for i := range d.shards {
		s := &shard{d: d, n: i}
		d.shards[i] = s
		if len(pollers) > 0 {
			s.sendq = &sendQueue{}
			s.sendq.schedule = pollers[i].AtEnd(s.sendRound)
			s.sendq.idle = pollers[i].WhenIdle(s.ackRound)
		}
	}
}

// spreader is a wire that receives with several threads.
type spreader interface {
	// spread is called before start, with the handlers for queue pairs whose
	// number modulo that of handlers is their index.
	spread([]handler)
}

// WithWriteOnly has each packet of an RDMA WRITE sent as a message of its own
// (opcode WRITE ONLY), as if it had been posted so. All full packets are then of
// one length, which lets the IP stack carry more of them at once.
func WithWriteOnly() Option { return func(c *config) { c.writeOnly = true } }

// sendQueue holds the queue pairs of a shard with a Poller that have something
// to send.
//
// An acknowledgement alone waits for company: the peer's program often answers
// at once, and a packet less is a wake-up less at the peer.
type sendQueue struct {
	schedule func()
	idle     func() // schedules ackRound

	acks []*qp // with an acknowledgement that waits; used by the poller's thread alone

	mu  sync.Mutex
	in  []*qp
	out []*qp // used by the poller's thread alone
}

// add has q send at the end of the round. No lock of q is held.
func (s *sendQueue) add(q *qp) {
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

// ackMost is how many packets one acknowledgement that waits is for, at most.
const ackMost = 32

// hold leaves the acknowledgement of q, if it has nothing else to send, until
// the poller is idle. q.mu is held. It runs in the poller.
func (s *sendQueue) hold(q *qp) bool {
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

// ackRound sends the acknowledgements that wait.
func (s *shard) ackRound() {
	for i, q := range s.sendq.acks {
		q.mu.Lock()
		q.ackHeld = false
		if q.pump(1) {
			s.sendq.add(q)
		}
		s.sendq.acks[i] = nil
	}
	s.sendq.acks = s.sendq.acks[:0]
}

// take returns the queue pairs added since the last call.
func (s *sendQueue) take() []*qp {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in, s.out = s.out[:0], s.in
	for _, q := range s.out {
		q.toSend = false
	}
	return s.out
}

// sendRound lets each queue pair that has something to send do so, a batch at a
// time in turns.
func (s *shard) sendRound() {
	qs := s.sendq.take()
	for left := len(qs); left > 0; {
		left = 0
		for i, q := range qs {
			if q == nil {
				continue
			}
			q.mu.Lock()
			if s.sendq.hold(q) {
				q.unlock()
				qs[i] = nil
				continue
			}
			if q.pump(1) {
				left++
			} else {
				qs[i] = nil
			}
		}
	}
}

// later leaves the sending to the end of the poller's round, if the device has
// one. q.mu is held, and dropped if so.
func (q *qp) later() bool {
	if q.shard.sendq == nil {
		return false
	}
	q.ep.settle()
	ready := q.ep.ready()
	q.unlock()
	if ready {
		q.shard.sendq.add(q)
	}
	return true
}
