// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/divert"
)

// The program of a client has its connection before it is decided what carries that: SMC-R or TCP (package rendezvous says why). Whoever has
// seen connect() return may ask for the connection at once, here or at the server. So what the stack lists and counts waits for
// connections that are being decided:
//
//	connection of | is being decided from                 | until
//	--------------+---------------------------------------+------------------------------
//	a client      | its program is let go                 | it is counted and listed, or
//	a server      | it answers: then the client's program | is given up
//	              | may be let go                         |
//
// One that takes longer than settleMost is waited for no more: RoCE may not pass. That of a client is listed in INIT then, as sockets
// of the kernel's SMC are.

const (
	// settleMost is how long a connection that is being decided is waited for.
	settleMost = 500 * time.Millisecond
	// settleAgain is how long nothing is waited for after one was not decided in time: who makes such connections again and again must not slow
	// down all commands of others.
	settleAgain = 2 * time.Second
)

// deciding has the connections that are being decided.
type deciding struct {
	mu    sync.Mutex
	of    map[*divert.Flow]decision
	tried time.Time // when one was not decided in time
}

type decision struct {
	since time.Time
	made  chan struct{} // closed when it is; nil: nobody waits
}

// begin notes a connection, until end.
func (d *deciding) begin(f *divert.Flow) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of[f] = decision{since: time.Now()}
}

// end does nothing for a connection that is not noted.
func (d *deciding) end(f *divert.Flow) {
	d.mu.Lock()
	made := d.of[f].made
	delete(d.of, f)
	d.mu.Unlock()
	if made != nil {
		close(made)
	}
}

// wait waits until all is decided that is being decided now and was not for long, for settleMost, or until ctx ends.
func (d *deciding) wait(ctx context.Context) {
	all := d.recent(time.Now())
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleMost)
	defer cancel()
	for _, made := range all {
		select {
		case <-made:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				d.mu.Lock()
				d.tried = time.Now()
				d.mu.Unlock()
			}
			return
		}
	}
}

// recent returns channels that are closed when what is being decided is, without what is for longer than settleMost.
func (d *deciding) recent(now time.Time) (all []chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(d.tried) < settleAgain {
		return nil
	}
	for f, x := range d.of {
		if now.Sub(x.since) >= settleMost {
			continue
		}
		if x.made == nil {
			x.made = make(chan struct{})
			d.of[f] = x
		}
		all = append(all, x.made)
	}
	return all
}

// clients returns the cookies of the sockets of clients whose connections are being decided.
func (d *deciding) clients() map[uint64]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[uint64]bool{}
	for f := range d.of {
		if f.Role == smc.Client {
			all[f.Cookie] = true
		}
	}
	return all
}

// settle waits for connections that are being decided.
func (c continued) settle(ctx context.Context) {
	if c.boundary != nil {
		c.boundary.deciding.wait(ctx)
	}
}

// Connections implements nl.Control.
func (c continued) Connections(ctx context.Context) ([]nl.Connection, error) {
	c.settle(ctx)
	return c.Control.Connections(ctx)
}

// LinkGroups implements nl.Control.
func (c continued) LinkGroups(ctx context.Context) ([]nl.LinkGroup, error) {
	c.settle(ctx)
	return c.Control.LinkGroups(ctx)
}

// Links implements nl.Control.
func (c continued) Links(ctx context.Context) ([]nl.Link, error) {
	c.settle(ctx)
	return c.Control.Links(ctx)
}

// Devices implements nl.Control.
func (c continued) Devices(ctx context.Context) ([]nl.Device, error) {
	c.settle(ctx)
	return c.Control.Devices(ctx)
}
