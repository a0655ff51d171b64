// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"log/slog"
	"sync"
	"time"
)

// LogInterval is the shortest time between two warnings of one kind in a [Log].
const LogInterval = 10 * time.Second

// A Log is for warnings that any user or host can cause. Of each kind it logs at most
// one in each [LogInterval], with the number of those that it did not log. The methods
// are safe for concurrent use.
type Log struct {
	to *slog.Logger

	mu    sync.Mutex
	kinds map[string]*kind
}

type kind struct {
	next time.Time // when the next warning may be logged
	left int       // warnings that were not logged
}

// NewLog returns a Log that passes warnings to a logger.
func NewLog(to *slog.Logger) *Log { return &Log{to: to, kinds: make(map[string]*kind)} }

// Warn logs a warning. The message is the kind, so it must be constant. args are the
// attributes, in the form of [slog.Logger.Warn]; "left_out" is added to them.
func (l *Log) Warn(msg string, args ...any) {
	now := time.Now()
	l.mu.Lock()
	k := l.kinds[msg]
	if k == nil {
		k = &kind{}
		l.kinds[msg] = k
	}
	if now.Before(k.next) {
		k.left++
		l.mu.Unlock()
		return
	}
	left := k.left
	k.next, k.left = now.Add(LogInterval), 0
	l.mu.Unlock()
	if left > 0 {
		args = append(args, "left_out", left)
	}
	l.to.Warn(msg, args...)
}
