// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxKinds limits the kinds of records that are told apart, and maxSources the sources of one
	// kind. Others share a limit.
	maxKinds   = 512
	maxSources = 256
)

// recordLimits are the limits of a handler and of all that were made of it.
type recordLimits struct {
	to slog.Handler // gets the numbers

	mu    sync.Mutex
	kinds map[kindKey]*recordKind
}

// kindKey is the place in the program that has made a record. The message does not count: it may have
// text of others. A record that has no place is told apart by its message.
type kindKey struct {
	pc      uintptr
	message string
}

type recordKind struct {
	key     kindKey
	level   slog.Level
	message string // of the last one that was left out

	all     allowance
	sources map[string]*allowance
	swept   time.Time // when sources of which nothing is left were removed last

	left int         // records that were left out and not told
	tell *time.Timer // or nil
}

// allowance is how much may be logged: all of a burst from the time full on.
type allowance struct{ full time.Time }

// has reports whether one more may be logged.
func (a *allowance) has(now time.Time, burst int, every time.Duration) bool {
	return a.full.Sub(now) <= time.Duration(burst-1)*every
}

// use takes n. It may be more than there is: then the next one waits longer.
func (a *allowance) use(now time.Time, n int, every time.Duration) {
	if a.full.Before(now) {
		a.full = now
	}
	a.full = a.full.Add(time.Duration(n) * every)
}

// take reports whether a record that counts n times may be logged, and how many of its kind before
// it were not.
func (l *recordLimits) take(r *slog.Record, source string, n int, now time.Time) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kind(r)
	burst, every, ofSource, everySource := LogBurst, LogEvery, LogSourceBurst, LogSourceEvery
	if r.Level < slog.LevelInfo {
		burst, every = burst*debugFactor, every/debugFactor
		ofSource, everySource = ofSource*debugFactor, everySource/debugFactor
	}
	var s *allowance
	if source != "" {
		s = k.source(source, now)
	}
	if !k.all.has(now, burst, every) || s != nil && !s.has(now, ofSource, everySource) {
		k.leave(l, r)
		return 0, false
	}
	k.all.use(now, n, every)
	if s != nil {
		s.use(now, n, everySource)
	}
	return k.taken(), true
}

// kind returns the kind of a record.
func (l *recordLimits) kind(r *slog.Record) *recordKind {
	key := kindKey{pc: r.PC}
	if key.pc == 0 {
		key.message = r.Message
	}
	k := l.kinds[key]
	if k == nil && len(l.kinds) >= maxKinds {
		key = kindKey{}
		k = l.kinds[key]
	}
	if k == nil {
		k = &recordKind{key: key, sources: map[string]*allowance{}}
		l.kinds[key] = k
	}
	return k
}

// source returns what one source may still log.
func (k *recordKind) source(name string, now time.Time) *allowance {
	s := k.sources[name]
	if s == nil && len(k.sources) >= maxSources {
		// Of a flood of sources, not each one looks at all of them.
		if now.Sub(k.swept) >= time.Second {
			k.swept = now
			for n, s := range k.sources {
				if !s.full.After(now) {
					delete(k.sources, n)
				}
			}
		}
		if len(k.sources) >= maxSources {
			name = ""
			s = k.sources[name]
		}
	}
	if s == nil {
		s = &allowance{}
		k.sources[name] = s
	}
	return s
}

// leave counts a record that is not logged. l.mu is held.
func (k *recordKind) leave(l *recordLimits, r *slog.Record) {
	k.left++
	k.level, k.message = r.Level, r.Message
	if k.tell == nil {
		// No guard: it passes a number on to a handler, as the caller would.
		k.tell = time.AfterFunc(LogTold, func() { l.told(k) })
	}
}

// taken returns the number of records that were left out, for a record that tells it.
func (k *recordKind) taken() (left int) {
	if k.tell != nil {
		k.tell.Stop()
		k.tell = nil
	}
	left, k.left = k.left, 0
	return left
}

// told tells what was left out of a kind, if no record has told it.
func (l *recordLimits) told(k *recordKind) {
	l.mu.Lock()
	r := slog.NewRecord(time.Now(), k.level, k.message, k.key.pc)
	left := k.taken()
	l.mu.Unlock()
	if left > 0 {
		r.AddAttrs(slog.Int(leftOut, left))
		_ = l.to.Handle(context.Background(), r)
	}
}

// flush tells all at once.
func (l *recordLimits) flush() {
	l.mu.Lock()
	var all []*recordKind
	for _, k := range l.kinds {
		if k.left > 0 {
			all = append(all, k)
		}
	}
	l.mu.Unlock()
	for _, k := range all {
		l.told(k)
	}
}
