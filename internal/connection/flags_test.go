// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"testing"

	"smcr/internal/testing/cmdtest"
)

func TestFlags(t *testing.T) {
	cmdtest.Flags[listOptions]{
		New: newCmdList,
		Good: map[string]func(*listOptions) bool{
			"":           func(o *listOptions) bool { return o.Format == "table" && !o.all },
			"-a -o wide": func(o *listOptions) bool { return o.Format == "wide" && o.all },
			"--all":      func(o *listOptions) bool { return o.all },
		},
		Bad: []string{"-o xml", "extra", "--nope"},
	}.Run(t)
}
