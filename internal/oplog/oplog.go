// SPDX-License-Identifier: Apache-2.0

package oplog

import (
	"io"
	"log/slog"

	"smcr/internal/plain"
	"smcr/quota"
)

// New returns a logger that writes messages of a level and above to w, with errors in plain text.
// What others can cause without end is limited, and told as a number.
func New(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(quota.LimitRecords(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(plain.Text(err.Error()))
		}
		return a
	}})))
}

// Flush has a logger of New tell at once how many messages it has left out, as at the end of the
// process.
func Flush(l *slog.Logger) { quota.FlushRecords(l.Handler()) }
