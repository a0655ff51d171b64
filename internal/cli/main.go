// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"smcr/internal/cmdutil"
	"smcr/userstack/broker"
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
	if text := message(err); text != "" {
		name := "smcr"
		var said *cmdutil.Error
		if errors.As(err, &said) && said.Command != "" {
			name = said.Command
		}
		fmt.Fprintf(f.IO.ErrOut, "%s: %s\n", name, text)
	}
	return cmdutil.ExitCode(err)
}

// message returns what the user reads about an error, or "".
func message(err error) string {
	var status *cmdutil.StatusError
	var said *cmdutil.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &status):
		return message(status.Err)
	case errors.As(err, &said):
		return broker.Plain(said.Text)
	}
	return broker.Plain(err.Error())
}
