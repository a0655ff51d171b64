// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/rights"
)

// TestKeep: a connection that its handler keeps goes on after the handler's
// return: the handler is asked for its options, its context ends with the launcher,
// and the session waits for its end.
func TestKeep(t *testing.T) {
	type kept struct {
		c   *Conn
		ctx context.Context
		end func()
	}
	keeps := make(chan kept, 1)
	h := &handler{connect: func(ctx context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) {
		if err := c.Established(ctx, true); err != nil {
			t.Error(err)
		}
		keeps <- kept{c, ctx, c.Keep()}
	}}
	ended := make(chan struct{})
	cl := dial(t, serve(t, &Server{Handler: h, Ended: func(*Launcher) { close(ended) }}))
	connect := func() (*ClientConn, kept) {
		t.Helper()
		c, err := cl.Connect(tcpSocket(t), ConnectRequest{})
		if err != nil {
			t.Fatal(err)
		}
		wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
		if err := c.Proceed(); err != nil {
			t.Fatal(err)
		}
		return c, <-keeps
	}

	c, k := connect()
	// The handler has closed the socket by now, but it is asked.
	if _, err := c.GetOption(t.Context(), rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, 4); errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("option of a connection that is kept: %v", err)
	}
	if k.ctx.Err() != nil {
		t.Errorf("its context: %v", context.Cause(k.ctx))
	}
	k.c.SetCloseReason("enough")
	k.end()
	wantEvent(t, c, Event{Kind: EventClosed, Text: "enough"})
	if k.ctx.Err() == nil {
		t.Error("its context goes on")
	}

	_, k = connect()
	_ = cl.Close()
	<-k.ctx.Done()
	if !errors.Is(context.Cause(k.ctx), ErrLauncherGone) {
		t.Errorf("cause %v", context.Cause(k.ctx))
	}
	select {
	case <-ended:
		t.Error("the session ended before its connection")
	case <-time.After(20 * time.Millisecond):
	}
	k.end()
	<-ended
}
