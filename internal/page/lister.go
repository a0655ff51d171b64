// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"errors"
	"time"

	"smcr/internal/topology"
	"smcr/nl"
)

// How often the stacks are asked, whatever the number of viewers.
const (
	minAge    = time.Second      // a listing is used again for at least this time
	idleShare = 10               // … and for so many times what it took: it takes a tenth of the time at most
	maxAge    = 30 * time.Second // … and at most for this time
	listTime  = 10 * time.Second // a stack may take this time to answer
	// ratesAge is the oldest listing that rates are computed from. Older ones would hide what
	// happens now, after a time without viewers.
	ratesAge = 30 * time.Second
)

// A listed is the newest answer of all stacks.
type listed struct {
	time   time.Time
	err    error
	stacks []topology.Stack
	tables []topology.Listing // of the same stacks
	rates  []connRates        // of the same stacks
	until  time.Time          // it is used until then
}

// connRates returns what a connection moves per second, or nil if that is not known.
type connRates func(*nl.Connection) *topology.Rates

// A lister asks the stacks for all viewers.
type lister struct {
	dial   func(context.Context) (nl.Multi, error)
	netdev func(uint32) string

	turn   chan struct{} // has a value while a request uses what follows
	last   *listed
	before map[string]topology.Counters // by stack
	at     time.Time                    // of before
}

func newLister(dial func(context.Context) (nl.Multi, error), netdev func(uint32) string) *lister {
	return &lister{dial: dial, netdev: netdev, turn: make(chan struct{}, 1)}
}

// get returns a listing that is at most about a second old. The caller must not change it.
func (l *lister) get(ctx context.Context) (*listed, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-l.turn }()
	now := time.Now()
	if l.last == nil || now.After(l.last.until) {
		// Others wait for the answer too, so it does not end with this viewer.
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTime)
		defer cancel()
		next := l.list(ask, now)
		next.until = until(now, time.Now())
		l.last = next
	}
	return l.last, l.last.err
}

// until returns how long a listing is used that was made between two times.
func until(begin, end time.Time) time.Time {
	return end.Add(min(max(minAge, idleShare*end.Sub(begin)), maxAge))
}

func (l *lister) list(ctx context.Context, now time.Time) *listed {
	next := &listed{time: now}
	m, err := l.dial(ctx)
	if err != nil {
		next.err = err
		return next
	}
	defer m.Close()
	counters := make(map[string]topology.Counters)
	for _, b := range m {
		list, err := topology.Read(ctx, b.Name, b.Control)
		if errors.Is(err, context.DeadlineExceeded) {
			err = errSlow
		}
		if err != nil {
			next.err = err
			return next
		}
		var before *topology.Counters
		if c, ok := l.before[b.Name]; ok && now.Sub(l.at) <= ratesAge {
			before = &c
		}
		next.stacks = append(next.stacks, topology.Build(&list, before, l.netdev))
		next.tables = append(next.tables, list)
		next.rates = append(next.rates, topology.ConnRates(&list, before))
		counters[b.Name] = list.Counters()
	}
	l.before, l.at = counters, now
	return next
}

// errSlow is what viewers see if a stack does not answer in time.
var errSlow = errors.New("the stack has not answered in time")
