// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"smcr/guard"
)

// TestHandlerPanic: a panic in a handler ends one connection, or is the answer of
// one request; the session and its other connections go on.
func TestHandlerPanic(t *testing.T) {
	var panics atomic.Int32
	var bad atomic.Bool
	bad.Store(true)
	h := &handler{
		listen:  func(*Descriptor) error { panic("planted") },
		connect: func(context.Context, *Conn, *Descriptor, ConnectRequest) { panic("planted") },
		accept: func(_ context.Context, c *Conn, _ *Descriptor) {
			if bad.Load() {
				panic("planted")
			}
			_ = c.NotCandidate("fine")
		},
	}
	cl := dial(t, serve(t, &Server{Handler: h, Guard: &guard.Guard{Count: func() { panics.Add(1) }}}))
	if err := cl.Listen(t.Context(), tcpSocket(t)); !errors.Is(err, syscall.EIO) {
		t.Errorf("listen: %v, want EIO", err)
	}
	over := Event{Kind: EventClosed, Text: "internal error of the stack"}
	c, err := cl.Connect(tcpSocket(t), ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, over)
	if c, err = cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, over)
	bad.Store(false)
	if c, err = cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventNotCandidate, Text: "fine"})
	if n := panics.Load(); n != 3 {
		t.Errorf("%d panics counted, want 3", n)
	}
}
