// SPDX-License-Identifier: Apache-2.0

package oplog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"unicode"
	"unicode/utf8"

	"smcr/quota"
)

// hostile is text of others: control sequences, line ends, a forged line, a character that reverses the
// order of a line, and bytes that are not UTF-8.
const hostile = "\x1b[2J\u009b1m\nlevel=INFO msg=fake\r\u202e\u2066\u2028\x7f\x00\xff\"'\\ a=b"

type text struct{}

func (text) String() string { return hostile }

type marshaler struct{}

func (marshaler) MarshalText() ([]byte, error) { return []byte(hostile), nil }

// TestHostileLog: a message of the log is one line of printable characters, whatever a peer or a program
// has sent, and in whatever form the stack logs it. It is no other message either: a value that has quotes
// or spaces is quoted.
func TestHostileLog(t *testing.T) {
	for name, log := range map[string]func(*slog.Logger){
		"message":     func(l *slog.Logger) { l.Warn("refused " + hostile) },
		"string":      func(l *slog.Logger) { l.Warn("refused", "v", hostile) },
		"error":       func(l *slog.Logger) { l.Warn("refused", "v", errors.New(hostile)) },
		"wrapped":     func(l *slog.Logger) { l.Warn("refused", "v", fmt.Errorf("service: %w", errors.New(hostile))) },
		"list":        func(l *slog.Logger) { l.Warn("refused", "v", []string{hostile}) },
		"errors":      func(l *slog.Logger) { l.Warn("refused", "v", []error{errors.New(hostile)}) },
		"bytes":       func(l *slog.Logger) { l.Warn("refused", "v", []byte(hostile)) },
		"map":         func(l *slog.Logger) { l.Warn("refused", "v", map[string]int{hostile: 1}) },
		"struct":      func(l *slog.Logger) { l.Warn("refused", "v", struct{ A string }{hostile}) },
		"stringer":    func(l *slog.Logger) { l.Warn("refused", "v", text{}) },
		"marshaler":   func(l *slog.Logger) { l.Warn("refused", "v", marshaler{}) },
		"with":        func(l *slog.Logger) { l.With("v", hostile).Warn("refused") },
		"with error":  func(l *slog.Logger) { l.With("v", errors.New(hostile)).Warn("refused") },
		"group":       func(l *slog.Logger) { l.WithGroup("g").Warn("refused", slog.Group("h", "v", hostile)) },
		"key":         func(l *slog.Logger) { l.Warn("refused", hostile, 1) },
		"group's key": func(l *slog.Logger) { l.WithGroup(hostile).Warn("refused", "v", 1) },
		"log.Logger":  func(l *slog.Logger) { slog.NewLogLogger(l.Handler(), slog.LevelWarn).Print(hostile) },
	} {
		var out bytes.Buffer
		log(New(&out, slog.LevelInfo))
		line, ended := strings.CutSuffix(out.String(), "\n")
		if !ended || !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%s: %q", name, out.String())
		}
		if !strings.Contains(line, "fake") || !strings.HasPrefix(line, "time=") {
			t.Errorf("%s: the text is not there: %q", name, line)
		}
		// Outside of quotes, there is nothing of it.
		quoted := false
		var outside strings.Builder
		for i := 0; i < len(line); i++ {
			switch c := line[i]; {
			case c == '\\' && quoted:
				i++
			case c == '"':
				quoted = !quoted
			case !quoted:
				outside.WriteByte(c)
			}
		}
		if quoted || strings.Contains(outside.String(), "fake") {
			t.Errorf("%s: the text is outside of quotes: %q", name, line)
		}
	}
}

// TestLimited: a log has limits, and tells at its end what is missing.
func TestLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := New(&out, slog.LevelInfo)
		for range quota.LogBurst + 5 {
			log.Warn("refused")
		}
		log.Debug("not of this level")
		if n := strings.Count(out.String(), "\n"); n != quota.LogBurst {
			t.Errorf("%d lines", n)
		}
		Flush(log)
		if !strings.HasSuffix(out.String(), "level=WARN msg=refused left_out=5\n") {
			t.Errorf("the end: %.200q", out.String()[max(0, out.Len()-200):])
		}
	})
}
