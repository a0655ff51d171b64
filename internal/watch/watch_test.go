// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/cmdutil"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// counter returns a function whose nth call returns a list with the number n, or the
// error of fail(n).
func counter(fail func(n int) error) func(context.Context) (View[int], error) {
	n := 0
	return func(context.Context) (View[int], error) {
		n++
		if err := fail(n); err != nil {
			return View[int]{}, err
		}
		v := View[int]{Text: func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "list %d\nsecond line\n", n)
			return err
		}}
		if n > 1 {
			v.Rows = []int{n}
		}
		return v, nil
	}
}

func never(int) error { return nil }

var errGone = errors.New("nl: the stack is gone")

func second(n int) error {
	if n == 2 {
		return errGone
	}
	return nil
}

// watchFor runs the loop for the time d in a synctest bubble, where time begins at
// midnight UTC 2000-01-01.
func watchFor(t *testing.T, d, every time.Duration, s screen, errOut io.Writer, read func(context.Context) (View[int], error)) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return repeat(ctx, every, s, errOut, read)
}

func TestJSONLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, errOut bytes.Buffer
		if err := watchFor(t, 7*time.Second, 2*time.Second, lines{&out}, &errOut, counter(second)); err != nil {
			t.Fatal(err)
		}
		const want = `{"time":"2000-01-01T00:00:00Z","rows":[]}
{"time":"2000-01-01T00:00:04Z","rows":[3]}
{"time":"2000-01-01T00:00:06Z","rows":[4]}
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if want := "smcr: 2000-01-01T00:00:02Z: the stack is gone\n"; errOut.String() != want {
			t.Errorf("standard error %q, want %q", errOut.String(), want)
		}
	})
}

func TestAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, errOut bytes.Buffer
		if err := watchFor(t, 1200*time.Millisecond, time.Second, &appender{w: &out}, &errOut, counter(never)); err != nil {
			t.Fatal(err)
		}
		const want = "# 2000-01-01T00:00:00Z\nlist 1\nsecond line\n\n# 2000-01-01T00:00:01Z\nlist 2\nsecond line\n"
		if out.String() != want || errOut.Len() != 0 {
			t.Errorf("%q and %q, want %q", out.String(), errOut.String(), want)
		}
	})
}

// TestRedraw checks what is written to a terminal: the rest of each line is cleared, and
// the output is cut at the size of the terminal.
func TestRedraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		width, height := 80, 24
		s := &terminal{w: &out, title: "every 1s", size: func() (int, int) { return width, height }}
		var shown []string
		read := counter(second)
		err := watchFor(t, 3500*time.Millisecond, time.Second, s, io.Discard, func(ctx context.Context) (View[int], error) {
			shown = append(shown, out.String())
			out.Reset()
			if len(shown) == 4 {
				width, height = 6, 4
			}
			return read(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		shown = append(shown[1:], out.String())
		at := func(sec int) string {
			return time.Date(2000, 1, 1, 0, 0, sec, 0, time.UTC).Local().Format(time.TimeOnly)
		}
		want := []string{
			"\x1b[2J\x1b[H" + at(0) + ", every 1s\x1b[K\n\x1b[K\nlist 1\x1b[K\nsecond line\x1b[K\n\x1b[J",
			"\x1b[H" + at(1) + ", every 1s\x1b[K\n\x1b[K\nthe stack is gone\x1b[K\n\x1b[J",
			"\x1b[H" + at(2) + ", every 1s\x1b[K\n\x1b[K\nlist 3\x1b[K\nsecond line\x1b[K\n\x1b[J",
			"\x1b[H" + at(3)[:6] + "\x1b[K\n\x1b[K\n(2 mor\x1b[K\n\x1b[J",
		}
		if diff := cmp.Diff(want, shown); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// TestFirst checks that the loop returns the error of the first list.
func TestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		err := watchFor(t, time.Hour, time.Second, lines{&out}, io.Discard, counter(func(int) error { return errGone }))
		if !errors.Is(err, errGone) || out.Len() != 0 {
			t.Errorf("%v, %q", err, out.String())
		}
	})
}

// TestEndedWhileAsking checks that an answer that arrives after the end is not shown.
func TestEndedWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		err := watchFor(t, time.Second, time.Minute, lines{&out}, io.Discard, func(ctx context.Context) (View[int], error) {
			<-ctx.Done()
			return View[int]{}, ctx.Err()
		})
		if err != nil || out.Len() != 0 {
			t.Errorf("%v, %q", err, out.String())
		}
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestReaderGone checks that the loop ends when nobody reads its output any more.
func TestReaderGone(t *testing.T) {
	for _, s := range []screen{lines{brokenPipe{}}, &appender{w: brokenPipe{}}, &terminal{w: brokenPipe{}, size: sizeOf(brokenPipe{})}} {
		synctest.Test(t, func(t *testing.T) {
			if err := watchFor(t, time.Hour, time.Second, s, brokenPipe{}, counter(never)); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%T: %v", s, err)
			}
		})
	}
}

func TestOnce(t *testing.T) {
	for format, want := range map[string]string{cmdutil.FormatTable: "list 1\nsecond line\n", cmdutil.FormatJSON: "[]\n"} {
		streams, _, out, _ := cmdutil.MemoryStreams()
		if err := Loop(t.Context(), streams, Options{}, format, counter(never)); err != nil || out.String() != want {
			t.Errorf("%s: %v, %q", format, err, out.String())
		}
	}
}

// TestLoopJSON runs the loop of a command on the real clock.
func TestLoopJSON(t *testing.T) {
	streams, _, out, _ := cmdutil.MemoryStreams()
	ctx, cancel := context.WithCancel(t.Context())
	read := counter(never)
	n := 0
	err := Loop(ctx, streams, Options{Interval: minInterval}, cmdutil.FormatJSON, func(ctx context.Context) (View[int], error) {
		if n++; n == 3 {
			cancel()
		}
		return read(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(out)
	for i := range 2 {
		var line struct {
			Time time.Time
			Rows []int
		}
		if err := dec.Decode(&line); err != nil || line.Time.IsZero() || len(line.Rows) != i {
			t.Errorf("line %d: %+v, %v", i, line, err)
		}
	}
	if dec.More() {
		t.Error("there are more lines")
	}
}

func TestFlag(t *testing.T) {
	for _, test := range []struct {
		line string
		want time.Duration // -1 means an error
	}{
		{"", 0},
		{"--watch", 2 * time.Second},
		{"-w", 2 * time.Second},
		{"-w 5", 5 * time.Second},
		{"--watch 500ms", 500 * time.Millisecond},
		{"--watch=1m", time.Minute},
		{"-w=0.5", 500 * time.Millisecond},
		{"--watch=10ms", -1},
		{"--watch=-1", -1},
		{"--watch=soon", -1},
		{"--watch soon", -1},
		{"--watch=1s 5s", -1},
		{"--watch 5s 6s", -1},
		{"5s", -1},
	} {
		var o Options
		cmd := &cobra.Command{Use: "list", RunE: func(*cobra.Command, []string) error { return nil }}
		o.AddFlag(cmd)
		cmd.SetArgs(strings.Fields(test.line))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.Execute()
		if (err != nil) != (test.want < 0) || err == nil && o.Interval != test.want {
			t.Errorf("%q: %v, %v", test.line, o.Interval, err)
		}
	}
}
