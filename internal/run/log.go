// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"smcr/internal/plain"
	"smcr/internal/printable"
)

// newLog returns the log, with messages of this level and above. If the
// level is above [slog.LevelDebug], lines have the form of the program's other
// messages.
func newLog(w io.Writer, level slog.Level) *slog.Logger {
	if level <= slog.LevelDebug {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(&messages{level: level, w: w, mu: new(sync.Mutex)})
}

// messages is a [slog.Handler] that writes lines of the form "smcr: warning: MESSAGE:
// ERROR (KEY VALUE, ...)". Lines for information have no "warning". Errors follow the
// message, other attributes are in parentheses.
type messages struct {
	level slog.Level
	mu    *sync.Mutex // one line at a time; shared with handlers made of this one
	w     io.Writer
	attrs []slog.Attr
}

// Enabled implements slog.Handler.
func (h *messages) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// Handle implements slog.Handler.
func (h *messages) Handle(_ context.Context, r slog.Record) error {
	word := ""
	switch {
	case r.Level >= slog.LevelError:
		word = "error: "
	case r.Level >= slog.LevelWarn:
		word = "warning: "
	}
	text := r.Message
	var facts []string
	take := func(a slog.Attr) bool {
		v := a.Value.Resolve()
		if err, ok := v.Any().(error); ok {
			text += ": " + plain.Text(strings.Join(printable.Lines(err), "; "))
		} else if !a.Equal(slog.Attr{}) {
			facts = append(facts, a.Key+" "+v.String())
		}
		return true
	}
	for _, a := range h.attrs {
		take(a)
	}
	r.Attrs(take)
	if len(facts) > 0 {
		text += " (" + strings.Join(facts, ", ") + ")"
	}
	text = strings.Join(strings.Fields(text), " ") // one line
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := printable.Fprintf(h.w, "smcr: %s%s\n", word, text)
	return err
}

// WithAttrs implements slog.Handler.
func (h *messages) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = slices.Concat(h.attrs, attrs)
	return &c
}

// WithGroup implements slog.Handler. It ignores the name, because nobody uses
// groups.
func (h *messages) WithGroup(string) slog.Handler { return h }
