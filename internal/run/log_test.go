// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := newLog(&out, slog.LevelWarn)
	log.Debug("not for the user")
	log.Info("nor this")
	log.Warn("the stack is already running")
	log.Warn("connection dropped", "remote", "10.1.0.2:80", "err", fmt.Errorf("broker: send: %w", errors.New("launch: broken\npipe")), "try", 2)
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
	log.Info("the stack is back", "err", errors.New("userstack: gone"), "try", 2)
	log.Warn("slow")
	if want := "smcr: the stack is back: gone (try 2)\nsmcr: warning: slow\n"; out.String() != want {
		t.Errorf("verbose: %q, want %q", &out, want)
	}
	out.Reset()
	newLog(&out, slog.LevelDebug).Debug("for developers", "n", 1)
	if s := out.String(); !strings.Contains(s, "level=DEBUG") || !strings.Contains(s, "n=1") {
		t.Errorf("debug: %q", s)
	}
}
