// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestHandOverIdle checks that a session needs no goroutine to learn of the next stack, and that
// a launcher to which nothing can be sent does not delay the others.
func TestHandOverIdle(t *testing.T) {
	testkind.System(t)
	waiting := func() int {
		b := make([]byte, 1<<20)
		return strings.Count(string(b[:runtime.Stack(b, true)]), "tellHandedOver")
	}
	srv := &Server{Handler: &handler{}}
	var all []*session
	var stops []func()
	var launchers []*transport
	for range 20 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ss := newSession(srv, newTransport(unixConn(t, fds[0])), &Launcher{})
		all, launchers = append(all, ss), append(launchers, newTransport(unixConn(t, fds[1])))
		stops = append(stops, ss.tellHandedOver())
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d goroutines wait in %d sessions", n, len(all))
	}
	stops[0]()             // this session has ended
	all[1].t.sendMu.Lock() // a message to this launcher waits
	srv.HandOver()
	told := func(i int) {
		t.Helper()
		if m, _, err := launchers[i].receive(); err != nil || m.Type != TypeHandedOver {
			t.Errorf("launcher %d: %v, %v", i, m.Type, err)
		}
	}
	for i := range launchers[2:] {
		told(2 + i)
	}
	all[1].t.sendMu.Unlock()
	told(1)
	for _, stop := range stops[1:] {
		stop()
	}
	if err := launchers[0].c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if m, _, err := launchers[0].receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the launcher of a session that had ended: %v, %v", m.Type, err)
	}
}

// TestHandOver checks that sessions that exist, and later ones, learn of the next stack;
// that connections continue; and that the session ends with its last connection.
func TestHandOver(t *testing.T) {
	end := make(chan struct{})
	h := &handler{
		listen: func(*Descriptor) error { return nil },
		connect: func(ctx context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) {
			select {
			case <-end:
			case <-ctx.Done():
			}
			_ = c.NotCandidate("over")
		},
	}
	srv := &Server{Handler: h}
	path := serve(t, srv)
	cl := dial(t, path)
	c, err := cl.Connect(tcpSocket(t), ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-cl.HandedOver():
		t.Fatal("handed over without HandOver")
	case <-time.After(10 * time.Millisecond):
	}
	srv.HandOver()
	srv.HandOver()
	for _, cl := range []*Client{cl, dial(t, path)} {
		select {
		case <-cl.HandedOver():
		case <-time.After(30 * time.Second):
			t.Fatal("not told")
		}
		// The session works as before until Leave.
		if err := cl.Listen(t.Context(), tcpSocket(t)); err != nil {
			t.Error(err)
		}
		cl.Leave()
		_, cerr := cl.Connect(tcpSocket(t), ConnectRequest{})
		_, aerr := cl.Accept(tcpSocket(t), ConnectRequest{}.Remote, ConnectRequest{}.Remote)
		for _, err := range []error{cerr, aerr, cl.Listen(t.Context(), tcpSocket(t))} {
			if !errors.Is(err, ErrLeft) {
				t.Errorf("after Leave: %v", err)
			}
		}
	}
	if err := cl.Err(); err != nil {
		t.Errorf("ended with a connection: %v", err)
	}
	close(end)
	wantEvent(t, c, Event{Kind: EventNotCandidate, Text: "over"})
	select {
	case <-cl.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the session goes on without connections")
	}
}
