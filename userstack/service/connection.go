// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"time"

	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/divert"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
)

// handle finds out with the peer whether a connection uses SMC-R, and begins to carry it.
func (w *boundary) handle(ctx context.Context, f *divert.Flow) {
	s := w.s
	owner := inside.Owner{UID: f.UID}
	peer, err := nearOf(f, w.loop())
	if err != nil {
		s.log.Info("connection lost", "remote", f.Tuple.Remote, "err", err)
		f.Reset()
		return
	}
	tcp := &outer{TCPConn: peer, b: w, over: make(chan struct{})}
	ctx = inside.WithOwner(ctx, owner)
	var conn *userstack.Conn
	if f.Role == smc.Client {
		conn, err = s.stack.Client(ctx, tcp)
	} else {
		conn, err = s.in.ServeUnsure(ctx, tcp)
	}
	if err != nil {
		_ = tcp.Close() // what follows is up to the Flow
	}
	var d, copied *userstack.DeclineError
	switch {
	case err == nil:
		w.tallies.count(f.Cgroup, f.Role, nil)
		w.carry(f, tcp, conn)
	case errors.As(err, &d):
		w.tallies.count(f.Cgroup, f.Role, d)
		s.log.Debug("connection stays TCP", "remote", f.Tuple.Remote, "err", err)
		s.in.StaysTCP(owner, f.Cookie, f.Role == smc.Client, err)
		if f.Role == smc.Client && lasts(d) {
			w.quiet(f, divert.Silence{For: declinedFor, Why: declinedBy(d)})
		}
		if err := f.Splice(); err != nil {
			s.log.Info("connection lost", "remote", f.Tuple.Remote, "err", err)
		}
	case f.Role == smc.Client && errors.As(s.in.NoAnswer(f.UID, f.Tuple.Remote, err), &copied):
		s.log.Info("connection made again over TCP", "remote", f.Tuple.Remote, "err", err)
		w.tallies.count(f.Cgroup, f.Role, copied)
		s.in.StaysTCP(owner, f.Cookie, true, copied)
		w.quiet(f, divert.Silence{For: s.in.Quiet(f.UID, f.Tuple.Remote), Why: copied.Code})
		f.Retry()
	default:
		s.log.Info("rendezvous failed", "remote", f.Tuple.Remote, "err", err)
		f.Reset()
	}
}

// loop returns the engine that watches connections with peers, or nil without one.
func (w *boundary) loop() *engine.Loop {
	if len(w.s.cfg.Engines) == 0 {
		return nil
	}
	return w.s.cfg.Engines[0]
}

// declinedFor is how long the connections of a user to a port are TCP from the start, after one that
// was declined: those cost a handshake and are carried.
const declinedFor = 10 * time.Second

// declinedBy is the reason of the connections that follow one that was declined. A path has two ends, and which of them found
// that nothing passes says nothing.
func declinedBy(d *userstack.DeclineError) smc.Diagnosis {
	if d.Remote && d.Code != smc.DiagNoPath || d.Code == 0 {
		return smc.DiagPeerDeclined
	}
	return d.Code
}

// lasts reports whether the next connections would be declined as well. Those that came as a link failed would not: the
// link group has another link, or is a new one.
func lasts(d *userstack.DeclineError) bool {
	return d.Code != smc.DiagNoActiveLink && d.Code != smc.DiagNoServerLink
}

// quiet has connections like that of f not announced for a time.
func (w *boundary) quiet(f *divert.Flow, s divert.Silence) {
	if err := w.d.Quiet(f.UID, f.Tuple.Remote, s); err != nil {
		w.s.log.Warn("connections to a peer are announced in vain", "remote", f.Tuple.Remote, "err", err)
	}
}
