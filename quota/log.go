// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"log/slog"
	"sync"
	"time"
)

// LogInterval is how often a [Log] tells of the same at most.
const LogInterval = 10 * time.Second

// A Log passes warnings on that a stranger can cause: of each kind one in each
// LogInterval, with the number of those left out before. Its methods are safe for
// concurrent use.
type Log struct {
	to *slog.Logger

	mu    sync.Mutex
	kinds map[string]*kind
}

type kind struct {
	next time.Time // when it may be told of again
	left int
}

// NewLog returns a Log that passes warnings to a logger.
func NewLog(to *slog.Logger) *Log { return &Log{to: to, kinds: make(map[string]*kind)} }

// Warn logs msg, which is constant text and names the kind, with attributes as
// slog has them.
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
