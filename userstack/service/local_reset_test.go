// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
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
func (b *localBed) lingerZero(c *broker.ClientConn) {
	b.t.Helper()
	v := binary.NativeEndian.AppendUint32(nil, 1)
	if err := c.SetOption(b.t.Context(), 0, unix.SOL_SOCKET, unix.SO_LINGER, append(v, 0, 0, 0, 0)); err != nil {
		b.t.Fatal(err)
	}
}

// awaitHangUp waits until an end of the only local connection is closed.
func (b *localBed) awaitHangUp() {
	b.t.Helper()
	for end := time.Now().Add(testTime); ; time.Sleep(time.Millisecond) {
		hungUp := false
		b.s.local.mu.Lock()
		for _, f := range b.s.local.byID {
			hungUp = hungUp || f.hungUp
		}
		b.s.local.mu.Unlock()
		if hungUp {
			return
		}
		if time.Now().After(end) {
			b.t.Fatal("no end was closed")
		}
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

// TestLocalReset: a client resets a local connection, in each state of the server's side.
func TestLocalReset(t *testing.T) {
	for _, tt := range []struct {
		name             string
		accepted, detour bool
	}{
		{"before the server accepts", false, false},
		{"after the server has accepted", true, false},
		{"during a detour of the server", true, true},
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
			accept := func(reset syscall.Errno) {
				sc = b.handOver(b.server, b.accept())
				ev := next(t, sc, broker.EventLocal)
				if ev.Errno != reset {
					t.Errorf("the launcher is told of error %v, want %v", ev.Errno, reset)
				}
				server = b.end(ev)
			}
			if tt.accepted {
				accept(0)
				exchange(t, client, server)
			}
			if tt.detour {
				server = b.detour(sc, server)
				exchange(t, client, server)
			}
			client = b.detour(cc, client)
			b.lingerZero(cc)
			_ = client.Close()
			if !tt.accepted {
				b.awaitHangUp()
				accept(unix.ECONNRESET)
				wantProgramReset(t, nil, server)
			} else {
				wantProgramReset(t, sc, server)
			}
			next(t, cc, broker.EventClosed)
			next(t, sc, broker.EventClosed)
		})
	}
}
