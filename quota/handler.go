// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// LogBurst is how many records of one message a [LimitRecords] handler passes on at
	// once.
	LogBurst = 200
	// LogEvery is the time after which it passes on one more.
	LogEvery = time.Second

	// maxMessages limits the messages that are told apart. Others share one limit.
	maxMessages = 512
)

// LimitRecords returns a handler that passes on the records of h, but of each message no more than
// [LogBurst] at once and one in each [LogEvery] after that: programs, users and other hosts can
// cause many, and must not fill the disk. The next record of the message has "left_out", the
// number of those that are missing. Records below [slog.LevelInfo] are not limited.
func LimitRecords(h slog.Handler) slog.Handler {
	return &limited{h, &recordLimits{kinds: map[string]*recordLimit{}}}
}

type limited struct {
	slog.Handler
	limits *recordLimits
}

type recordLimits struct {
	mu    sync.Mutex
	kinds map[string]*recordLimit // by the message
}

type recordLimit struct {
	full time.Time // when all of LogBurst may be used again
	left int       // records that were left out
}

// Handle implements slog.Handler.
func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return l.Handler.Handle(ctx, r)
	}
	left, ok := l.limits.take(r.Message, time.Now())
	if !ok {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", left))
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l *limited) WithAttrs(as []slog.Attr) slog.Handler {
	return &limited{l.Handler.WithAttrs(as), l.limits}
}

// WithGroup implements slog.Handler.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{l.Handler.WithGroup(name), l.limits}
}

// take reports whether a record may be logged, and how many before it were not.
func (l *recordLimits) take(message string, now time.Time) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[message]
	if k == nil && len(l.kinds) >= maxMessages {
		message = ""
		k = l.kinds[message]
	}
	if k == nil {
		k = &recordLimit{}
		l.kinds[message] = k
	}
	full := k.full
	if full.Before(now) {
		full = now
	}
	if full = full.Add(LogEvery); full.Sub(now) > LogBurst*LogEvery {
		k.left++
		return 0, false
	}
	left, k.left, k.full = k.left, 0, full
	return left, true
}
