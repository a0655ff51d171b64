// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// book is what a handler has passed on.
type book struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

// take returns what was passed on since the last call.
func (b *book) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.out.String()
	b.out.Reset()
	return s
}

func (b *book) lines() int { return strings.Count(b.take(), "\n") }

// limitedBook returns a logger with limits and what it has passed on.
func limitedBook() (*slog.Logger, *book) {
	b := &book{}
	return slog.New(LimitRecords(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))), b
}

// told returns the sum of the numbers of records that were left out.
func told(t *testing.T, text string) (sum int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if _, after, ok := strings.Cut(line, leftOut+"="); ok {
			n := 0
			if _, err := fmt.Sscan(after, &n); err != nil || n <= 0 {
				t.Errorf("%q: %v", line, err)
			}
			sum += n
		}
	}
	return sum
}

// logMany logs at one place of the program, wherever it is called.
//
//go:noinline
func logMany(log *slog.Logger, args ...any) { log.Info("many", args...) }

// TestLimitRecords: of one kind, a burst and then one a second is logged, whatever its attributes and
// whichever logger has it. Other kinds are as before.
func TestLimitRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, b := limitedBook()
		many := func(i int) { logMany(log.With("i", i).WithGroup("g"), "i", i) }
		for i := range 1000 {
			many(i)
		}
		if n := b.lines(); n != LogBurst {
			t.Errorf("%d lines at once, want %d", n, LogBurst)
		}
		log.Info("another")
		if n := b.lines(); n != 1 {
			t.Errorf("%d lines of another kind, want 1", n)
		}
		for range 60 {
			time.Sleep(LogEvery)
			for i := range 100 {
				many(i)
			}
		}
		all := b.take()
		if n := strings.Count(all, "\n"); n != 60 {
			t.Errorf("%d lines in a minute, want 60:\n%s", n, all)
		}
		if n, want := told(t, all), 1000-LogBurst+59*99; n != want {
			t.Errorf("%d told to be left out, want %d:\n%s", n, want, all)
		}
		time.Sleep(LogBurst * LogEvery)
		b.take()
		for i := range 1000 {
			many(i)
		}
		if n := b.lines(); n != LogBurst {
			t.Errorf("%d lines after a pause, want %d", n, LogBurst)
		}
	})
}

// TestDebugLimited: whoever has the stack log everything gets more, but not without an end.
func TestDebugLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, b := limitedBook()
		for range 100 * LogBurst {
			log.Debug("many")
		}
		if n := b.lines(); n != debugFactor*LogBurst {
			t.Errorf("%d lines, want %d", n, debugFactor*LogBurst)
		}
	})
}

// TestLeftOutIsTold: when nothing more is logged, the number is told all the same, once.
func TestLeftOutIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, b := limitedBook()
		for i := range LogBurst + 7 {
			log.With("who", i).Warn("many", "i", i)
		}
		b.take()
		time.Sleep(LogTold + time.Second)
		if got := b.take(); !strings.Contains(got, " level=WARN msg=many left_out=7\n") || strings.Count(got, "\n") != 1 {
			t.Errorf("told: %q", got)
		}
		time.Sleep(time.Hour)
		if got := b.take(); got != "" {
			t.Errorf("told again: %q", got)
		}
		// At the end of the process, at once.
		for range LogBurst + 3 {
			log.Info("many")
		}
		b.take()
		FlushRecords(log.Handler())
		if n := told(t, b.take()); n != 3 {
			t.Errorf("%d told at the end, want 3", n)
		}
		time.Sleep(time.Hour)
		if got := b.take(); got != "" {
			t.Errorf("told again: %q", got)
		}
		FlushRecords(slog.DiscardHandler)
	})
}

