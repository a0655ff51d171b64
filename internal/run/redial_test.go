// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/place"
	"smcr/internal/serve"
	"smcr/userstack/broker"
	"smcr/userstack/service"

	"github.com/google/go-cmp/cmp"
)

// redialWorld replaces the dials and starts of a redialer, and its clock.
type redialWorld struct {
	clock   time.Time
	answers error // error of each dial, nil if there is a stack
	start   error // error of each start of a stack
	started []string
	log     bytes.Buffer
}

func (w *redialWorld) redialer(starts bool) *redialer {
	r := newRedialer("program", []string{"--netdev", "eth0"}, starts, slog.New(slog.NewTextHandler(&w.log, nil)))
	r.now = func() time.Time { return w.clock }
	r.dial = func(context.Context, string, ...broker.Flags) (*broker.Client, error) {
		return &broker.Client{}, w.answers
	}
	r.start = func(_ context.Context, args ...string) error {
		w.started = append(w.started, fmt.Sprintf("%d%v", w.clock.Second(), args))
		if w.start == nil || errors.Is(w.start, service.ErrRunning) {
			w.answers = nil
		}
		return w.start
	}
	return r
}

// tries calls redial each second for d seconds and returns the second in which it found a
// stack, or -1.
func (w *redialWorld) tries(r *redialer, d int) int {
	for i := range d {
		if _, err := r.redial(context.Background()); err == nil {
			return i
		}
		w.clock = w.clock.Add(time.Second)
	}
	return -1
}

func TestRedial(t *testing.T) {
	absent := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

	t.Run("waits", func(t *testing.T) {
		w := &redialWorld{clock: begin, answers: absent}
		r := w.redialer(false)
		if got := w.tries(r, 600); got >= 0 || len(w.started) > 0 || w.log.Len() > 0 {
			t.Errorf("after %d, started %v, %s", got, w.started, &w.log)
		}
		w.answers = nil
		if got := w.tries(r, 1); got != 0 {
			t.Error("does not find the stack of another one")
		}
	})
	t.Run("in a unit with ProtectHome=yes", func(t *testing.T) {
		w := &redialWorld{clock: begin, answers: fmt.Errorf("%w: stat /run/user/100: %w", place.ErrAbsent, syscall.EACCES)}
		if got := w.tries(w.redialer(false), 60); got >= 0 || w.log.Len() > 0 {
			t.Errorf("after %d, %s", got, &w.log)
		}
	})
	t.Run("starts one again", func(t *testing.T) {
		w := &redialWorld{clock: begin, answers: absent}
		r := w.redialer(true)
		if got := w.tries(r, 10); got != 1 {
			t.Errorf("found after %d s, want one after the grace of 1 s", got)
		}
		w.answers = absent
		if got := w.tries(r, 10); got != 1 {
			t.Errorf("the next time found after %d s", got)
		}
		if want := []string{"1[--netdev eth0]", "2[--netdev eth0]"}; !slices.Equal(w.started, want) {
			t.Errorf("started %q, want %q", w.started, want)
		}
	})
	t.Run("leaves it to others", func(t *testing.T) {
		w := &redialWorld{clock: begin, answers: absent}
		r := w.redialer(true)
		w.tries(r, 1)
		w.answers = nil
		if got := w.tries(r, 1); got != 0 || len(w.started) > 0 {
			t.Errorf("found %d, started %v", got, w.started)
		}
		w.answers, w.start = absent, fmt.Errorf("%w: %w", serve.ErrStart, service.ErrRunning)
		if got := w.tries(r, 3); got != 1 || w.log.Len() > 0 {
			t.Errorf("found %d, %s", got, &w.log)
		}
	})
	t.Run("cannot start one", func(t *testing.T) {
		w := &redialWorld{clock: begin, answers: absent, start: serve.ErrPrivilege}
		if got := w.tries(w.redialer(true), 60); got >= 0 {
			t.Errorf("found %d", got)
		}
		var when []string
		for _, s := range w.started {
			at, _, _ := strings.Cut(s, "[")
			when = append(when, at)
		}
		// The pauses double, because each start costs a process.
		if d := cmp.Diff([]string{"1", "3", "7", "15", "31"}, when); d != "" {
			t.Errorf("starts (-want +got):\n%s", d)
		}
		if n := strings.Count(w.log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings of one reason:\n%s", n, &w.log)
		}
	})
	t.Run("another release", func(t *testing.T) {
		w := &redialWorld{clock: begin, answers: &broker.VersionError{Launcher: 4, Stack: 5}}
		if got := w.tries(w.redialer(true), 60); got >= 0 || len(w.started) > 0 {
			t.Errorf("found %d, started %v", got, w.started)
		}
		if n := strings.Count(w.log.String(), "different releases"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, &w.log)
		}
	})
	t.Run("an untrusted owner", func(t *testing.T) {
		w := &redialWorld{clock: begin, answers: &place.UntrustedError{Path: "/run/smcr", Owner: 1000, Why: "belongs to user 1000"}}
		if got := w.tries(w.redialer(true), 60); got >= 0 || len(w.started) > 0 {
			t.Errorf("found %d, started %v", got, w.started)
		}
		if n := strings.Count(w.log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings of one reason:\n%s", n, &w.log)
		}
	})
}
