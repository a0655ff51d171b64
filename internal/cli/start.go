// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"smcr/internal/cmd"
	"smcr/internal/cmdutil"
	"smcr/internal/run"
	"smcr/internal/smctools"
	"smcr/internal/smctools/smcrd"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// start starts the stack in user space for a command that changes it.
func start(ctx context.Context) error {
	s, _, err := run.Stack(ctx)
	if err != nil {
		return err
	}
	// It stays for a while, and what is changed for longer.
	return s.Close()
}

// legacy runs a command line of smc-tools under our own name; args is argv
// without --backend, whose value is backend. Where there is no stack at all, the
// lines that are ours too get our answer, the same for all, and a change starts
// the stack.
func legacy(ctx context.Context, f *cmdutil.Factory, root *cobra.Command, backend string, args, argv []string) int {
	noun, verb, ok := shared(root, args)
	if !ok || backend != "auto" && backend != "user" {
		return smctools.Run(ctx, f, smctools.SMCR, argv)
	}
	m, err := f.Dial(ctx, backend)
	switch {
	case err == nil:
		_ = m.Close()
	case !errors.Is(err, nl.ErrNoBackend):
		// smc-tools' text for it, or another stack.
	case verb == "" && noun != "info": // our answer to a noun alone is its help
		fmt.Fprintf(f.IO.ErrOut, "smcr: %s\n", cmdutil.Message(err))
		return cmdutil.ExitCode(err)
	default:
		return Main(ctx, f, argv[1:])
	}
	status := smctools.Run(ctx, copyOf(f), smctools.SMCR, argv)
	if noun == "info" {
		given := copyOf(f)
		given.Backend = backend
		cmd.NoteDied(given)
	}
	if status == 0 && noun == "ueid" && verb != "" && verb != "show" {
		noteVolatile(ctx, f, backend)
	}
	return status
}

// noteVolatile says that a change ends with the stack, if that is so of the one
// that smc-tools' programs ask.
func noteVolatile(ctx context.Context, f *cmdutil.Factory, backend string) {
	m, err := f.Dial(ctx, backend)
	if err != nil {
		return
	}
	defer m.Close()
	f.NoteVolatile(ctx, m[len(m)-1]) // the user-space stack comes last
}

// shared returns the noun and the verb, or "", of a command line of smc-tools
// that is one of ours as well: "ueid add X" is, "ueid a X" and "-d ueid" are not.
func shared(root *cobra.Command, args []string) (noun, verb string, ok bool) {
	if len(args) == 0 || args[0] == "help" || smcrd.Object(args[0]) != args[0] || find(root, args[:1]) != args[0] {
		return "", "", false
	}
	if len(args) == 1 {
		return args[0], "", true
	}
	return args[0], args[1], find(root, args[:2]) != ""
}
