// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"sync"

	"smcr/rdmaverbs"
)

// cq is a completion queue. Its ring has room for the requested depth and for
// one completion of each work request of the attached queue pairs, so no
// completion is lost even if the queue overruns.
type cq struct {
	dev    *Device
	notify func()

	mu     sync.Mutex
	closed bool
	ring   []rdmaverbs.WC
	head   int // index of the oldest
	n      int // completions queued
	depth  int // as requested
	need   int // work requests the attached queue pairs can have outstanding
	qps    int
}

func newCQ(dev *Device, depth int, notify func()) *cq {
	return &cq{dev: dev, notify: notify, depth: depth, ring: make([]rdmaverbs.WC, depth)}
}

// attach reserves room for the n work requests of one queue.
func (c *cq) attach(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("softroce: completion queue: %w", rdmaverbs.ErrClosed)
	}
	c.qps++
	c.need += n
	c.grow(max(c.depth, c.need) + c.need)
	return nil
}

func (c *cq) detach(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qps--
	c.need -= n
}

func (c *cq) grow(size int) {
	if size <= len(c.ring) {
		return
	}
	ring := make([]rdmaverbs.WC, size)
	for i := range c.n {
		ring[i] = c.ring[(c.head+i)%len(c.ring)]
	}
	c.ring, c.head = ring, 0
}

// push adds a completion. wake reports that the queue was empty, so notify must
// be called. overrun reports that there are more completions than the depth and
// the attached queues allow, because the consumer does not poll.
func (c *cq) push(wc rdmaverbs.WC) (wake, overrun bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false, false
	}
	if c.n == len(c.ring) {
		c.grow(2 * c.n)
	}
	i := c.head + c.n
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	c.ring[i] = wc
	c.n++
	return c.n == 1, c.n > max(c.depth, c.need)
}

// Poll takes up to len(wc) completions, oldest first.
func (c *cq) Poll(wc []rdmaverbs.WC) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(wc), c.n)
	for i := range n {
		wc[i] = c.ring[c.head]
		if c.head++; c.head == len(c.ring) {
			c.head = 0
		}
	}
	c.n -= n
	return n
}

// Close frees the queue. It discards completions that were not polled. It fails
// with rdmaverbs.ErrBusy while a queue pair uses the queue, and with
// rdmaverbs.ErrClosed if it is closed.
func (c *cq) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return fmt.Errorf("softroce: completion queue: %w", rdmaverbs.ErrClosed)
	case c.qps > 0:
		return fmt.Errorf("softroce: completion queue serves %d queues: close their queue pairs first: %w", c.qps, rdmaverbs.ErrBusy)
	}
	c.closed = true
	c.ring, c.n, c.head = nil, 0, 0

	return nil
}
