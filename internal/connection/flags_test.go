// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"io"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/iostreams"
)

func TestFlags(t *testing.T) {
	run := func(line string) (*listOptions, error) {
		streams, _, _, _ := iostreams.Test()
		var got *listOptions
		cmd := newCmdList(&cmdutil.Factory{IO: streams}, func(o *listOptions) error {
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
		ok   func(*listOptions) bool
	}{
		{"", func(o *listOptions) bool { return o.format == "table" && !o.all }},
		{"-a -o wide", func(o *listOptions) bool { return o.format == "wide" && o.all }},
		{"--all", func(o *listOptions) bool { return o.all }},
	} {
		o, err := run(test.line)
		if err != nil || o == nil || !test.ok(o) {
			t.Errorf("%q: %+v, %v", test.line, o, err)
		}
	}
	for _, line := range []string{"-o xml", "extra", "--nope"} {
		if o, err := run(line); err == nil || o != nil {
			t.Errorf("%q: no error", line)
		}
	}
}
