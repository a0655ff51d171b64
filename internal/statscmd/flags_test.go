// SPDX-License-Identifier: Apache-2.0

package statscmd

import (
	"testing"

	"smcr/internal/testing/cmdtest"
)

func TestFlags(t *testing.T) {
	cmdtest.Flags[showOptions]{
		New: newCmdShow,
		Good: map[string]func(*showOptions) bool{
			"":                  func(o *showOptions) bool { return o.Format == "table" && !o.details },
			"-d":                func(o *showOptions) bool { return o.details },
			"--details -o json": func(o *showOptions) bool { return o.details && o.Format == "json" },
		},
		Bad: []string{"-o wide", "extra"},
	}.Run(t)
}
