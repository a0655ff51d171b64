// SPDX-License-Identifier: Apache-2.0

package cmdtest

import (
	"io"
	"strings"
	"testing"

	"smcr/internal/cmdutil"

	"github.com/spf13/cobra"
)

// A Flags test gives command lines to a command with options of type O.
type Flags[O any] struct {
	// New makes the command. The command calls the function instead of running.
	New func(*cmdutil.Factory, func(*O) error) *cobra.Command
	// Good has command lines, with blanks between their words, that must be accepted. The
	// function reports whether the options are right.
	Good map[string]func(*O) bool
	// Bad has command lines that must be refused.
	Bad []string
}

// Run runs the test.
func (f Flags[O]) Run(t *testing.T) {
	t.Helper()
	for line, ok := range f.Good {
		if o, err := f.parse(line); err != nil || o == nil || !ok(o) {
			t.Errorf("%q: %+v, %v", line, o, err)
		}
	}
	for _, line := range f.Bad {
		if o, err := f.parse(line); err == nil || o != nil {
			t.Errorf("%q: no error", line)
		}
	}
}

func (f Flags[O]) parse(line string) (got *O, err error) {
	streams, _, _, _ := cmdutil.MemoryStreams()
	cmd := f.New(&cmdutil.Factory{IO: streams}, func(o *O) error {
		got = o
		return nil
	})
	cmd.SetArgs(strings.Fields(line))
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	err = cmd.Execute()
	return got, err
}
