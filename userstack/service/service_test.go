// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	_ "smcr/internal/testing/firstthread"
	"smcr/internal/testing/netnstest"
	"smcr/nl"
	"smcr/userstack"
)

// inNamespace runs f in a network namespace of its own, which ends with it.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	netnstest.Require(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		dir, err := place.Dir()
		if err != nil {
			t.Error(err)
			return
		}
		defer os.RemoveAll(dir)
		f(t)
	}()
	<-done
}

// running starts Run and returns a function that ends it, or waits for its
// end where cancel is false.
func running(t *testing.T, s *Service) (wait func(cancel bool) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	errc := make(chan error, 1)
	go func() { errc <- s.Run(ctx) }()
	return func(now bool) error {
		if now {
			cancel()
		}
		defer cancel()
		select {
		case err := <-errc:
			return err
		case <-time.After(testTime):
			return errors.New("Run does not return")
		}
	}
}

func TestOneInANamespace(t *testing.T) {
	checkLeaks(t)
	inNamespace(t, func(t *testing.T) {
		cfg := Config{}
		s, err := New(cfg)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := New(cfg); !errors.Is(err, ErrRunning) {
			t.Errorf("a second one: %v, want ErrRunning", err)
		}
		wait := running(t, s)
		// The failed one has not harmed it.
		ctx, cancel := context.WithTimeout(context.Background(), testTime)
		defer cancel()
		c, err := nl.DialUser(ctx)
		if err != nil {
			t.Error(err)
		} else {
			if info, err := c.SysInfo(ctx); err != nil {
				t.Errorf("the control socket: %+v, %v", info, err)
			}
			if groups, err := c.LinkGroups(ctx); err != nil || len(groups) != 0 {
				t.Errorf("link groups of a new stack: %v, %v", groups, err)
			}
			_ = c.Close()
		}
		if err := wait(true); err != nil {
			t.Errorf("Run: %v", err)
		}
		if _, err := nl.DialUser(ctx); err == nil {
			t.Error("somebody answers after the end")
		}
		// And the next finds the place free.
		if s, err = New(cfg); err != nil {
			t.Error(err)
			return
		}
		if err := running(t, s)(true); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// A New that fails leaves no socket behind, and gives the place back.
func TestNewFails(t *testing.T) {
	checkLeaks(t)
	inNamespace(t, func(t *testing.T) {
		if _, err := New(Config{Stack: userstack.Config{RecvBuf: -1}}); err == nil || errors.Is(err, ErrRunning) {
			t.Errorf("a buffer of -1 bytes: %v", err)
		}
		if _, err := nl.DialUser(t.Context()); !errors.Is(err, nl.ErrNoBackend) {
			t.Errorf("after a failed start: %v", err)
		}
		claim, err := place.Take()
		if err != nil {
			t.Errorf("after a failed start: %v", err)
			return
		}
		defer claim.Close()
		// As an embedded stack has it.
		l, err := claim.Listen(place.Commands)
		if err != nil {
			t.Error(err)
			return
		}
		go func() { // it answers nothing, and says so at once
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
		if _, err := New(Config{}); !errors.Is(err, ErrRunning) {
			t.Errorf("with the place taken: %v, want ErrRunning", err)
		}
		if _, err := nl.DialUser(t.Context()); errors.Is(err, nl.ErrNoBackend) {
			t.Errorf("the socket of who has the place: %v", err)
		}
	})
}

// TestIdleTick: a service that never ends by itself does not look whether it is to.
func TestIdleTick(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0: 0, -1: 0,
		1:                      10 * time.Millisecond,
		100 * time.Millisecond: 25 * time.Millisecond,
		time.Minute:            time.Second,
	} {
		if got := idleTick(timeout); got != want {
			t.Errorf("timeout %v: %v, want %v", timeout, got, want)
		}
	}
}

func TestIdleTimeout(t *testing.T) {
	const timeout = 100 * time.Millisecond
	t.Run("nobody came", func(t *testing.T) {
		checkLeaks(t)
		inNamespace(t, func(t *testing.T) {
			start := time.Now()
			s, err := New(Config{IdleTimeout: timeout})
			if err != nil {
				t.Error(err)
				return
			}
			if err := running(t, s)(false); err != nil {
				t.Errorf("Run: %v", err)
			}
			if d := time.Since(start); d < timeout {
				t.Errorf("ended after %v", d)
			}
		})
	})
	t.Run("attached", func(t *testing.T) {
		checkLeaks(t)
		inNamespace(t, func(t *testing.T) {
			s, err := New(Config{IdleTimeout: timeout})
			if err != nil {
				t.Error(err)
				return
			}
			ended := make(chan struct{})
			wait := running(t, s)
			a, err := nl.AttacherOf(s.Control())
			if err == nil {
				err = a.Attach(t.Context(), nl.Attachment{Path: "/smcr-test-none", Connect: true})
			}
			if err != nil {
				t.Error(err)
			}
			var left time.Time
			go func() {
				defer close(ended)
				if err := wait(false); err != nil {
					t.Errorf("Run: %v", err)
				}
			}()
			select {
			case <-ended:
				t.Error("it ended with a cgroup attached")
			case <-time.After(3 * timeout): // Real time: it is the timeout that must not end it.
				left = time.Now()
				if err := a.Detach(t.Context(), "/smcr-test-none"); err != nil {
					t.Error(err)
				}
			}
			<-ended
			if d := time.Since(left); d < timeout {
				t.Errorf("ended %v after the last program", d)
			}
		})
	})
}
