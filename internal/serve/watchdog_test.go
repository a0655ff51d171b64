// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"smcr/internal/sdnotify"
	"smcr/userstack/engine"
)

// TestWatchdog checks that the service manager hears of a stack only while its engine works.
func TestWatchdog(t *testing.T) {
	loop, err := engine.New(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = loop.Close() }()
	var mu sync.Mutex
	var log strings.Builder
	heard := make(chan string, 1)
	asked := make(chan error)
	w := &watchdog{
		alive: func(ctx context.Context) error {
			err := engine.Alive(ctx, loop)
			select {
			case asked <- err:
			case <-t.Context().Done():
			}
			return err
		},
		send: func(m ...string) error {
			heard <- strings.Join(m, "\n")
			return nil
		},
		every: 60 * time.Millisecond,
		log: slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return log.Write(b)
		}), nil)),
	}
	// works has the watchdog ask until the loop works.
	works := func() {
		t.Helper()
		for <-asked != nil {
		}
		if m := <-heard; m != sdnotify.Alive {
			t.Fatalf("%q", m)
		}
	}
	stop := w.start(t.Context())
	for range 3 {
		works()
	}
	stuck, release := make(chan struct{}), make(chan struct{})
	loop.Task(func() {
		close(stuck)
		<-release
	}).Schedule()
	<-stuck
	for range 3 {
		// The first answer may be from before.
		if err := <-asked; err == nil {
			<-heard
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
	select {
	case m := <-heard:
		t.Errorf("%q of a stack that does not work", m)
	default:
	}
	close(release)
	works()
	go func() {
		for range asked {
		}
	}()
	go func() {
		for range heard {
		}
	}()
	stop()
	mu.Lock()
	defer mu.Unlock()
	if text := log.String(); strings.Count(text, "does not work") != 1 || strings.Count(text, "works again") != 1 {
		t.Errorf("log:\n%s", text)
	}
	(&watchdog{}).start(t.Context())() // no service manager
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
