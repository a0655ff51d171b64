// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"smcr/internal/cmdutil"
)

// Main runs the program with its arguments, without the name of the program, and
// returns its exit status.
func Main(ctx context.Context, f *cmdutil.Factory, args []string) int {
	root := NewRoot(f)
	args, err := normalize(root, args)
	if err == nil {
		root.SetArgs(args)
		err = root.ExecuteContext(ctx)
	}
	if text := cmdutil.Message(err); text != "" {
		name := "smcr"
		var said *cmdutil.Error
		if errors.As(err, &said) && said.Command != "" {
			name = said.Command
		}
		fmt.Fprintf(f.IO.ErrOut, "%s: %s\n", name, text)
	}
	return cmdutil.ExitCode(err)
}
