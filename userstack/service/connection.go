// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"os"
	"time"

	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/divert"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
)

// handle finds out with the peer whether a connection uses SMC-R, and begins to carry it. It does not wait for the peer, and calls handled
// at the end.
func (w *boundary) handle(ctx context.Context, f *divert.Flow, handled func()) {
	s := w.s
	peer, err := nearOf(f, w.loop(f))
	if err != nil {
		s.log.Info("connection lost", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		f.Reset()
		handled()
		return
	}
	tcp := &outer{TCPConn: peer, b: w, f: f}
	ctx = inside.WithOwner(ctx, inside.Owner{UID: f.UID, Cookie: f.Cookie})
	s.in.Agree(ctx, f.Role, tcp, func(conn *userstack.Conn, err error) {
		if err == nil {
			w.guarded(f, handled, func() { w.agreed(f, tcp, conn) })
			return
		}
		_ = tcp.Close() // what follows is up to the Flow
		go w.guarded(f, handled, func() { w.disagreed(f, err) })
	})
}

// guarded calls do, which takes care of a Flow unless it panics, and then handled. What carries it is decided then.
func (w *boundary) guarded(f *divert.Flow, handled, do func()) {
	defer handled()
	defer w.deciding.end(f)
	if w.s.in.Guard().Do("a connection", do) != nil {
		f.Reset()
	}
}

// agreed begins to carry a connection over SMC-R. It waits for nothing, because it may be called by an engine.
func (w *boundary) agreed(f *divert.Flow, tcp *outer, conn *userstack.Conn) {
	w.tallies.count(f.Cgroup, f.Role, nil)
	f.Spoke()
	w.carry(f, tcp, conn)
}

// disagreed does what follows from the error of a rendezvous. It returns when the stack has nothing more to do with the connection.
func (w *boundary) disagreed(f *divert.Flow, err error) {
	s, owner := w.s, inside.Owner{UID: f.UID, Cookie: f.Cookie}
	var d, copied *userstack.DeclineError
	switch {
	case errors.As(err, &d):
		w.tallies.count(f.Cgroup, f.Role, d)
		s.log.Debug("connection stays TCP", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		s.in.StaysTCP(owner, f.Cookie, f.Role == smc.Client, err)
		if t := lasts(d); f.Role == smc.Client && t > 0 {
			s := declinedBy(d)
			s.For = t
			w.quiet(f, s)
		}
		w.deciding.end(f)
		if err := f.Splice(); err != nil {
			s.log.Info("connection lost", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		}
	case f.Role == smc.Client && errors.As(s.in.NoAnswer(f.UID, f.Tuple.Remote, err), &copied):
		s.log.Info("connection made again over TCP", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		w.tallies.count(f.Cgroup, f.Role, copied)
		s.in.StaysTCP(owner, f.Cookie, true, copied)
		w.quiet(f, divert.Silence{For: s.in.Quiet(f.UID, f.Tuple.Remote), Why: copied.Code})
		f.Retry()
	case errors.Is(err, userstack.ErrNotLetGo):
		s.log.Info("connection made again over TCP", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		f.Retry()
	default:
		if f.Role == smc.Server && errors.Is(err, os.ErrDeadlineExceeded) {
			f.Silent()
		}
		s.log.Info("rendezvous failed", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		f.Reset()
	}
}

// loop returns the engine that watches the connection of a Flow with the peer, and agrees with that; or nil without one.
func (w *boundary) loop(f *divert.Flow) *engine.Loop {
	n := len(w.s.cfg.Engines)
	if n == 0 {
		return nil
	}
	return w.s.cfg.Engines[int(f.Tuple.Local.Port()^f.Tuple.Remote.Port())%n]
}

// How long the connections of a user to a port are TCP from the start, after one that was declined: those cost a handshake and
// are carried.
const (
	declinedFor = 10 * time.Second
	// fullFor is that time where one of the hosts had no room. Whoever took it may be another user, or another host, and may
	// be gone in the next moment.
	fullFor = time.Second
)

// declinedBy has the reasons of the connections that follow one that was declined. A path has two ends, and which of them found
// that nothing passes says nothing.
func declinedBy(d *userstack.DeclineError) divert.Silence {
	if d.Remote && d.Code != smc.DiagNoPath || d.Code == 0 {
		return divert.Silence{Why: smc.DiagPeerDeclined, PeerWhy: d.Code}
	}
	return divert.Silence{Why: d.Code}
}

// lasts returns for how long the next connections would be declined as well, as far as one that was declined can tell.
//
//	reason                        | how long
//	------------------------------+------------------------------------------------------------------
//	a link failed                 | not at all: the link group has another link, or is a new one
//	the link group is gone        | not at all: the next connection makes one
//	no room                       | fullFor
//	any other                     | declinedFor
func lasts(d *userstack.DeclineError) time.Duration {
	switch d.Code {
	case smc.DiagNoActiveLink, smc.DiagNoServerLink, smc.DiagSync:
		return 0
	case smc.DiagMem:
		return fullFor
	}
	return declinedFor
}

// quiet has connections like that of f not announced for a time.
func (w *boundary) quiet(f *divert.Flow, s divert.Silence) {
	if err := w.d.Quiet(f.UID, f.Tuple.Remote, s); err != nil {
		w.s.log.Warn("connections to a peer are announced in vain", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
	}
}
