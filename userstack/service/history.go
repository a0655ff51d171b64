// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"sync"

	"smcr/nl"
	"smcr/stats"
)

// A history lets counters go on when one process takes over from another: the new one
// begins with what the old one has counted, and the old one with zero.
type history struct {
	mu     sync.Mutex
	before counts // of earlier processes
	given  counts // of this process, which the next one has
}

// counts are what a stack counts.
type counts struct {
	stats     stats.Stats
	fallbacks stats.Fallbacks
}

func (c counts) add(d counts) counts {
	return counts{c.stats.Add(d.stats), c.fallbacks.Add(d.fallbacks)}
}

// receive adds what another process has counted.
func (h *history) receive(c counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = h.before.add(c)
}

// give notes that another process has all, of which this one has counted own.
func (h *history) give(own counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before, h.given = counts{}, own
}

// apply returns what the stack shows if it has counted own itself.
func (h *history) apply(own counts) counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return counts{own.stats.Sub(h.given.stats).Add(h.before.stats), own.fallbacks.Sub(h.given.fallbacks).Add(h.before.fallbacks)}
}

// A continued is the Control of a stack with the history of its counters.
type continued struct {
	nl.Control
	h        *history
	boundary *boundary // nil if the service has none
}

var _ nl.Control = continued{}

// Stats implements nl.Control.
func (c continued) Stats(ctx context.Context) (nl.Stats, error) {
	c.settle(ctx)
	own, err := c.Control.Stats(ctx)
	return c.h.apply(counts{stats: own}).stats, err
}

// Fallbacks implements nl.Control.
func (c continued) Fallbacks(ctx context.Context) (nl.Fallbacks, error) {
	c.settle(ctx)
	own, err := c.Control.Fallbacks(ctx)
	own = c.boundary.plain(own)
	return c.h.apply(counts{fallbacks: own}).fallbacks, err
}

// countsOf returns what a Control counts, and the boundary of connections that it never had, which may be nil.
func countsOf(ctx context.Context, c nl.Control, w *boundary) (own counts, err error) {
	if own.stats, err = c.Stats(ctx); err != nil {
		return own, err
	}
	own.fallbacks, err = c.Fallbacks(ctx)
	own.fallbacks = w.plain(own.fallbacks)
	return own, err
}
