// SPDX-License-Identifier: Apache-2.0

package cmdutil_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/testing/cmdtest"
	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
)

// TestWaiting changes a stack that takes three seconds to start, at a terminal. The line that
// says so is gone before the next output.
func TestWaiting(t *testing.T) {
	testkind.System(t)
	t.Setenv("TERM", "xterm")
	streams, _, _, _ := cmdutil.MemoryStreams()
	tty, written := cmdtest.Terminal(t)
	streams.ErrOut = tty
	fake := nltest.NewFake(nltest.SampleState())
	started := false
	f := &cmdutil.Factory{
		IO: streams, Backend: "auto",
		Dial: func(context.Context, string) (nl.Multi, error) {
			if !started {
				return nil, nl.ErrNoBackend
			}
			return nl.Multi{{Name: "user", Control: fake}}, nil
		},
		Start: func(context.Context) error {
			time.Sleep(3200 * time.Millisecond)
			started = true
			return nil
		},
	}
	synctest.Test(t, func(t *testing.T) { // without what reads the terminal
		if err := f.Change(t.Context(), func(ctx context.Context, c nl.Control) error { return c.FlushUEID(ctx) }); err != nil {
			t.Fatal(err)
		}
	})
	const erase = "\r\x1b[K"
	got := written()
	if !strings.HasPrefix(got, erase+"smcr: starting the user-space stack: 2 s"+erase+"smcr: starting the user-space stack: 3 s"+erase) || strings.Count(got, erase) != 3 {
		t.Errorf("%q", got)
	}
}
