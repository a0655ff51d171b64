// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"smcr/internal/serve"
	"smcr/userstack/broker"
	"smcr/userstack/launch"
	"smcr/userstack/service"
)

const (
	// dialTimeout is the time limit of one attempt to open a session.
	dialTimeout = 5 * time.Second
	// restartGrace is how long a launcher that started its stack waits for others
	// to start another one, after the stack has ended. Attempts that fail are
	// repeated after pauses, which double up to restartLast.
	restartGrace = time.Second
	restartLast  = time.Minute
)

// redialer opens new sessions for a launcher whose session has ended.
type redialer struct {
	command string
	flags   []broker.Flags // of the session
	serve   []string       // flags of smcr serve
	starts  bool           // this launcher started the stack, and starts it again
	log     *slog.Logger

	next  time.Time // when to start a stack; zero: a stack is running
	pause time.Duration
	said  string // the error that was logged last

	// Replaced in tests.
	dial  func(ctx context.Context, command string, flags ...broker.Flags) (*broker.Client, error)
	start func(ctx context.Context, args ...string) error
	now   func() time.Time
}

func newRedialer(command string, serveArgs []string, starts bool, log *slog.Logger, flags ...broker.Flags) *redialer {
	return &redialer{command: command, flags: flags, serve: serveArgs, starts: starts, log: log, dial: broker.DialStack, start: serve.StartOnDemand, now: time.Now}
}

// redial implements launch.Config.Redial.
func (r *redialer) redial(ctx context.Context) (launch.Session, error) {
	c, err := r.open(ctx)
	if err == nil {
		r.next, r.said = time.Time{}, ""
		return c, nil
	}
	if !absent(err) {
		r.warn(err) // there is a process, but it refuses the session
		return nil, err
	}
	now := r.now()
	switch {
	case !r.starts:
		return nil, err
	case r.next.IsZero():
		r.pause = restartGrace
		r.next = now.Add(r.pause)
	}
	if now.Before(r.next) {
		return nil, err
	}
	err = r.start(ctx, r.serve...)
	if err != nil && !errors.Is(err, service.ErrRunning) {
		r.pause = min(2*r.pause, restartLast)
		r.next = r.now().Add(r.pause)
		r.warn(err)
		return nil, err
	}
	if c, err = r.open(ctx); err != nil {
		return nil, err
	}
	r.next, r.said = time.Time{}, ""
	return c, nil
}

func (r *redialer) open(ctx context.Context) (*broker.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return r.dial(ctx, r.command, r.flags...)
}

// warn logs an error, unless it is the same as the last one.
func (r *redialer) warn(err error) {
	if text := err.Error(); text != r.said {
		r.said = text
		r.log.Warn("no stack", "err", err)
	}
}
