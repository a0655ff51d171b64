// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrUnavailable is matched by errors that say why this machine cannot
	// boot guests: a program is missing, or the kernel cannot be had. The text
	// says what to do.
	ErrUnavailable = errors.New("guest: not possible here")

	// ErrClosed is matched by the errors of a guest that was closed or ended.
	ErrClosed = errors.New("guest: guest is gone")

	// ErrLimit is matched by the errors of a guest that ran beyond its time.
	ErrLimit = errors.New("guest: time limit reached")
)

// An ExitError says that a command in a guest failed.
type ExitError struct {
	Argv   []string
	Status int    // exit status, or -1
	Signal int    // the signal that ended it, or 0
	Reason string // why it could not be started, or ""
	Stderr string // the end of what it wrote
}

// Error returns the command, how it ended and what it said.
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
