// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/testing/cmdtest"

	"github.com/spf13/cobra"
)

func TestUEIDFlags(t *testing.T) {
	cmdtest.Flags[ueidOptions]{
		New: func(f *cmdutil.Factory, runF func(*ueidOptions) error) *cobra.Command {
			return newUEIDChange(f, runF, "add EID", "", nil)
		},
		Good: map[string]func(*ueidOptions) bool{
			"A.B-1": func(o *ueidOptions) bool { return o.eid == "A.B-1" },
		},
		Bad: []string{"lower", "", "A B", ".A", "A..B"},
	}.Run(t)
}
