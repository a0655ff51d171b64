// SPDX-License-Identifier: Apache-2.0

package statscmd

import (
	"io"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/iostreams"
)

func TestFlags(t *testing.T) {
	run := func(line string) (*showOptions, error) {
		streams, _, _, _ := iostreams.Test()
		var got *showOptions
		cmd := newCmdShow(&cmdutil.Factory{IO: streams}, func(o *showOptions) error {
			got = o
			return nil
		})
		cmd.SetArgs(strings.Fields(line))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.Execute()
		return got, err
	}
	for _, test := range []struct {
		line string
		ok   func(*showOptions) bool
	}{
		{"", func(o *showOptions) bool { return o.format == "table" && !o.details }},
		{"-d", func(o *showOptions) bool { return o.details }},
		{"--details -o json", func(o *showOptions) bool { return o.details && o.format == "json" }},
	} {
		o, err := run(test.line)
		if err != nil || o == nil || !test.ok(o) {
			t.Errorf("%q: %+v, %v", test.line, o, err)
		}
	}
	for _, line := range []string{"-o wide", "extra"} {
		if o, err := run(line); err == nil || o != nil {
			t.Errorf("%q: no error", line)
		}
	}
}
