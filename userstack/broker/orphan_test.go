// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOrphan: an end of a pair that the launcher has sent belongs to the service, with what the
// program wrote, whatever the launcher does then. A handler without one ends.
func TestOrphan(t *testing.T) {
	const words = "last words"
	type found struct {
		words      string
		err, ready error
		cause      error
	}
	for _, tt := range []struct {
		name   string
		unread bool // the launcher leaves messages of the service unread
		late   bool // the handler asks for the end after the launcher has gone
	}{{"in order", false, false}, {"before the handler asks", false, true}, {"messages unread", true, true}} {
		t.Run(tt.name, func(t *testing.T) {
			results, gone := make(chan found, 1), make(chan error, 1)
			asked := make(chan struct{})
			h := &handler{
				accept: func(ctx context.Context, c *Conn, _ *Descriptor) {
					var f found
					defer func() { results <- f }()
					c.awaitsPair.Store(true)
					if f.err = c.send(&Message{Type: TypeTaken}); f.err != nil {
						return
					}
					close(asked)
					if tt.late {
						<-c.LauncherGone().Done()
					}
					a, err := c.await(ctx, TypeAttach)
					if f.err = err; err != nil {
						return
					}
					defer a.d.Close()
					<-c.LauncherGone().Done()
					_, f.ready = c.Ready(ctx, ModeSMCR, "")
					f.words, f.cause = readAll(t, a.d), context.Cause(ctx)
				},
				connect: func(ctx context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) {
					gone <- c.Established(ctx, true)
				},
			}
			path := serve(t, &Server{Handler: h})
			var send func(m Message, fd int) error
			var end func() error
			if tt.unread { // the kernel then reports a reset before the last messages
				conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
				if err != nil {
					t.Fatal(err)
				}
				tr := newTransport(conn)
				send, end = func(m Message, fd int) error { return tr.send(&m, fd) }, conn.Close
				if err := send(Message{Type: TypeHello, Size: Version}, -1); err != nil {
					t.Fatal(err)
				}
			} else {
				cl := dial(t, path)
				send, end = func(m Message, fd int) error { return cl.send(&m, fd) }, cl.Close
			}
			for i, typ := range []Type{TypeConnect, TypeAccept} {
				if err := send(Message{Type: typ, Conn: uint64(i + 1)}, tcpSocket(t)); err != nil {
					t.Fatal(err)
				}
			}
			<-asked
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Write(fds[0], []byte(words)); err != nil {
				t.Fatal(err)
			}
			if err := send(Message{Type: TypeAttach, Conn: 2}, fds[1]); err != nil {
				t.Fatal(err)
			}
			_, _ = unix.Close(fds[0]), unix.Close(fds[1])
			_ = end()
			if f := <-results; f != (found{words: words}) {
				t.Errorf("%+v", f)
			}
			if err := <-gone; err == nil {
				t.Error("a connection without an end goes on")
			}
		})
	}
}

// readAll reads what the program wrote before it closed its end.
func readAll(t *testing.T, d *Descriptor) (s string) {
	_ = d.Control(func(fd int) error {
		b := make([]byte, 100)
		n, err := unix.Read(fd, b)
		if err != nil {
			t.Error(err)
		}
		s = string(b[:max(n, 0)])
		return nil
	})
	return s
}
