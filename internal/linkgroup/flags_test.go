// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"testing"

	"smcr/internal/testing/cmdtest"
)

func TestFlags(t *testing.T) {
	cmdtest.Flags[listOptions]{
		New: newCmdList,
		Good: map[string]func(*listOptions) bool{
			"":              func(o *listOptions) bool { return o.Format == "table" },
			"-o wide":       func(o *listOptions) bool { return o.Format == "wide" },
			"--output=json": func(o *listOptions) bool { return o.Format == "json" },
		},
		Bad: []string{"-o xml", "extra", "--nope"},
	}.Run(t)
}
