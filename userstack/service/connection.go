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

// handle finds out with the peer whether a connection uses SMC-R, and begins to carry it.
func (w *boundary) handle(ctx context.Context, f *divert.Flow) {
	s := w.s
	owner := inside.Owner{UID: f.UID, Cookie: f.Cookie}
	peer, err := nearOf(f, w.loop())
	if err != nil {
		s.log.Info("connection lost", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
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
		f.Spoke()
		w.carry(f, tcp, conn)
	case errors.As(err, &d):
		w.tallies.count(f.Cgroup, f.Role, d)
		s.log.Debug("connection stays TCP", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		s.in.StaysTCP(owner, f.Cookie, f.Role == smc.Client, err)
		if t := lasts(d); f.Role == smc.Client && t > 0 {
			w.quiet(f, divert.Silence{For: t, Why: declinedBy(d)})
		}
		if err := f.Splice(); err != nil {
			s.log.Info("connection lost", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		}
	case f.Role == smc.Client && errors.As(s.in.NoAnswer(f.UID, f.Tuple.Remote, err), &copied):
		s.log.Info("connection made again over TCP", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		w.tallies.count(f.Cgroup, f.Role, copied)
		s.in.StaysTCP(owner, f.Cookie, true, copied)
		w.quiet(f, divert.Silence{For: s.in.Quiet(f.UID, f.Tuple.Remote), Why: copied.Code})
		f.Retry()
	default:
		if f.Role == smc.Server && errors.Is(err, os.ErrDeadlineExceeded) {
			f.Silent()
		}
		s.log.Info("rendezvous failed", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
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

// How long the connections of a user to a port are TCP from the start, after one that was declined: those cost a handshake and
// are carried.
const (
	declinedFor = 10 * time.Second
	// fullFor is that time where one of the hosts had no room. Whoever took it may be another user, or another host, and may
	// be gone in the next moment.
	fullFor = time.Second
)

// declinedBy is the reason of the connections that follow one that was declined. A path has two ends, and which of them found
// that nothing passes says nothing.
func declinedBy(d *userstack.DeclineError) smc.Diagnosis {
	if d.Remote && d.Code != smc.DiagNoPath || d.Code == 0 {
		return smc.DiagPeerDeclined
	}
	return d.Code
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
