// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"time"

	"smcr/userstack/broker"
)

// offer asks the service about a, then delivers it.
func (l *listener) offer(n *notif, a *accepted) {
	if !l.offered(a) {
		a.unusable = !l.makeReset(a)
	}
	l.deliver(n, a)
}

// offered asks the service about a and sets a up for the answer. It returns
// false if a cannot be used.
func (l *listener) offered(a *accepted) bool {
	s := l.s
	b := s.sessions.live()
	if b == nil {
		return s.withoutService(a, false)
	}
	// A SYN-ACK never has the option if the SYN does not have it. So the
	// connection is TCP.
	if b.ByOption() && !l.saves && a.readSYN() == synWithout {
		s.leftToTCP(a.sock, false, noPeer)
		return true
	}
	cc, err := b.Accept(a.sock, localAddr(a.sock), a.remote)
	if err != nil {
		return s.withoutService(a, true)
	}
	timer := time.NewTimer(takenTimeout)
	defer timer.Stop()
	select {
	case ev, ok := <-cc.Events():
		switch {
		case !ok, ev.Kind == broker.EventClosed:
			// The service has ended or is about to, or does not know the
			// socket.
			return s.withoutService(a, true)
		case ev.Kind == broker.EventTaken:
			a.cc, a.broker = cc, b
		case ev.Kind == broker.EventLocal:
			return l.offeredLocal(a, b, cc, ev.End)
		case ev.Kind == broker.EventNotCandidate:
			s.stats.tcp(ev.Text)
			// The service may not have read from the socket, so it may not have
			// answered the peer.
			return s.plain(a, ev.Errno != 0)
		default:
			s.stats.failed("the stack refused the connection")
			return false
		}
	case <-timer.C:
		s.log.Warn("connection dropped: the stack does not answer", "remote", a.remote)
		_ = cc.Cancel()
		return false
	case <-s.ctx.Done():
		_ = cc.Cancel()
		return false
	}
	if a.pair, err = newPair(a.sock, false, false); err != nil {
		s.log.Warn("connection dropped", "remote", a.remote, "err", err)
		_ = cc.Cancel()
		return false
	}
	return true
}
