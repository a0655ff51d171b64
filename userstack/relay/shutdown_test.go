// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// A program that shuts down reading goes on writing while the peer sends.
func TestShutdownRead(t *testing.T) {
	b := newRelayBed(t, nil)
	if err := unix.Shutdown(b.fd, unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	thrownAway := func() {
		t.Helper()
		if !b.net.await(func() bool { return b.net.discards && len(b.net.in) == 0 }) {
			t.Fatal("the relay does not throw away what nobody reads")
		}
	}
	b.net.peerSends("nobody reads")
	thrownAway() // before that a close is one with data unread
	b.write("still here")
	b.peerGets("still here", false)
	b.net.peerSends("nor this")
	b.net.peerEnds()
	thrownAway()
	b.close()
	b.peerGets("still here", true)
	b.wantOver(false, false)
}

// A close that the relay sees as soon as the shutdown before it makes a reset
// where something of the peer is unread, as with TCP.
func TestShutdownReadAndClose(t *testing.T) {
	b := newRelayBed(t, func(b *relayBed) {
		if err := unix.Shutdown(b.fd, unix.SHUT_RD); err != nil {
			t.Fatal(err)
		}
		b.net.peerSends("nobody reads")
		b.close()
	})
	select {
	case <-b.ended:
	case <-time.After(testTime):
		t.Fatalf("the relay has not ended:\n%s", relayStacks())
	}
	if !b.net.await(func() bool { return b.net.closed && b.net.aborted }) {
		t.Error("no reset for the peer")
	}
}

// What a program wrote before it closed comes to the peer before the reset that
// data for the program makes of the close, as with TCP; but not for ever.
func TestLastWords(t *testing.T) {
	for _, room := range []bool{true, false} {
		b := newRelayBed(t, func(b *relayBed) {
			b.net.full = true
			b.net.peerSends("nobody reads")
			b.write("last words")
			b.close()
			if room {
				b.drainIdle = testTime
			}
		})
		if !b.net.await(b.relay.undelivered.Load) {
			t.Fatal("the relay does not see that nobody reads")
		}
		if room {
			b.net.change(func() { b.net.full = false })
			b.peerGets("last words", true)
		}
		b.wantOver(true, false)
	}
}

// A shutdown drops what the program has sent, and does not wait for the close of sockets that the
// program has sent with it.
func TestShutDownDescriptors(t *testing.T) {
	testkind.System(t)
	a, b := unixPair(t)
	rc, err := b.(*net.UnixConn).SyscallConn()
	if err == nil {
		err = rc.Control(func(fd uintptr) { socktest.SendLingering(t, int(fd), 2) })
	}
	if err != nil {
		t.Fatal(err)
	}
	s := wrap(t, a)
	done := make(chan error, 1)
	go func() { done <- s.ShutDown() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the shutdown waits for a socket that the program has sent")
	}
}
