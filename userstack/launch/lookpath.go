// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"os"
	"syscall"
)

// LookPath finds out whether Run could start a program of that name: nil, or
// the *StartError that Run would return.
func LookPath(name string, env []string) error {
	if _, err := lookPath(name, "", env); err != nil {
		return &StartError{Program: name, Err: err}
	}
	return nil
}

// Exec becomes the program, with nothing of the launcher left: its connections
// are native. It returns only the *StartError that Run would return.
func Exec(argv []string) error {
	path, err := lookPath(argv[0], "", os.Environ())
	if err == nil {
		err = syscall.Exec(path, argv, os.Environ())
	}
	return &StartError{Program: argv[0], Err: err}
}
