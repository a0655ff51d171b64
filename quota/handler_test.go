// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimitRecords: of one message, a burst and then one a second is logged, whatever its
// attributes and whichever logger has it. Other messages and records for debugging are as before.
func TestLimitRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(LimitRecords(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
		lines := func() int {
			n := strings.Count(out.String(), "\n")
			return n
		}
		for i := range 1000 {
			log.With("i", i).WithGroup("g").Info("many", "i", i)
		}
		if n := lines(); n != LogBurst {
			t.Errorf("%d lines at once, want %d", n, LogBurst)
		}
		log.Info("another")
		for range 300 {
			log.Debug("many")
		}
		if n := lines(); n != LogBurst+301 {
			t.Errorf("%d lines, want %d", n, LogBurst+301)
		}
		out.Reset()
		for range 60 {
			time.Sleep(LogEvery)
			for range 100 {
				log.Warn("many")
			}
		}
		if n := lines(); n != 60 || !strings.Contains(out.String(), fmt.Sprintf("left_out=%d\n", 1000-LogBurst)) || strings.Count(out.String(), "left_out=99\n") != 59 {
			t.Errorf("%d lines in a minute, want 60 with the number of the others:\n%s", n, out.String())
		}
		out.Reset()
		time.Sleep(LogBurst * LogEvery)
		for range 1000 {
			log.Warn("many")
		}
		if n := lines(); n != LogBurst {
			t.Errorf("%d lines after a pause, want %d", n, LogBurst)
		}
	})
}

// TestManyMessages: messages beyond those that are told apart share one limit, so that memory and
// lines have a bound.
func TestManyMessages(t *testing.T) {
	var out bytes.Buffer
	h := LimitRecords(slog.NewTextHandler(&out, nil))
	log := slog.New(h)
	for i := range 10 * maxMessages {
		log.Info(fmt.Sprint("message ", i))
	}
	if n, kinds := strings.Count(out.String(), "\n"), len(h.(*limited).limits.kinds); n > maxMessages+LogBurst+10 || kinds > maxMessages+1 {
		t.Errorf("%d lines, %d kinds", n, kinds)
	}
}
