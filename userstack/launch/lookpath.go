// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"os"
	"syscall"
)

// LookPath checks whether Run could start a program of that name. It returns
// nil, or the *StartError that Run would return.
func LookPath(name string, env []string) error {
	if _, err := lookPath(name, "", env); err != nil {
		return &StartError{Program: name, Err: err}
	}
	return nil
}

// Exec replaces the process by the program, without a launcher: all connections
// use TCP. It returns only on failure, with the *StartError that Run would
// return.
func Exec(argv []string) error {
	path, err := lookPath(argv[0], "", os.Environ())
	if err == nil {
		err = syscall.Exec(path, argv, os.Environ())
	}
	return &StartError{Program: argv[0], Err: err}
}
