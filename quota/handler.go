// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"log/slog"
	"time"
)

const (
	// LogBurst is how many records of one kind a [LimitRecords] handler passes on at once.
	LogBurst = 200
	// LogEvery is the time after which it passes on one more.
	LogEvery = time.Second

	// LogSourceBurst is how many of these one source may have caused: whoever causes many leaves
	// most of LogBurst to others.
	LogSourceBurst = 50
	// LogSourceEvery is the time after which it may have caused one more.
	LogSourceEvery = 10 * time.Second

	// LogTold is how long a handler waits for another record of a kind that can tell how many
	// were left out. Then a record of its own tells it.
	LogTold = 10 * time.Second

	// logSize is how many bytes of text count as one record. A longer one counts as several.
	logSize = 1 << 10

	// debugFactor is how many times more there may be of records below [slog.LevelInfo].
	debugFactor = 10
)

// leftOut is the attribute with the number of records that are missing.
const leftOut = "left_out"

// LimitRecords returns a handler that passes on the records of h, but not more of one kind and of one
// source than the constants say: programs, users and other hosts can cause many, and must neither fill the
// disk nor hide what others cause. A kind is a place in the source code. A source is what the
// attributes say of who has caused a record: see sourceKeys. What is missing is told as a number,
// "left_out", by the next record of the kind or, at the latest after [LogTold], by one of its own.
//
// If h is such a handler already, the result is h.
func LimitRecords(h slog.Handler) slog.Handler {
	if l, ok := h.(*limited); ok {
		return l
	}
	return &limited{Handler: h, limits: &recordLimits{to: h, kinds: map[kindKey]*recordKind{}}}
}

// LimitLog is LimitRecords for a logger.
func LimitLog(l *slog.Logger) *slog.Logger {
	if _, ok := l.Handler().(*limited); ok {
		return l
	}
	return slog.New(LimitRecords(l.Handler()))
}

// FlushRecords has a handler of [LimitRecords] tell at once what it has left out, as at the end of the
// process. Other handlers are as before.
func FlushRecords(h slog.Handler) {
	if l, ok := h.(*limited); ok {
		l.limits.flush()
	}
}

type limited struct {
	slog.Handler
	limits *recordLimits
	source string // by WithAttrs
}

// Handle implements slog.Handler.
func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	source := l.source
	size := len(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		source = addSource(source, a)
		if a.Value.Kind() == slog.KindString {
			size += len(a.Value.String())
		}
		return true
	})
	left, ok := l.limits.take(&r, source, 1+size/logSize, time.Now())
	if !ok {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int(leftOut, left))
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l *limited) WithAttrs(as []slog.Attr) slog.Handler {
	c := &limited{l.Handler.WithAttrs(as), l.limits, l.source}
	for _, a := range as {
		c.source = addSource(c.source, a)
	}
	return c
}

// WithGroup implements slog.Handler.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{l.Handler.WithGroup(name), l.limits, l.source}
}
