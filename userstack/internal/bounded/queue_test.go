// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// inTime fails the test if f waits: SO_LINGER is an hour.
func inTime(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(testkind.Patience):
		t.Fatalf("%s waits for a socket that a user has sent", what)
	}
}

// withQueue returns connections that a listener has accepted, and the listener. Each has a message
// with sockets whose close would wait; so have connections that were not accepted.
func withQueue(t *testing.T, n int) ([]*net.UnixConn, *net.UnixListener) {
	t.Helper()
	name := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixpacket"}
	l, err := net.ListenUnix("unixpacket", name)
	if err != nil {
		t.Fatal(err)
	}
	send := func() {
		c, err := net.DialUnix("unixpacket", nil, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		rc, err := c.SyscallConn()
		if err == nil {
			err = rc.Control(func(fd uintptr) { socktest.SendLingering(t, int(fd), 2) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var all []*net.UnixConn
	for range n {
		send()
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	send()
	return all, l
}

// TestCloseQueue: the close of a connection and of a listener does not wait for what users have
// sent, and is complete at the return. A refusal does not wait either, and has few descriptors.
func TestCloseQueue(t *testing.T) {
	testkind.System(t)
	const n = 100
	all, l := withQueue(t, n)
	before := socktest.OpenFiles(t)
	inTime(t, "CloseQueue", func() {
		for _, c := range all[:n/2] {
			if err := CloseQueue(c); err != nil {
				t.Error(err)
			}
		}
	})
	if left := socktest.OpenFiles(t); left > before-n/2 {
		t.Errorf("%d descriptors after %d of %d were closed", left, n/2, before)
	}
	inTime(t, "RefuseQueue", func() {
		for _, c := range all[n/2:] {
			RefuseQueue(c)
		}
	})
	if left := socktest.OpenFiles(t); left > before-n+maxRefused {
		t.Errorf("%d descriptors of %d after all were refused", left, before)
	}
	inTime(t, "the close of a listener", func() { _ = CloseQueue(l) })
}

// TestReceive: a message with descriptors for which there is no room is received at once.
func TestReceive(t *testing.T) {
	testkind.System(t)
	all, l := withQueue(t, 1)
	defer CloseQueue(l)
	rc, err := all[0].SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	inTime(t, "Receive", func() {
		_ = rc.Control(func(fd uintptr) {
			Receive(func() {
				if _, _, flags, _, err := unix.Recvmsg(int(fd), make([]byte, 10), nil, unix.MSG_DONTWAIT); err != nil || flags&unix.MSG_CTRUNC == 0 {
					t.Errorf("flags %#x, %v", flags, err)
				}
			})
		})
	})
}
