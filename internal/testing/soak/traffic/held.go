// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// holder has the connections that stay open.
type holder struct {
	mu   sync.Mutex
	uses []*use
}

func (h *holder) add(u *use) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.uses = append(h.uses, u)
}

// take removes and returns all.
func (h *holder) take() []*use {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.uses
	h.uses = nil
	return all
}

// close closes all that are left.
func (h *holder) close() {
	for _, u := range h.take() {
		u.close()
	}
}

// newUse returns a connection that is not yet made, for commands that end by themselves.
func (c *Client) newUse(ctx context.Context, kind string) *use {
	return &use{client: c, ctx: ctx, kind: kind, counts: c.counts[kind], random: stream{seed: c.seed()}}
}

// batch makes n connections with one exchange each.
func (c *Client) batch(ctx context.Context, n, workers int) {
	each(n, workers, func(int) {
		_ = c.newUse(ctx, Batch).run((*use).short) // it has reported the error
	})
}

// hold makes connections until n are held, or until each attempt was made.
func (c *Client) hold(ctx context.Context, n, workers int) {
	c.held.mu.Lock()
	have := len(c.held.uses)
	c.held.mu.Unlock()
	each(max(0, n-have), workers, func(int) {
		u := c.newUse(ctx, Held)
		if u.open() == nil {
			u.buf = nil // thousands of them wait
			c.held.add(u)
		}
	})
}

// exchangeHeld uses each held connection once. Those that fail are closed.
func (c *Client) exchangeHeld(workers int) {
	c.useHeld(workers, func(u *use) error {
		began := time.Now()
		err := u.exchange(1 + u.below(4000))
		if err == nil {
			u.counts.trips.took(time.Since(began))
		}
		return err
	})
}

// fillHeld sends n bytes on each held connection, and has them back: more than a receive
// buffer has, so that all of its pages were written to. Those that fail are closed.
func (c *Client) fillHeld(n, workers int) {
	c.useHeld(workers, func(u *use) error {
		for left := n; left > 0; {
			some := min(left, 32<<10)
			if err := u.exchange(some); err != nil {
				return err
			}
			left -= some
		}
		return nil
	})
}

// useHeld uses each held connection. Those that fail are closed.
func (c *Client) useHeld(workers int, f func(u *use) error) {
	uses := c.held.take()
	each(len(uses), workers, func(i int) {
		u := uses[i]
		u.buf = make([]byte, 4<<10)
		err := u.failed(f(u))
		u.buf = nil
		if err != nil {
			u.close()
			return
		}
		c.held.add(u)
	})
}

// release ends each held connection in order.
func (c *Client) release(workers int) {
	uses := c.held.take()
	each(len(uses), workers, func(i int) {
		u := uses[i]
		u.buf = make([]byte, 16)
		if err := u.finish(); err != nil {
			_ = u.failed(fmt.Errorf("release: %w", err))
		}
		u.close()
	})
}

// reset resets each held connection.
func (c *Client) reset(workers int) {
	uses := c.held.take()
	each(len(uses), workers, func(i int) {
		u := uses[i]
		l, ok := u.conn.(interface{ SetLinger(sec int) error })
		if !ok {
			_ = u.failed(fmt.Errorf("%T cannot be reset", u.conn))
		} else if err := l.SetLinger(0); err != nil {
			_ = u.failed(fmt.Errorf("reset: %w", err))
		}
		u.close()
	})
}
