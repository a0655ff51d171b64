// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// TestWithdraw: a socket whose connection was not made has no mark any more when the launcher
// can use it again, whether the peer refused or the launcher left. With the mark, the next
// connection of the socket would announce SMC, and the gate would keep its data back.
func TestWithdraw(t *testing.T) {
	testkind.System(t)
	t.Run("refused", func(t *testing.T) {
		b := newServiceBed(t, host(t), nil)
		l, addr := listenTCP(t)
		_ = l.Close()
		c, err := b.launcher(0).Connect(tcpSocket(t, 0), broker.ConnectRequest{Remote: addr})
		if err != nil {
			t.Fatal(err)
		}
		if ev := next(t, c, broker.EventFailed); ev.Errno != unix.ECONNREFUSED {
			t.Errorf("%+v", ev)
		}
		if marks, unmarked := b.opt.connects.Load(), b.opt.unmarked.Load(); marks != 1 || unmarked != 1 {
			t.Errorf("marked %d times, unmarked %d times", marks, unmarked)
		}
	})
	t.Run("the session ends", func(t *testing.T) {
		b := newServiceBed(t, host(t), nil)
		cl := b.launcher(0)
		if _, err := cl.Connect(tcpSocket(t, 0), broker.ConnectRequest{Remote: noSYNAnswer(t)}); err != nil {
			t.Fatal(err)
		}
		testkind.Eventually(t, "a mark", func() (any, bool) { return b.opt.connects.Load(), b.opt.connects.Load() == 1 })
		_ = cl.Close()
		testkind.Eventually(t, "no mark", func() (any, bool) { return b.opt.unmarked.Load(), b.opt.unmarked.Load() == 1 })
	})
	t.Run("made", func(t *testing.T) {
		b := newServiceBed(t, host(t), nil)
		l, addr := listenTCP(t)
		c, err := b.launcher(0).Connect(tcpSocket(t, 0), broker.ConnectRequest{Remote: addr})
		if err != nil {
			t.Fatal(err)
		}
		accept(t, l)
		next(t, c, broker.EventEstablished)
		if unmarked := b.opt.unmarked.Load(); unmarked != 0 {
			t.Errorf("the mark of a connection was taken off %d times", unmarked)
		}
	})
}
