// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/userstack/broker"
)

const (
	attackerUID = 23456
	// lockedThreads is how many threads one user may block, and what the Go runtime needs.
	lockedThreads = 64 + spareThreads
)

// lockedSocket returns a connected socket whose lock a system call of its program holds.
func lockedSocket(t *testing.T) (fd int, release func()) {
	t.Helper()
	c, _ := socktest.TCPPair(t)
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd()), socktest.Hold(t, int(f.Fd()))
}

// promptly wants f to be done soon.
func promptly(t *testing.T, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(testTime):
		t.Errorf("%s waits", what)
	}
}

// TestLockedSocket: a socket whose lock is held, named in each kind of message of many sessions,
// blocks few threads, and nobody else waits.
func TestLockedSocket(t *testing.T) {
	checkLeaks(t)
	const sessions, each = 12, 64
	remote := netip.MustParseAddrPort("10.0.0.9:80")
	for _, how := range []string{"listen", "connect", "accept"} {
		t.Run(how, func(t *testing.T) {
			b := newServiceBed(t, host(t), nil)
			other := b.launcher(attackerUID + 1)
			locked, release := lockedSocket(t)
			before := threads(t)
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			defer wg.Wait()
			defer release()
			defer cancel()
			for range sessions {
				cl := b.launcher(attackerUID)
				for range each {
					wg.Go(func() {
						var c *broker.ClientConn
						var err error
						switch how {
						case "listen":
							err = cl.Listen(ctx, locked)
						case "connect":
							c, err = cl.Connect(locked, broker.ConnectRequest{Remote: remote})
						case "accept":
							c, err = cl.Accept(locked, remote, remote)
						}
						if err == nil && c != nil {
							<-c.Events()
						}
					})
				}
			}
			// Real time: those that get no place wait for one before they are refused, and none of
			// them takes a thread meanwhile.
			time.Sleep(2 * time.Second)
			if n := threads(t); n > before+lockedThreads {
				t.Errorf("%d threads, %d before", n, before)
			}
			promptly(t, "a listening socket of another user", func() error {
				l := tcpSocket(t, 0)
				if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
					return err
				}
				return other.Listen(t.Context(), l)
			})
		})
	}
}

// TestLockedClient: programs connect to the port of another user's server, and keep the locks of
// their sockets. The connections of others to this server go on.
func TestLockedClient(t *testing.T) {
	checkLeaks(t)
	b := newLocalBed(t)
	evil := b.launcher(attackerUID)
	for range 5 {
		_, fd, ev := b.connect(evil)
		b.end(ev)
		defer socktest.Hold(t, fd)()
		b.accept() // its server has not asked yet
	}
	client := b.launcher(os.Geteuid())
	for range 3 {
		promptly(t, "a connection of others", func() error {
			cc, _, ev := b.connect(client)
			p := b.end(ev)
			if err := cc.Proceed(); err != nil {
				return err
			}
			sc := b.handOver(b.server, b.accept())
			exchange(t, p, b.end(next(t, sc, broker.EventLocal)))
			return nil
		})
	}
}
