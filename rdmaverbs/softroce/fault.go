// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"

	"smcr/guard"
	"smcr/rdmaverbs"
)

// A panic is a bug, and packets of a peer may cause it. It must not end the process, which
// has other queue pairs and other devices:
//
//	panic                                   | what ends
//	----------------------------------------+------------------------------------------
//	in the endpoint of a queue pair, or     | the queue pair: it enters the error state,
//	while its packets are sent              | and the device reports EventQPFatal
//	while received packets are parsed       | nothing; the packets are dropped
//	in the report of a change of the netdev | nothing; the change is not reported
//
// So each function that uses an endpoint calls it within [qp.guarded]. A lock that is
// released without a defer is never held around other code that could panic.

// SetGuard makes g handle the panics in devices that are opened from now on. Without a
// guard, a panic ends the process. SetGuard must not be called at the same time as Open.
func (p *Provider) SetGuard(g *guard.Guard) { p.c.guard = g }

// guarded calls f, which uses the endpoint of q. q.mu is held. If f panics, guarded puts the
// queue pair into the error state, releases q.mu and returns false.
func (q *qp) guarded(f func()) (ok bool) {
	g := q.dev.guard
	if g == nil {
		f()
		return true
	}
	defer func() {
		if v := recover(); v != nil {
			g.Caught(q.String(), v)
			q.fault()
		}
	}()
	f()
	return true
}

// fault puts q into the error state after a panic, and releases q.mu. A second panic, for the
// same reason, is not reported.
func (q *qp) fault() {
	if (*guard.Guard)(nil).Do("", func() { q.ep.fail(); q.ep.rsp.stop() }) != nil {
		q.ep.abandon()
	}
	q.unlock()
}

// String names the queue pair in the log.
func (q *qp) String() string { return fmt.Sprintf("queue pair %d of device %s", q.ep.qpn, q.dev.name) }

// abandon enters the error state without a completion for the work requests, whose state is
// not known.
func (e *endpoint) abandon() {
	e.state, e.fatal = rdmaverbs.QPSErr, true
	clear(e.req.sq.ring)
	e.req.sq = sendQueue{ring: e.req.sq.ring}
	e.req.probe.due = false
	clear(e.rq.ring)
	e.rq = recvQueue{ring: e.rq.ring}
	e.rsp.stop()
}

// send sends packets of q. q.mu is not held. After a panic the error is a *guard.Error.
func (q *qp) send(pkts []packet) (err error) {
	g := q.dev.guard
	if see := q.trace.Load(); see != nil {
		q.dev.guarded("a trace", func() { q.showSent(see, pkts) })
	}
	if g == nil {
		return q.dev.wire.send(&q.path, pkts)
	}
	defer func() {
		if v := recover(); v != nil {
			err = g.Caught(q.String(), v)
		}
	}()
	return q.dev.wire.send(&q.path, pkts)
}

// guarded calls f. A panic in f is logged and has no other effect.
func (d *Device) guarded(what string, f func()) {
	if d.guard == nil {
		f()
		return
	}
	_ = d.guard.Do(what, f)
}

// guardReader returns a function that calls take, which reads packets. After a panic in
// take, the function calls drop, which forgets the packets that take has read, and reports
// that there may be more. With a nil g it returns take.
func guardReader(g *guard.Guard, take func() bool, drop func()) func() (more bool) {
	if g == nil {
		return take
	}
	return func() (more bool) {
		defer func() {
			if v := recover(); v != nil {
				g.Caught("received packets", v)
				drop()
				more = true
			}
		}()
		return take()
	}
}
