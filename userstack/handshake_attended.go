// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"smcr/smc"
	"smcr/userstack/rendezvous"
)

// A rendezvous whose TCP connection an engine watches has no goroutine while it waits for the peer: whoever brings the news goes on with
// it, which is the thread of the engine for messages. That of a subsequent contact waits for nothing else. Where another one has to wait for
// anything but the peer, or for what may take its time, a goroutine goes on, to the end:
//
//	waits for                                   | who goes on
//	--------------------------------------------+-----------------------------------------------
//	a message or the end of TCP                 | the engine that watches it
//	a deadline                                  | a timer
//	the end of the context, or of the stack     | a goroutine of package context
//	a device that is to be opened, its turn, a  | a goroutine of its own, until the rendezvous is
//	link group that is made, the outcome of LLC,| over
//	what becomes of a DECLINE, room for a       |
//	message, the program that was let go and is |
//	not known to have its connection; or no     |
//	engine watches TCP                          |

// pause is why a rendezvous does not go on.
type pause int

const (
	over      pause = iota // it has ended
	forPeer                // it waits for a message of the peer, a deadline or an end
	forOthers              // it needs a goroutine that may wait
)

// attended is the part of a handshake that knows who goes on with it.
type attended struct {
	mayWait bool // who goes on may wait
	done    func(*Conn, error)
	calls   atomic.Int64   // news that nobody has looked at yet; more than 0 while somebody does, and for ever once nobody has to
	alarm   *time.Timer    // calls resume; nil before the first wait
	at      time.Time      // when
	stops   [2]func() bool // end the watch of the contexts
}

// later stands for the answer of an action that only a goroutine that may wait can carry out.
var later rendezvous.Event = postponed{}

type postponed struct{ rendezvous.Tick }

// errLater is an error that stands for later.
var errLater = errors.New("not without waiting")

// takesTime reports whether an action may wait for others than the peer.
func takesTime(a rendezvous.Action) bool {
	switch a.(type) {
	case rendezvous.FindPath, rendezvous.AwaitTurn, rendezvous.MakeGroup, rendezvous.ConnectFirst:
		return true
	}
	return false
}

// attend begins a rendezvous, which calls done at its end: before attend returns, or later on any thread, which it must not keep.
func (s *Stack) attend(ctx context.Context, tcp TCPConn, role smc.Role, conf rendezvous.Config, done func(*Conn, error)) {
	if err := s.reg.enter(); err != nil {
		done(nil, err)
		return
	}
	h := newHandshake(ctx, s, tcp, role, conf)
	h.done, h.reader.ready = done, h.resume
	h.resume()
}

// resume has somebody look at what is new: the caller, unless somebody is at it.
func (h *handshake) resume() {
	if h.calls.Add(1) != 1 {
		return
	}
	for seen := int64(1); seen != 0; seen = h.calls.Add(-seen) {
		if h.goOn() {
			return
		}
	}
}

// goOn goes on until the rendezvous has to wait. It reports whether nothing that is new matters to others any more.
func (h *handshake) goOn() bool {
	switch p, c, err := h.run(); p {
	case over:
		h.done(c, err)
	case forOthers:
		go h.wait()
	default:
		h.watch()
		return false
	}
	return true
}

// wait goes on to the end, in a goroutine. run has a guard.
func (h *handshake) wait() {
	h.mayWait = true
	_, c, err := h.run()
	h.done(c, err)
}

// come returns an event that there is already. Without one, it says for what to wait.
func (h *handshake) come() (rendezvous.Event, pause) {
	reads := h.read()
	select {
	case r := <-reads:
		return h.wasRead(r), 0
	default:
	}
	select {
	case err := <-h.llc:
		return h.llcOutcome(err), 0
	default:
	}
	if ev := h.interrupted(); ev != nil {
		return ev, 0
	}
	if at := h.m.Deadline(); !at.IsZero() && !time.Now().Before(at) {
		return rendezvous.Tick{}, 0
	}
	if reads == nil || h.reader.of == nil || h.llc != nil || h.turn.busy != nil || h.watches() {
		return nil, forOthers
	}
	return nil, forPeer
}

// watch has resume called when the rendezvous has waited for long enough, or its context or the stack ends. The news may come before it
// returns.
func (h *handshake) watch() {
	if h.stops[0] == nil {
		for i, ctx := range []context.Context{h.ctx, h.s.ctx} {
			h.stops[i] = context.AfterFunc(ctx, h.resume) // No guard: run has one.
		}
	}
	at := h.m.Deadline()
	if now := time.Now(); !at.IsZero() && (h.alarm == nil || at.Before(h.at) || !now.Before(h.at)) {
		// An alarm that is early is set again.
		if h.at = at; h.alarm == nil {
			h.alarm = time.AfterFunc(at.Sub(now), h.resume) // No guard: run has one.
		} else {
			h.alarm.Reset(at.Sub(now))
		}
	}
}

// unwatch ends what watch has begun.
func (h *handshake) unwatch() {
	if h.alarm != nil {
		h.alarm.Stop()
	}
	for i, stop := range h.stops {
		if stop != nil {
			stop()
			h.stops[i] = nil
		}
	}
}
