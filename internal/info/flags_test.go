// SPDX-License-Identifier: Apache-2.0

package info

import (
	"strings"
	"testing"

	"smcr/internal/cmdutil/cmdtest"
	"smcr/nl"
)

func TestFlags(t *testing.T) {
	cmdtest.Flags[options]{
		New: newCmdInfo,
		Good: map[string]func(*options) bool{
			"":        func(o *options) bool { return o.Format == "table" },
			"-o json": func(o *options) bool { return o.Format == "json" },
		},
		Bad: []string{"-o wide", "extra"},
	}.Run(t)
}

// TestEIDs: what is said of enterprise IDs tells whether version 2 is spoken.
func TestEIDs(t *testing.T) {
	for _, tt := range []struct {
		name string
		info nl.SysInfo
		eids int
		want []string
	}{
		{"None", nl.SysInfo{Version: 2, SMCRv2: true}, 0, []string{
			"SMC-R Features:   v1 v2", "SMC-R v2 EIDs:    none: version 2 is not used, see 'smcr ueid add'",
		}},
		{"Two", nl.SysInfo{Version: 2, SMCRv2: true}, 2, []string{"SMC-R Features:   v1 v2", "SMC-R v2 EIDs:    2"}},
		{"Version1", nl.SysInfo{Version: 1}, 0, []string{"SMC-R Features:   v1"}},
	} {
		var b strings.Builder
		describe(&b, nl.Row[nl.SysInfo]{Stack: "user", Value: tt.info}, tt.eids, 1)
		var got []string
		for line := range strings.Lines(b.String()) {
			if strings.HasPrefix(line, "SMC-R") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
