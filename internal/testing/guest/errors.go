// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrUnavailable means that this machine cannot boot guests: a program or the kernel
	// is missing. The text of the error that wraps it says what to do.
	ErrUnavailable = errors.New("guest: not possible here")

	// ErrClosed means that the guest was closed or has ended.
	ErrClosed = errors.New("guest: guest is gone")

	// ErrLimit means that the guest reached its time limit.
	ErrLimit = errors.New("guest: time limit reached")
)

// An ExitError says that a command in a guest failed.
type ExitError struct {
	Argv   []string
	Status int    // exit status, or -1
	Signal int    // the signal that ended it, or 0
	Reason string // why it could not be started, or ""
	Stderr string // the end of its standard error
}

// Error returns the command, how it ended and the end of its standard error.
func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit status %d", e.Status)
	switch {
	case e.Reason != "":
		how = e.Reason
	case e.Signal != 0:
		how = fmt.Sprintf("ended by signal %d", e.Signal)
	}
	text := fmt.Sprintf("guest: %s: %s", strings.Join(e.Argv, " "), how)
	if said := strings.TrimSpace(e.Stderr); said != "" {
		text += ": " + said
	}
	return text
}

func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, fmt.Errorf(format, args...))
}
