// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
	"smcr/userstack/internal/rights"
)

// needEngine skips the round of tests without one.
func needEngine(t *testing.T) {
	t.Helper()
	if !withEngine {
		t.Skip("without an engine a connection has goroutines")
	}
}

// wantRides waits until no connection of either service has a goroutine.
func wantRides(t testing.TB) {
	t.Helper()
	testkind.Eventually(t, "a connection does not ride", func() (any, bool) {
		s := relayStacks()
		return s, s == ""
	})
}

// TestNoGoroutine: neither an idle connection nor one that carries plain data
// has a goroutine.
func TestNoGoroutine(t *testing.T) {
	needEngine(t)
	const conns, spare = 200, 10 // those of the runtime come and go
	c := newCarried(t, os.Geteuid())
	wantRides(t)
	before := runtime.NumGoroutine()
	type ends struct{ c, s *program }
	all := make([]ends, conns)
	for i := range all {
		c.connect(t, func(int) {}, attachEnd)
		all[i] = ends{c.cprog, c.sprog}
	}
	wantRides(t)
	count := func(what string) {
		t.Helper()
		if n := runtime.NumGoroutine(); n > before+spare {
			buf := make([]byte, 64<<10)
			t.Fatalf("%s: %d goroutines, %d before there were %d connections more:\n%s", what, n, before, conns, buf[:runtime.Stack(buf, true)])
		}
	}
	testkind.Eventually(t, "handshakes do not end", func() (any, bool) {
		n := runtime.NumGoroutine()
		return fmt.Sprintf("%d goroutines, %d before\n%s", n, before, allStacks()), n <= before+spare
	})
	count("idle")
	for range 5 {
		for i, e := range all {
			e.c.write("there")
			e.s.write("and back")
			if i%20 == 0 {
				count("under way")
			}
		}
		for _, e := range all {
			e.s.read("there")
			e.c.read("and back")
		}
		count("active")
	}
	for _, e := range all {
		e.c.close()
		e.s.close()
	}
}

// TestRide lets everything happen to a connection that rides.
func TestRide(t *testing.T) {
	needEngine(t)
	ride := func(t *testing.T) *carried {
		c := newCarried(t, os.Geteuid())
		wantRides(t)
		return c
	}
	t.Run("close", func(t *testing.T) {
		c := ride(t)
		c.cprog.write("last words")
		c.cprog.close()
		c.sprog.read("last words")
		c.sprog.wantEnd(nil)
		c.sprog.close()
		c.over(t, false)
	})
	t.Run("half close", func(t *testing.T) {
		c := ride(t)
		c.cprog.write("request")
		c.cprog.shutdown()
		c.sprog.read("request")
		c.sprog.wantEnd(nil)
		c.sprog.write("answer")
		c.sprog.shutdown()
		c.cprog.read("answer")
		c.cprog.wantEnd(nil)
		c.over(t, false)
	})
	t.Run("reset", func(t *testing.T) {
		c := ride(t)
		c.cprog.write("unread")
		c.sprog.wantUnread(6)
		c.sprog.close()
		brokenBy(t, c.cc, c.cprog)
		c.cprog.wantEnd(unix.ECONNRESET)
		c.over(t, true)
	})
	t.Run("SO_LINGER", func(t *testing.T) {
		c := ride(t)
		if err := c.cc.SetOption(t.Context(), rights.All, unix.SOL_SOCKET, unix.SO_LINGER, []byte{1, 1, 1, 1, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		c.cprog.close()
		brokenBy(t, c.sc, c.sprog)
		c.sprog.wantEnd(unix.ECONNRESET)
		c.over(t, true)
	})
	t.Run("urgent", func(t *testing.T) {
		socktest.NeedOOB(t)
		c := ride(t)
		for _, ends := range [][2]*program{{c.cprog, c.sprog}, {c.sprog, c.cprog}} {
			from, to := ends[0], ends[1]
			from.write("before")
			from.urge(" it?")
			from.write("behind")
			to.wantUrgent('?')
			to.read("before it")
			to.read("behind")
			wantRides(t)
		}
		c.cprog.close()
		c.sprog.close()
		c.over(t, false)
	})
	t.Run("shutdown for reading", func(t *testing.T) {
		c := ride(t)
		if err := unix.Shutdown(c.sprog.fd, unix.SHUT_RD); err != nil {
			t.Fatal(err)
		}
		c.cprog.write("nobody reads")
		c.sprog.write("still here")
		c.cprog.read("still here")
		c.cprog.close()
		c.sprog.close()
	})
	t.Run("launcher leaves", func(t *testing.T) {
		ride(t).launcherLeaves(t)
	})
	t.Run("launcher leaves with its program", func(t *testing.T) {
		c := ride(t)
		c.cprog.write("last words")
		c.cprog.close()
		if err := c.cl.Close(); err != nil {
			t.Fatal(err)
		}
		c.sprog.read("last words")
		c.sprog.wantEnd(nil)
		c.sprog.close()
		if ev := next(t, c.sc, broker.EventClosed); ev.Text != "" {
			t.Errorf("ended by %q", ev.Text)
		}
	})
	t.Run("service ends", func(t *testing.T) {
		c := ride(t)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.client.end()
		}()
		brokenBy(t, c.cc, c.cprog)
		c.cprog.wantEnd(unix.ECONNRESET)
		brokenBy(t, c.sc, c.sprog)
		c.sprog.wantEnd(unix.ECONNRESET)
		<-ended
	})
	t.Run("stack ends", func(t *testing.T) {
		c := ride(t)
		if err := c.client.s.stack.Close(); err != nil {
			t.Fatal(err)
		}
		brokenBy(t, c.cc, c.cprog)
		c.cprog.wantEnd(unix.ECONNRESET)
		brokenBy(t, c.sc, c.sprog)
		c.sprog.wantEnd(unix.ECONNRESET)
		c.over(t, true)
	})
}