// TestNothingUncounted: whatever is logged, in whatever order, by many at a time, is a line, or is counted.
func TestNothingUncounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, b := limitedBook()
		var wg sync.WaitGroup
		const goroutines, each = 8, 3000
		for g := range goroutines {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			wg.Go(func() {
				for range each {
					uid := rnd.IntN(5)
					switch rnd.IntN(3) {
					case 0:
						log.Info("one", "user", uid, "x", 1)
					case 1:
						log.With("user", uid).Error("two", "x", 1)
					default:
						log.Debug("three", "x", 1)
					}
					if rnd.IntN(20) == 0 {
						time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(LogTold)
		synctest.Wait()
		all := b.take()
		logged := strings.Count(all, " x=1") // not in lines that only tell a number
		if sum := logged + told(t, all); sum != goroutines*each {
			t.Errorf("%d lines and numbers, want %d", sum, goroutines*each)
		}
		if told(t, all) == 0 {
			t.Error("nothing was left out: the test shows nothing")
		}
	})
}

// TestSources: whoever causes many records of a kind hides none of the others.
func TestSources(t *testing.T) {
	for name, source := range map[string]func(int) slog.Attr{
		"user":    func(i int) slog.Attr { return slog.Any("user", uint32(i)) },
		"uid":     func(i int) slog.Attr { return slog.Int("uid", i) },
		"address": func(i int) slog.Attr { return slog.Any("remote", netip.AddrPortFrom(addr(i), 1)) },
		"network address": func(i int) slog.Attr {
			return slog.Any("remote", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr(i), 1)))
		},
		"text":     func(i int) slog.Attr { return slog.String("peer", addr(i).String()) },
		"tuple":    func(i int) slog.Attr { return slog.Any("connection", tuple{addr(i)}) },
		"stringer": func(i int) slog.Attr { return slog.Any("peer", addr(i)) },
	} {
		for _, with := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, with: %t", name, with), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					log, b := limitedBook()
					many := func(i int) {
						log := log
						args := []any{source(i)}
						if with {
							log, args = log.With(args...), nil
						}
						logMany(log, args...)
					}
					for range 1000 {
						many(1)
					}
					if n := b.lines(); n != LogSourceBurst {
						t.Errorf("%d lines of one source, want %d", n, LogSourceBurst)
					}
					many(2)
					if got := b.take(); told(t, got) != 1000-LogSourceBurst {
						t.Errorf("another source: %q", got)
					}
					for i := range 1000 {
						many(i + 3)
					}
					if n := b.lines(); n != LogBurst-LogSourceBurst-1 {
						t.Errorf("%d lines of many sources, want %d", n, LogBurst-LogSourceBurst-1)
					}
				})
			})
		}
	}
}

// addr returns an address of a host.
func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

type tuple struct{ remote netip.Addr }

func (t tuple) LogSource() netip.Addr { return t.remote }
func (t tuple) String() string        { return t.remote.String() }

// TestSameSource: neither the ports of a host nor its addresses make it many.
func TestSameSource(t *testing.T) {
	for name, as := range map[string][]slog.Attr{
		"ports":             {slog.Any("remote", netip.MustParseAddrPort("10.0.0.1:1")), slog.Any("remote", netip.MustParseAddrPort("10.0.0.1:2"))},
		"text and value":    {slog.String("remote", "10.0.0.1:1"), slog.Any("remote", netip.MustParseAddr("10.0.0.1"))},
		"IPv4-mapped":       {slog.String("remote", "[::ffff:10.0.0.1]:1"), slog.String("remote", "10.0.0.1:7")},
		"a network of IPv6": {slog.String("remote", "[fd00::1]:1"), slog.String("remote", "[fd00::ffff:2]:1")},
	} {
		if a, b := sourceOf(as[0]), sourceOf(as[1]); a != b || a == "" {
			t.Errorf("%s: %q and %q", name, a, b)
		}
	}
	for name, as := range map[string][]slog.Attr{
		"hosts":             {slog.String("remote", "fe80::1"), slog.String("remote", "fe80::2")},
		"networks":          {slog.String("remote", "fd00::1"), slog.String("remote", "fd00:0:0:1::1")},
		"users":             {slog.Int("uid", 1), slog.Int("uid", 2)},
		"no source at all":  {slog.Int("qpn", 1), slog.Int("uid", 1)},
		"one of two values": {slog.Any("peer", struct{}{}), slog.Any("peer", addr(1))},
	} {
		if a, b := sourceOf(as[0]), sourceOf(as[1]); a == b {
			t.Errorf("%s: both %q", name, a)
		}
	}
	if s := sourceOf(slog.String("peer", "a name")); s != "" {
		t.Errorf("a name is the source %q", s)
	}
	// The subordinate users of one user are that one.
	for _, r := range Subordinates() {
		if a, b := sourceOf(slog.Any("user", r.First)), sourceOf(slog.Any("user", r.Last)); a != b || a != sourceOf(slog.Any("uid", r.Owner)) {
			t.Errorf("users %d to %d: %q and %q", r.First, r.Last, a, b)
		}
	}
	// What one user does to a host hides nothing of what others do to it.
	both := func(uid int) string {
		return addSource(addSource("", slog.Int("user", uid)), slog.String("remote", "10.0.0.1:1"))
	}
	if both(1) == both(2) || !strings.Contains(both(1), "10.0.0.1") {
		t.Errorf("%q and %q", both(1), both(2))
	}
}

