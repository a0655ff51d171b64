// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"smcr/internal/plain"
	"smcr/internal/printable"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// Exit statuses of smcr.
const (
	ExitOK         = 0 // done; also: nothing found in a list
	ExitError      = 1 // any other error
	ExitUsage      = 2 // the command line or a value in it is wrong
	ExitNotFound   = 3 // what was named does not exist
	ExitPermission = 4 // a privilege is missing
	ExitNoBackend  = 5 // there is no such stack
)

// ErrUsage is matched by the errors of a wrong command line.
var ErrUsage = errors.New("usage")

// An Error is an error with the text that the user reads. The error it wraps
// decides the exit status.
type Error struct {
	// Command is what the text begins with, such as "smcr check". Empty means
	// the name of the program.
	Command string
	Text    string
	More    []string // further lines
	Err     error
}

// Error returns the text.
func (e *Error) Error() string { return strings.Join(e.Lines(), "\n") }

// Lines implements what printable.Lines asks for.
func (e *Error) Lines() []string { return append([]string{e.Text}, e.More...) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Say wraps err into an [Error] with a text.
func Say(err error, format string, args ...any) error {
	return &Error{Text: fmt.Sprintf(format, args...), Err: err}
}

// UsageError returns an error of the command line.
func UsageError(format string, args ...any) error { return Say(ErrUsage, format, args...) }

// CommandError returns an error of the command line of one command.
func CommandError(cmd *cobra.Command, format string, args ...any) error {
	return &Error{Command: cmd.CommandPath(), Text: fmt.Sprintf(format, args...), Err: ErrUsage}
}

// A StatusError ends the program with the exit status Code, which is that of a program
// that smcr started. Err is printed unless it is nil.
type StatusError struct {
	Code int
	Err  error
}

// Error returns the text of the error, or the status.
func (e *StatusError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *StatusError) Unwrap() error { return e.Err }

// ExitCode returns the exit status that an error stands for.
func ExitCode(err error) int {
	var exit *StatusError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.Code
	case errors.Is(err, ErrUsage), errors.Is(err, os.ErrInvalid):
		return ExitUsage
	case errors.Is(err, nl.ErrNoBackend):
		return ExitNoBackend
	case errors.Is(err, os.ErrPermission):
		return ExitPermission
	case errors.Is(err, os.ErrNotExist):
		return ExitNotFound
	}
	return ExitError
}

// Message returns the text that a user reads about an error, without the names of Go
// packages and without control characters, or "" if there is nothing to say. It has a line for
// each of the errors that [errors.Join] has joined. A name in an error, such as that of a file,
// adds no line.
func Message(err error) string {
	var status *StatusError
	var said *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &status):
		return Message(status.Err)
	case errors.As(err, &said):
		err = said
	}
	all := printable.Lines(err)
	for i, l := range all {
		all[i] = printable.Line(plain.Text(l))
	}
	return strings.Join(all, "\n")
}

// NoArgs refuses arguments, and names the first.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return CommandError(cmd, "unexpected argument %q", args[0])
	}
	return nil
}

// OneArg requires exactly one argument. Its name in the usage text is what, such as
// HOST.
func OneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return CommandError(cmd, "%s is required", what)
		case 1:
			return nil
		}
		return CommandError(cmd, "expected one %s, unexpected argument %q", what, args[1])
	}
}

// Group makes a command that has subcommands only: without one it prints its
// help, with an unknown one it fails.
func Group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return Unknown(cmd, args[0])
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}
