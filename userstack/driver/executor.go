// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"time"

	"smcr/rdmaverbs"
	"smcr/userstack/engine"
	"smcr/userstack/linkgroup"
)

// executor is the part of a link group that carries out what the protocol core wants:
// actions, releases and the timer. The group's lock guards it. The fields acts and wrs are an
// exception: while running is set, only the goroutine that carries out actions uses them, and
// it does so without the lock.
type executor struct {
	running bool               // a goroutine carries out actions
	acts    []linkgroup.Action // reused
	later   []func()           // releases, carried out after the actions queued before them
	late    *engine.Task       // carries out actions at the end of a round of the engine
	timer   *time.Timer
	armed   time.Time // when timer fires; zero if it is stopped

	// Memory that is reused from call to call.
	wrs []rdmaverbs.SendWR  // for posting
	wc  [32]rdmaverbs.WC    // for polling
	rwr [1]rdmaverbs.RecvWR // for a message whose memory is free again
	wc2 [8]rdmaverbs.WC     // for the rest of a link that is closed
}

// after makes f run without the group's lock, after the actions that are queued now.
func (x *executor) after(f func()) { x.later = append(x.later, f) }

// takeLater returns the queued releases and empties the queue.
func (x *executor) takeLater() []func() {
	later := x.later
	x.later = nil
	return later
}

// arm sets the timer to d, unless it fires earlier already. An early timer only costs a
// check, so the timer is never set to a later time.
func (x *executor) arm(d time.Time) {
	if !x.armed.IsZero() && !d.Before(x.armed) {
		return
	}
	x.armed = d
	x.timer.Reset(max(0, time.Until(d)))
}

// forget drops actions that will not be carried out.
func (x *executor) forget() { x.acts = nil }
