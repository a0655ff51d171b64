// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDescriptorKinds passes descriptors of all kinds as the end of a pair. The handler gets none
// of them. What can be no end ends the session, and what could be one ends the connection.
func TestDescriptorKinds(t *testing.T) {
	for i, make := range descriptorKinds {
		h := &handler{accept: func(ctx context.Context, c *Conn, _ *Descriptor) {
			if end, err := c.TakeOver(ctx); err == nil {
				_ = end.Close()
				t.Errorf("kind %d: the handler got it", i)
			}
		}}
		cl := dial(t, serve(t, &Server{Handler: h}))
		rc, err := cl.t.c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		fd := -1
		if err := rc.Control(func(own uintptr) { fd = make(int(own)) }); err != nil || fd < 0 {
			continue
		}
		if family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && family == unix.AF_UNIX {
			if typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && typ == unix.SOCK_STREAM {
				_ = unix.Close(fd) // an end of a pair
				continue
			}
		}
		c, err := cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		wantEvent(t, c, Event{Kind: EventTaken})
		err = c.Attach(fd)
		_ = unix.Close(fd)
		if err != nil {
			continue // the kernel passes none
		}
		select {
		case ev, ok := <-c.Events():
			if ok && (ev.Kind != EventClosed || ev.Errno == 0) {
				t.Errorf("kind %d: %+v", i, ev)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("kind %d: nothing ends", i)
		}
	}
}
