// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode"
)

func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := newLog(&out, slog.LevelWarn)
	log.Debug("not for the user")
	log.Info("nor this")
	log.Warn("the stack is already running")
	log.Warn("connection dropped", "remote", "10.1.0.2:80", "err", fmt.Errorf("service: send: %w", errors.New("divert: broken\npipe")), "try", 2)
	log.With("conn", 7).WithGroup("g").Error("cannot deliver a connection", slog.Attr{})
	want := "smcr: warning: the stack is already running\n" +
		"smcr: warning: connection dropped: send: broken pipe (remote 10.1.0.2:80, try 2)\n" +
		"smcr: error: cannot deliver a connection (conn 7)\n"
	if out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
	out.Reset()
	log = newLog(&out, slog.LevelInfo)
	log.Debug("not for the user")
	log.Info("the stack is back", "err", errors.Join(errors.New("userstack: gone"), errors.New("nl: for good")), "try", 2)
	log.Warn("slow")
	if want := "smcr: the stack is back: gone; for good (try 2)\nsmcr: warning: slow\n"; out.String() != want {
		t.Errorf("verbose: %q, want %q", &out, want)
	}
	out.Reset()
	newLog(&out, slog.LevelDebug).Debug("for developers", "n", 1)
	if s := out.String(); !strings.Contains(s, "level=DEBUG") || !strings.Contains(s, "n=1") {
		t.Errorf("debug: %q", s)
	}
}

// TestHostileText checks that a message is one line without control
// characters, whatever the stack and the peer have sent.
func TestHostileText(t *testing.T) {
	const hostile = "\x1b[2J\u009b1m\nsmcr: fake\r\u202e\xff"
	var out bytes.Buffer
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelDebug} {
		newLog(&out, level).Warn("refused", "why", hostile, "err", errors.New(hostile))
	}
	perReason(&out, overTCP, map[string]uint64{hostile: 1})
	plainTCP(&Options{Err: &out}, errors.New(hostile))
	for line := range strings.Lines(out.String()) {
		text := strings.TrimSuffix(line, "\n")
		if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.HasPrefix(text, "smcr: fake") {
			t.Errorf("%q", line)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 4 || strings.Count(out.String(), "fake") < 4 {
		t.Errorf("%d lines: %s", n, &out)
	}
}
