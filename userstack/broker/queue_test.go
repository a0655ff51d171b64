// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOptionsInOrder: what is read after options were passed on is what the last of
// them has set, and the failure of one stops none.
func TestOptionsInOrder(t *testing.T) {
	over := make(chan struct{})
	h := &handler{connect: func(ctx context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) {
		_ = c.Established(ctx, true)
		<-over
	}}
	cl := dial(t, serve(t, &Server{Handler: h}))
	c, err := cl.Connect(tcpSocket(t), ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
	if err := c.Proceed(); err != nil {
		t.Fatal(err)
	}
	value := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	for i := uint32(1); i <= 300; i++ {
		if err := c.PassOption(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, value(0)); err != nil { // EINVAL
			t.Fatal(err)
		}
		if err := c.PassOption(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, value(i)); err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			v, err := c.GetOption(t.Context(), 0, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 4)
			if err != nil || binary.NativeEndian.Uint32(v) != i {
				t.Fatalf("read % x, %v after %d was set", v, err, i)
			}
		}
	}
	if err := c.SetOption(t.Context(), 0, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, value(0)); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a refused option: %v", err)
	}
	close(over)
	wantEvent(t, c, Event{Kind: EventClosed})
	if err := c.PassOption(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, value(1)); err != nil {
		t.Errorf("an option of a connection that has ended: %v", err)
	}
	if err := c.SetOption(t.Context(), 0, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, value(1)); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("the same, waited for: %v", err)
	}
}
