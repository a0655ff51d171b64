// SPDX-License-Identifier: Apache-2.0

package softroce

import "smcr/rdmaverbs"

// sendQueue is the send queue of a queue pair: a ring of work requests. From its
// head it has first the requests that are acknowledged but not completed, because
// a batch is still being sent, then those with packets outstanding, then those
// not sent.
type sendQueue struct {
	ring []wqe
	head int
	n    int
	done int // requests that are acknowledged but not completed
	cur  int // index of the request that has the next PSN to send; n if there is none
	end  psn // the first PSN of the next work request
}

// at returns the request at index i from the head.
func (q *sendQueue) at(i int) *wqe {
	if i += q.head; i >= len(q.ring) {
		i -= len(q.ring)
	}
	return &q.ring[i]
}

// oldest returns the oldest request that is not acknowledged.
func (q *sendQueue) oldest() *wqe { return q.at(q.done) }

// full reports whether there is no room for another request.
func (q *sendQueue) full() bool { return q.n == len(q.ring) }

// slot reserves the next slot of the queue, which must not be full. The caller
// fills it in and calls push.
func (q *sendQueue) slot() *wqe {
	w := q.at(q.n)
	*w = wqe{inline: w.inline[:0]}
	return w
}

// push assigns PSNs to the request in the slot and adds it to the queue.
func (q *sendQueue) push(w *wqe, mtu int) {
	w.first = q.end
	w.npkts = packets(w.length, mtu)
	if w.bad != rdmaverbs.StatusSuccess {
		w.npkts = 0
	}
	q.end = w.end()
	q.n++
}

// packets returns how many packets a message of n bytes takes.
func packets(n, mtu int) int { return max((n+mtu-1)/mtu, 1) }

// pop removes the request at the head.
func (q *sendQueue) pop() {
	w := q.at(0)
	*w = wqe{inline: w.inline[:0]}
	if q.head++; q.head == len(q.ring) {
		q.head = 0
	}
	q.n--
	q.done = max(q.done-1, 0)
	q.cur = max(q.cur-1, 0)
}