// TestManySources: a flood of sources takes bounded memory, and those that have come to rest make room.
func TestManySources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := LimitRecords(slog.DiscardHandler).(*limited)
		log := slog.New(enabled{h})
		one := func(i int) { logMany(log, "remote", addr(i)) }
		for range 20 {
			for i := range 100 * maxSources {
				one(i)
			}
			time.Sleep(LogEvery)
		}
		for _, k := range h.limits.kinds {
			if n := len(k.sources); n > maxSources+1 {
				t.Errorf("%d sources are kept", n)
			}
		}
		time.Sleep(LogBurst * LogEvery)
		one(1 << 15)
		for _, k := range h.limits.kinds {
			if n := len(k.sources); n != 1 {
				t.Errorf("%d sources after a pause, want 1", n)
			}
		}
	})
}

// enabled has a handler take all records, though what is behind it discards them.
type enabled struct{ *limited }

func (enabled) Enabled(context.Context, slog.Level) bool { return true }

// TestManyMessages: text of others in a message makes no kinds of its own. Of records without a
// place in the source, those beyond the kinds that are told apart share one limit.
func TestManyMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, b := limitedBook()
		for i := range 10 * LogBurst {
			log.Info(fmt.Sprint("message ", i))
		}
		if n := b.lines(); n != LogBurst {
			t.Errorf("%d lines, want %d", n, LogBurst)
		}
		// What the standard library logs.
		std := slog.NewLogLogger(log.Handler(), slog.LevelWarn)
		for i := range 10 * LogBurst {
			std.Printf("http: something of %d", i)
		}
		if n := b.lines(); n != LogBurst {
			t.Errorf("%d lines of a log.Logger, want %d", n, LogBurst)
		}
		h := log.Handler().(*limited)
		for i := range 10 * maxKinds {
			if err := h.Handle(t.Context(), slog.NewRecord(time.Now(), slog.LevelInfo, fmt.Sprint("message ", i), 0)); err != nil {
				t.Fatal(err)
			}
		}
		if n, kinds := b.lines(), len(h.limits.kinds); n > maxKinds+LogBurst || kinds > maxKinds+1 {
			t.Errorf("%d lines, %d kinds", n, kinds)
		}
	})
}

// TestLongRecords: what counts is text, not lines.
func TestLongRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, b := limitedBook()
		text := strings.Repeat("x", 9*logSize)
		for range 1000 {
			log.Info("long", "stack", text)
		}
		if n := b.lines(); n > LogBurst/10+1 || n < LogBurst/10-1 {
			t.Errorf("%d lines of 9 KiB, want about %d", n, LogBurst/10)
		}
		// Even one that is longer than all that is allowed is logged.
		log.Info("longer", "stack", strings.Repeat("x", 2*LogBurst*logSize))
		if n := b.lines(); n != 1 {
			t.Errorf("%d lines, want 1", n)
		}
	})
}

// TestLimitTwice: who limits a logger that has limits gets the same one.
func TestLimitTwice(t *testing.T) {
	log, _ := limitedBook()
	if log.Handler() != LimitRecords(log.Handler()) || LimitLog(log) != log {
		t.Error("limited twice")
	}
	plain := slog.New(slog.DiscardHandler)
	if l := LimitLog(plain); l == plain || l.Handler() != LimitLog(l).Handler() {
		t.Error("not limited")
	}
}

// TestPlaceOfRecord: the number is told as of the place that has left out records.
func TestPlaceOfRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		log := slog.New(LimitRecords(slog.NewTextHandler(b, &slog.HandlerOptions{AddSource: true})))
		_, _, line, _ := runtime.Caller(0)
		for range LogBurst + 1 {
			log.Info("many") // line+2
		}
		b.take()
		FlushRecords(log.Handler())
		if got, want := b.take(), fmt.Sprintf("handler_test.go:%d ", line+2); !strings.Contains(got, want) {
			t.Errorf("%q, want %s", got, want)
		}
	})
}
