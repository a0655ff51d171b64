// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/divert"
)

// placesEach is how soon the eBPF programs learn where SMC-R is possible when devices or addresses have changed. Providers of devices
// report no new ones, so they are asked. What commands change, they learn at once.
const placesEach = time.Second

// places has the eBPF programs know where SMC-R is possible: what they announce elsewhere would be in vain.
type places struct {
	mu     sync.Mutex // one at a time, so that what is known last counts
	failed bool
	stop   context.CancelFunc // nil: not begun
	over   sync.WaitGroup
}

// followPlaces tells the eBPF programs where SMC-R is possible, now and whenever that changes.
func (w *boundary) followPlaces() {
	w.tellPlaces()
	ctx, stop := context.WithCancel(context.Background())
	w.places.stop = stop
	w.places.over.Go(w.s.in.Guard().Func("where SMC-R is possible", func() {
		tick := time.NewTicker(placesEach)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.tellPlaces()
			}
		}
	}))
}

func (p *places) close() {
	if p.stop != nil {
		p.stop()
		p.over.Wait()
	}
}

// tellPlaces tells the eBPF programs where SMC-R is possible, and which hosts are known. If that fails, they announce what a rendezvous then
// declines.
func (w *boundary) tellPlaces() {
	if w == nil {
		return
	}
	w.places.mu.Lock()
	defer w.places.mu.Unlock()
	found, err := w.s.in.Places()
	if err == nil {
		var all []divert.Place
		for _, p := range found {
			all = append(all, divert.Place(p))
		}
		for _, a := range w.s.machine.elsewhere() {
			all = append(all, divert.Place{Prefix: netip.PrefixFrom(a, a.BitLen()), Why: smc.DiagLocal})
		}
		err = w.d.SetPlaces(all)
	}
	var known []divert.Known
	for _, k := range w.s.in.Known() {
		known = append(known, divert.Known{Host: k.Host, Origin: k.Origin})
	}
	err = errors.Join(err, w.d.SetKnown(known))
	if err != nil && !w.places.failed {
		w.s.log.Warn("connections may be announced where SMC-R is not possible, or TCP for hosts that are known", "err", err)
	}
	w.places.failed = err != nil
}

// AddPNET implements nl.Control.
func (c continued) AddPNET(ctx context.Context, p nl.PNET) error {
	defer c.boundary.tellPlaces()
	return c.Control.AddPNET(ctx, p)
}

// RemovePNET implements nl.Control.
func (c continued) RemovePNET(ctx context.Context, id string) error {
	defer c.boundary.tellPlaces()
	return c.Control.RemovePNET(ctx, id)
}

// FlushPNET implements nl.Control.
func (c continued) FlushPNET(ctx context.Context) error {
	defer c.boundary.tellPlaces()
	return c.Control.FlushPNET(ctx)
}

// AddUEID implements nl.Control.
func (c continued) AddUEID(ctx context.Context, eid string) error {
	defer c.boundary.tellPlaces()
	return c.Control.AddUEID(ctx, eid)
}

// RemoveUEID implements nl.Control.
func (c continued) RemoveUEID(ctx context.Context, eid string) error {
	defer c.boundary.tellPlaces()
	return c.Control.RemoveUEID(ctx, eid)
}

// FlushUEID implements nl.Control.
func (c continued) FlushUEID(ctx context.Context) error {
	defer c.boundary.tellPlaces()
	return c.Control.FlushUEID(ctx)
}
