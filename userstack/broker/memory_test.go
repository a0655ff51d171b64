// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// failing makes the next calls of a transport fail with an error.
type failing struct {
	err  error
	left atomic.Int32
}

func (f *failing) next(call string) error {
	if f.left.Add(-1) < 0 {
		return nil
	}
	return os.NewSyscallError(call, f.err)
}

// into plants f into both directions of a transport that nothing uses yet.
func (f *failing) into(t *transport) {
	write, read := t.write, t.read
	t.write = func(b, oob []byte) error {
		if err := f.next("sendmsg"); err != nil {
			return err
		}
		return write(b, oob)
	}
	t.read = func() (int, int, int, error) {
		if err := f.next("recvmsg"); err != nil {
			return 0, 0, 0, err
		}
		return read()
	}
}

// TestNoMemory: the session goes on if the kernel has no memory for a message for a moment,
// in each direction, and each message arrives once.
func TestNoMemory(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOBUFS, unix.ENOMEM} {
		for _, side := range []string{"launcher", "service"} {
			t.Run(unix.ErrnoName(errno)+" "+side, func(t *testing.T) {
				ours, theirs := sessionPair(t)
				f := &failing{err: errno}
				h := &handler{accept: func(ctx context.Context, c *Conn, _ *Descriptor) {
					end, err := c.TakeOver(ctx)
					if err != nil {
						t.Errorf("TakeOver: %v", err)
						return
					}
					defer end.Close()
					if _, err := c.Ready(ctx, ModeTCP, "no RNIC"); err != nil {
						t.Errorf("Ready: %v", err)
					}
				}}
				srv := &Server{Handler: h}
				st, ct := newTransport(theirs), newTransport(ours)
				if side == "service" {
					f.into(st)
				} else {
					f.into(ct)
				}
				ss := newSession(srv, st, &Launcher{PID: os.Getpid(), UID: uint32(os.Geteuid())})
				over := make(chan error, 1)
				go func() { over <- ss.run(t.Context()) }()
				cl := newClient(ct)
				cl.start()
				for range 3 { // each time at other messages
					f.left.Add(3)
					c, err := cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{})
					if err != nil {
						t.Fatal(err)
					}
					wantEvent(t, c, Event{Kind: EventTaken})
					f.left.Store(2)
					if err := c.Attach(endOfPair(t)); err != nil {
						t.Fatal(err)
					}
					wantEvent(t, c, Event{Kind: EventReady, Mode: ModeTCP, Text: "no RNIC"})
					wantEvent(t, c, Event{Kind: EventClosed})
				}
				if err := cl.Err(); err != nil {
					t.Errorf("the session has ended: %v", err)
				}
				if err := cl.Close(); err != nil {
					t.Error(err)
				}
				if err := <-over; err != nil {
					t.Errorf("the service: %v", err)
				}
			})
		}
	}
}

// TestNoMemoryForLong: if the kernel has no memory for a message for too long, the session
// ends with an error that says so.
func TestNoMemoryForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &transport{write: func([]byte, []byte) error { return os.NewSyscallError("sendmsg", unix.ENOBUFS) }}
		begin := time.Now()
		err := tr.send(&Message{Type: TypeHandedOver}, -1)
		if !errors.Is(err, ErrNoMemory) || !errors.Is(err, unix.ENOBUFS) {
			t.Errorf("send: %v", err)
		}
		if d := time.Since(begin); d != memoryTimeout {
			t.Errorf("gave up after %v, want %v", d, memoryTimeout)
		}
		tr.read = func() (int, int, int, error) { return 0, 0, 0, os.NewSyscallError("recvmsg", unix.ENOMEM) }
		if _, _, err := tr.receive(); !errors.Is(err, ErrNoMemory) || !errors.Is(err, unix.ENOMEM) {
			t.Errorf("receive: %v", err)
		}
		tr.write = func([]byte, []byte) error { return os.NewSyscallError("sendmsg", unix.EPIPE) }
		if err := tr.send(&Message{Type: TypeHandedOver}, -1); errors.Is(err, ErrNoMemory) || !errors.Is(err, unix.EPIPE) {
			t.Errorf("send to a process that has ended: %v", err)
		}
	})
}
