// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"smcr/internal/sdnotify"
)

// A watchdog tells the service manager that the stack works, as long as it does. If the
// messages end, the service manager ends the process, whose log then has the stacks of all
// goroutines (SIGABRT), and starts it again.
type watchdog struct {
	alive func(context.Context) error // service.Service.Alive
	send  func(...string) error       // sdnotify.Notifier.Send
	every time.Duration               // the limit of the service manager
	log   *slog.Logger
}

// start checks three times in each interval of the service manager, until stop is called.
// Without an interval it does nothing.
func (w *watchdog) start(ctx context.Context) (stop func()) {
	if w.every <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	// No guard: without its watchdog, the stack must end.
	wg.Go(func() {
		t := time.NewTicker(w.every / 3)
		defer t.Stop()
		for said := false; ; {
			said = w.check(ctx, said)
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// check asks the stack once, and tells the service manager if it works. said is whether the
// log says that it does not work; check returns the same for the next time.
func (w *watchdog) check(ctx context.Context, said bool) bool {
	ask, cancel := context.WithTimeout(ctx, w.every/2)
	defer cancel()
	err := w.alive(ask)
	switch {
	case ctx.Err() != nil:
		return said
	case err != nil && !said:
		w.log.Error("the stack does not work: the service manager ends it if this lasts", "err", err)
		return true
	case err != nil:
		return true
	case said:
		w.log.Warn("the stack works again")
	}
	if err := w.send(sdnotify.Alive); err != nil {
		w.log.Warn("watchdog", "err", err)
	}
	return false
}
