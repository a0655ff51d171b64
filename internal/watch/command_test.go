// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/iostreams"
	"smcr/nl"
)

func TestCommand(t *testing.T) {
	run := func(line string) (string, error) {
		streams, _, out, _ := iostreams.Test()
		f := &cmdutil.Factory{IO: streams, Dial: func(context.Context, string) (nl.Multi, error) { return nil, nil }}
		cmd := Command(f, "show", "list", "", func(context.Context, nl.Multi) (View[int], error) {
			text := func(w io.Writer) error { _, err := fmt.Fprintln(w, "text"); return err }
			return View[int]{Rows: []int{7}, Text: text}, nil
		})
		cmd.SetArgs(strings.Fields(line))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.Execute()
		return out.String(), err
	}
	for line, want := range map[string]string{"": "text\n", "-o json": "[\n  7\n]\n", "--output table": "text\n"} {
		if got, err := run(line); err != nil || got != want {
			t.Errorf("%q prints %q, %v", line, got, err)
		}
	}
	for _, line := range []string{"extra", "-o wide", "--watch=1ms"} {
		if got, err := run(line); err == nil || got != "" {
			t.Errorf("%q: %q, no error", line, got)
		}
	}
}
