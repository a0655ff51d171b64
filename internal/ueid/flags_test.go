// SPDX-License-Identifier: Apache-2.0

package ueid

import (
	"io"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/iostreams"
)

func TestFlags(t *testing.T) {
	streams, _, _, _ := iostreams.Test()
	f := &cmdutil.Factory{IO: streams}
	for line, want := range map[string]string{"A.B-1": "A.B-1", "lower": "", "": "", "A B": "", ".A": "", "A..B": ""} {
		got := ""
		cmd := newCmdChange(f, func(o *changeOptions) error {
			got = o.eid
			return nil
		}, "add EID", "", nil)
		cmd.SetArgs(strings.Fields(line))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", line, got, err)
		}
	}
	format := ""
	cmd := newCmdList(f, func(o *listOptions) error {
		format = o.format
		return nil
	})
	cmd.SetArgs([]string{"-o", "json"})
	if err := cmd.Execute(); err != nil || format != "json" {
		t.Errorf("list -o json: %q, %v", format, err)
	}
}
