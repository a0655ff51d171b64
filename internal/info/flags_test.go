// SPDX-License-Identifier: Apache-2.0

package info

import (
	"testing"

	"smcr/internal/cmdutil/cmdtest"
)

func TestFlags(t *testing.T) {
	cmdtest.Flags[options]{
		New: newCmdInfo,
		Good: map[string]func(*options) bool{
			"":        func(o *options) bool { return o.format == "table" },
			"-o json": func(o *options) bool { return o.format == "json" },
		},
		Bad: []string{"-o wide", "extra"},
	}.Run(t)
}
