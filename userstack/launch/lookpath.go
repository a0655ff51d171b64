// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

// LookPath finds out whether Run could start a program of that name: nil, or
// the *StartError that Run would return.
func LookPath(name string, env []string) error {
	if _, err := lookPath(name, "", env); err != nil {
		return &StartError{Program: name, Err: err}
	}
	return nil
}
