// SPDX-License-Identifier: Apache-2.0

package ueid

import (
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/testing/cmdtest"

	"github.com/spf13/cobra"
)

func TestFlags(t *testing.T) {
	cmdtest.Flags[changeOptions]{
		New: func(f *cmdutil.Factory, runF func(*changeOptions) error) *cobra.Command {
			return newCmdChange(f, runF, "add EID", "", nil)
		},
		Good: map[string]func(*changeOptions) bool{
			"A.B-1": func(o *changeOptions) bool { return o.eid == "A.B-1" },
		},
		Bad: []string{"lower", "", "A B", ".A", "A..B"},
	}.Run(t)
}
