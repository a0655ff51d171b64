// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
)

// ErrLeft is the error of a new connection or listening socket on a session that
// [Client.Leave] has ended. The caller must use its session with the next stack.
var ErrLeft = errors.New("broker: another process is the stack now")

// HandOver tells the launchers, also those whose sessions begin later, that another process
// is the stack of the network namespace now. The sessions continue: a launcher ends its
// session when it has one with the other process, and no connections on this one.
func (s *Server) HandOver() {
	s.prepare()
	s.handOver()
}

// tellHandedOver tells the launcher as soon as HandOver was called. Until then, the session
// has no goroutine for this. Each launcher is told by a goroutine of its own, because one that
// does not read its messages must not delay the others. stop ends this: it must be called when
// nothing can be sent any more.
func (ss *session) tellHandedOver() (stop func()) {
	told := make(chan struct{})
	cancel := context.AfterFunc(ss.s.handedOver, func() {
		defer close(told)
		_ = ss.s.guarded("the notice of a handover", func() { ss.sendOrDrop(&Message{Type: TypeHandedOver}) })
	})
	return func() {
		if !cancel() {
			<-told
		}
	}
}

// HandedOver returns a channel that is closed when another process has become the stack of
// the network namespace. The session continues. New connections should use a session with
// the other process, see [DialStack].
func (cl *Client) HandedOver() <-chan struct{} { return cl.handedOver }

// Leave ends the session as soon as it has no connections. From now on, Connect, Accept and
// Listen fail with ErrLeft.
func (cl *Client) Leave() {
	cl.mu.Lock()
	cl.leaving = true
	idle := cl.idle()
	cl.mu.Unlock()
	if idle {
		cl.fail(ErrLeft)
	}
}

// idle reports whether a session that the launcher leaves has nothing more to do. cl.mu is
// held.
func (cl *Client) idle() bool { return cl.leaving && len(cl.conns) == 0 && len(cl.results) == 0 }

// endIfIdle ends a session that the launcher leaves.
func (cl *Client) endIfIdle() {
	cl.mu.Lock()
	idle := cl.idle()
	cl.mu.Unlock()
	if idle {
		cl.fail(ErrLeft)
	}
}
