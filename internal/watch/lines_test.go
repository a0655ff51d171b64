// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/cmdutil"
)

// startSignals starts the goroutine of os/signal, which never ends, so that none starts in the
// bubble of a test.
func startSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR2)
	signal.Stop(c)
}

// TestLines checks what is printed, and that a failure in between ends nothing.
func TestLines(t *testing.T) {
	startSignals()
	for format, want := range map[string]string{
		cmdutil.FormatTable: "name\nlist 3\nsecond line\nlist 4\nsecond line\n",
		cmdutil.FormatJSON:  `{"time":"2000-01-01T00:00:02Z","rows":[3]}` + "\n" + `{"time":"2000-01-01T00:00:03Z","rows":[4]}` + "\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			streams, _, out, errOut := cmdutil.MemoryStreams()
			o := LineOptions{Interval: time.Second, Count: 2, Format: format, Header: "name\n"}
			// The first list is not shown, and the second is not there.
			if err := Lines(t.Context(), streams, o, counter(second)); err != nil || out.String() != want {
				t.Errorf("%s: %v, %q, want %q", format, err, out.String(), want)
			}
			if want := "smcr: 2000-01-01T00:00:01Z: the stack is gone\n"; errOut.String() != want {
				t.Errorf("%s: standard error %q", format, errOut.String())
			}
		})
	}
}

func TestLinesFirst(t *testing.T) {
	streams, _, out, _ := cmdutil.MemoryStreams()
	o := LineOptions{Interval: time.Hour, Format: cmdutil.FormatTable, Header: "name\n"}
	if err := Lines(t.Context(), streams, o, counter(func(int) error { return errGone })); !errors.Is(err, errGone) || out.Len() != 0 {
		t.Errorf("%v, %q", err, out.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Lines(ctx, streams, o, counter(never)); err != nil || out.Len() != 0 {
		t.Errorf("interrupted: %v, %q", err, out.String())
	}
}

// TestHeader checks that the header is repeated on a terminal alone.
func TestHeader(t *testing.T) {
	for _, again := range []bool{false, true} {
		var out bytes.Buffer
		p := &plain{w: &out, header: "name\n", again: again}
		for i := range 45 {
			err := p.show(time.Time{}, nil, func(w io.Writer) error { _, err := fmt.Fprintln(w, i); return err })
			if err != nil {
				t.Fatal(err)
			}
		}
		var at []int
		for i, l := range strings.Split(out.String(), "\n") {
			if l == "name" {
				at = append(at, i)
			}
		}
		if want := map[bool]string{false: "[0]", true: "[0 21 42]"}[again]; fmt.Sprint(at) != want {
			t.Errorf("headers at lines %v, want %s", at, want)
		}
	}
}

func TestIntervalFlag(t *testing.T) {
	for s, want := range map[string]time.Duration{"3": 3 * time.Second, "500ms": 500 * time.Millisecond, "1ms": -1, "x": -1, "-1": -1} {
		e := every(time.Second)
		if err := e.Set(s); (err != nil) != (want < 0) || err == nil && time.Duration(e) != want {
			t.Errorf("%q: %v, %v", s, time.Duration(e), err)
		}
	}
}
