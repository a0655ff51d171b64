// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/internal/joined"
)

// detour gives a program one end of a new pair in place of its end of a local
// connection, as a launcher does, and returns that end.
func (b *localBed) detour(c *broker.ClientConn, former net.Conn) net.Conn {
	b.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer unix.Close(fds[1])
	rc, err := former.(*net.UnixConn).SyscallConn()
	if err != nil {
		b.t.Fatal(err)
	}
	if cerr := rc.Control(func(fd uintptr) { err = c.Detour(int(fd), fds[1]) }); cerr != nil || err != nil {
		b.t.Fatal(cerr, err)
	}
	_ = former.Close()
	app, err := fileConn(fds[0])
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = app.Close() })
	if err := app.SetDeadline(time.Now().Add(testTime)); err != nil {
		b.t.Fatal(err)
	}
	return app
}

// lingerZero has a program set SO_LINGER to 0 seconds.
func (b *localBed) lingerZero(c *broker.ClientConn, end net.Conn) {
	b.t.Helper()
	v := binary.NativeEndian.AppendUint32(nil, 1)
	if err := c.SetOption(b.t.Context(), 0, unix.SOL_SOCKET, unix.SO_LINGER, append(v, 0, 0, 0, 0)); err != nil {
		b.t.Fatal(err)
	}
	// The call of the program goes on.
	rc, err := end.(*net.UnixConn).SyscallConn()
	if err != nil {
		b.t.Fatal(err)
	}
	if cerr := rc.Control(func(fd uintptr) {
		err = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}); cerr != nil || err != nil {
		b.t.Fatal(cerr, err)
	}
}

// wantProgramReset wants a program to read ECONNRESET. If c is not nil, its launcher is asked
// before to leave a byte unread.
func wantProgramReset(t testing.TB, c *broker.ClientConn, end net.Conn) {
	t.Helper()
	if c != nil {
		next(t, c, broker.EventBroken)
		if _, err := end.Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
		if err := c.BrokenDone(); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := end.Read(make([]byte, 1)); n != 0 || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read %d bytes, %v; want ECONNRESET", n, err)
	}
}

// TestLocalReset: a client resets a local connection, in each state of both sides.
func TestLocalReset(t *testing.T) {
	for _, tt := range []struct {
		name                       string
		accepted, detour, clientIs bool
	}{
		{"before the server accepts", false, false, false},
		{"before the server accepts, on a detour", false, false, true},
		{"after the server has accepted", true, false, false},
		{"after the server has accepted, on a detour", true, false, true},
		{"during a detour of the server", true, true, false},
		{"during detours of both", true, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			b := newLocalBed(t)
			cc, _, ev := b.connect(b.launcher(os.Geteuid()))
			client := b.end(ev)
			if err := cc.Proceed(); err != nil {
				t.Fatal(err)
			}
			var sc *broker.ClientConn
			var server net.Conn
			accept := func() {
				sc = b.handOver(b.server, b.accept())
				server = b.end(next(t, sc, broker.EventLocal))
			}
			if tt.accepted {
				accept()
				exchange(t, client, server)
			}
			if tt.detour {
				server = b.detour(sc, server)
				exchange(t, client, server)
			}
			if tt.clientIs {
				client = b.detour(cc, client)
			}
			b.lingerZero(cc, client)
			_ = client.Close()
			if !tt.accepted {
				b.await("the reset was seen", func() bool {
					o := &b.s.local.holder
					o.mu.Lock()
					defer o.mu.Unlock()
					for _, h := range o.byID {
						return errors.Is(h.side[joined.Client].end.Control(func(int) error { return nil }), os.ErrClosed)
					}
					return false
				})
				accept()
			}
			if tt.detour {
				wantProgramReset(t, sc, server)
			} else {
				wantProgramReset(t, nil, server)
			}
			_ = server.Close()
			next(t, cc, broker.EventClosed)
			next(t, sc, broker.EventClosed)
			b.idle()
		})
	}
}
