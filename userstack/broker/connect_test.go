// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/rights"
)

func TestConnectSMC(t *testing.T) {
	remote := netip.MustParseAddrPort("[fe80::1%7]:99")
	h := &handler{connect: func(ctx context.Context, c *Conn, _ *Descriptor, req ConnectRequest) {
		if req.Remote != remote || !req.Nonblock || c.Launcher().Command != "program" || c.Launcher().PID != os.Getpid() {
			t.Errorf("%+v from %+v", req, c.Launcher())
		}
		if err := c.Established(ctx, true); err != nil {
			t.Errorf("Established: %v", err)
		}
		end, err := c.Ready(ctx, ModeSMCR, "")
		if err != nil {
			t.Errorf("Ready: %v", err)
			return
		}
		defer end.Close()
		_ = end.Control(func(fd int) error {
			b := make([]byte, 5)
			n, err := unix.Read(fd, b)
			if string(b[:n]) != "hello" {
				t.Errorf("read %q, %v", b[:n], err)
			}
			return nil
		})
		c.SetCloseReason("link down")
		if err := c.Broken(ctx, unix.ETIMEDOUT); err != nil {
			t.Errorf("Broken: %v", err)
		}
	}}
	cl := dial(t, serve(t, &Server{Handler: h}))
	sock := tcpSocket(t)
	c, err := cl.Connect(sock, ConnectRequest{Remote: remote, Nonblock: true})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
	if err := c.SetOption(t.Context(), rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, []byte{1, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if v, err := c.GetOption(t.Context(), rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, 4); err != nil || v[0] != 1 {
		t.Fatalf("% x, %v", v, err)
	}
	if v, _ := unix.GetsockoptInt(sock, unix.IPPROTO_TCP, unix.TCP_NODELAY); v == 0 {
		t.Error("the option did not reach the socket")
	}
	if err := c.SetOption(t.Context(), rights.All, unix.IPPROTO_TCP, 9999, make([]byte, 4)); !errors.Is(err, syscall.ENOPROTOOPT) {
		t.Errorf("unknown option: %v", err)
	}
	if err := c.Proceed(); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventReady, Mode: ModeSMCR})
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	if _, err := unix.Write(pair[0], []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.Attach(pair[1]); err != nil {
		t.Fatal(err)
	}
	unix.Close(pair[1])
	wantEvent(t, c, Event{Kind: EventBroken, Errno: unix.ETIMEDOUT, Text: "link down"})
	if _, err := unix.Write(pair[0], []byte{0}); err != nil {
		t.Fatal(err)
	}
	if err := c.BrokenDone(); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventClosed, Text: "link down"})
	if _, ok := <-c.Events(); ok {
		t.Error("an event after the last")
	}
	if _, err := unix.Read(pair[0], make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the program's end: %v", err)
	}
	if _, err := c.GetOption(t.Context(), rights.All, 6, 1, 4); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("option of a connection that is over: %v", err)
	}
}

func TestConnectOtherwise(t *testing.T) {
	steps := make(chan func(ctx context.Context, c *Conn), 1)
	h := &handler{connect: func(ctx context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) { (<-steps)(ctx, c) }}
	cl := dial(t, serve(t, &Server{Handler: h}))
	connect := func(f func(ctx context.Context, c *Conn)) *ClientConn {
		steps <- f
		c, err := cl.Connect(tcpSocket(t), ConnectRequest{Remote: netip.MustParseAddrPort("192.0.2.1:1")})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Run("not a candidate", func(t *testing.T) {
		c := connect(func(_ context.Context, c *Conn) { _ = c.NotCandidate("loopback") })
		wantEvent(t, c, Event{Kind: EventNotCandidate, Text: "loopback"})
		wantEvent(t, c, Event{Kind: EventClosed})
	})
	t.Run("failed", func(t *testing.T) {
		c := connect(func(_ context.Context, c *Conn) { _ = c.Failed(unix.EHOSTUNREACH, "no route") })
		wantEvent(t, c, Event{Kind: EventFailed, Errno: unix.EHOSTUNREACH, Text: "no route"})
		wantEvent(t, c, Event{Kind: EventClosed})
	})
	t.Run("released", func(t *testing.T) {
		c := connect(func(ctx context.Context, c *Conn) {
			if err := c.Established(ctx, true); err != nil {
				t.Error(err)
			}
			if end, err := c.Ready(ctx, ModeTCP, "peer declined"); end != nil || err != nil {
				t.Errorf("%v, %v", end, err)
			}
		})
		wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
		_ = c.Proceed()
		wantEvent(t, c, Event{Kind: EventReady, Mode: ModeTCP, Text: "peer declined"})
		_ = c.Release()
		wantEvent(t, c, Event{Kind: EventClosed})
	})
	t.Run("canceled", func(t *testing.T) {
		cause := make(chan error, 1)
		c := connect(func(ctx context.Context, c *Conn) { cause <- c.Established(ctx, true) })
		wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
		_ = c.Cancel()
		if err := <-cause; !errors.Is(err, ErrCanceled) {
			t.Errorf("cause %v", err)
		}
		wantEvent(t, c, Event{Kind: EventClosed})
	})
	t.Run("wrong answer", func(t *testing.T) {
		cause := make(chan error, 1)
		c := connect(func(ctx context.Context, c *Conn) { cause <- c.Established(ctx, true) })
		_ = c.Release()
		if err := <-cause; !errors.Is(err, ErrOrder) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the launcher goes", func(t *testing.T) {
		cause := make(chan error, 1)
		c := connect(func(ctx context.Context, c *Conn) {
			_ = c.Established(ctx, false)
			<-ctx.Done()
			cause <- context.Cause(ctx)
		})
		wantEvent(t, c, Event{Kind: EventEstablished})
		_ = cl.Close()
		if err := <-cause; !errors.Is(err, ErrLauncherGone) {
			t.Errorf("cause %v", err)
		}
		if ev, ok := <-c.Events(); ok {
			t.Errorf("event %+v", ev)
		}
		if _, err := cl.Connect(tcpSocket(t), ConnectRequest{}); !errors.Is(err, ErrServiceGone) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// TestDropUrgent: the service waits until the launcher has taken the program past
// the urgent mark, and does not ask one again that did not answer.
func TestDropUrgent(t *testing.T) {
	asked, answered := make(chan error, 1), make(chan struct{})
	h := &handler{accept: func(ctx context.Context, c *Conn, _ *Descriptor) {
		end, err := c.TakeOver(ctx)
		if err != nil {
			asked <- err
			return
		}
		defer end.Close()
		for range 3 {
			asked <- c.DropUrgent(ctx)
			<-answered
		}
	}}
	c, err := dial(t, serve(t, &Server{Handler: h})).Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	defer close(answered)
	wantEvent(t, c, Event{Kind: EventTaken})
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := c.Attach(pair[1]); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventDropUrgent})
	select {
	case err := <-asked:
		t.Fatalf("did not wait for the launcher: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := c.UrgentDropped(); err != nil {
		t.Fatal(err)
	}
	if err := <-asked; err != nil {
		t.Fatal(err)
	}
	answered <- struct{}{}
	wantEvent(t, c, Event{Kind: EventDropUrgent})
	if err := <-asked; err == nil {
		t.Error("an answer that nobody gave")
	}
	if err := c.UrgentDropped(); err != nil { // late
		t.Fatal(err)
	}
	answered <- struct{}{}
	if err := <-asked; err != nil {
		t.Error(err)
	}
	answered <- struct{}{}
	wantEvent(t, c, Event{Kind: EventClosed}) // and no EventDropUrgent
}
