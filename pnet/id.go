// SPDX-License-Identifier: Apache-2.0

package pnet

import (
	"fmt"
	"os"
	"strings"
)

// MaxIDLen is the length of the longest pnetid in characters.
const MaxIDLen = 16

// An InvalidError says why a pnetid or a table entry is not acceptable. It
// matches [os.ErrInvalid].
type InvalidError struct {
	Value  string // the value that is not acceptable
	Reason string // why, and what is acceptable
}

// Error returns "pnet: invalid VALUE: REASON".
func (e *InvalidError) Error() string {
	return fmt.Sprintf("pnet: invalid %q: %s", e.Value, e.Reason)
}

// Is reports whether target is os.ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == os.ErrInvalid }

// Normalize returns the form in which a pnetid is stored: without spaces at both ends
// and in upper case. It returns an *[InvalidError] if that is not 1 to 16 ASCII letters
// and digits.
func Normalize(id string) (string, error) {
	trimmed := strings.Trim(id, " ")
	switch {
	case trimmed == "":
		return "", &InvalidError{id, "a pnetid has 1 to 16 letters and digits"}
	case len(trimmed) > MaxIDLen:
		return "", &InvalidError{id, fmt.Sprintf("a pnetid has at most 16 characters, not %d", len(trimmed))}
	}
	for _, r := range trimmed {
		if !isAlnum(r) {
			return "", &InvalidError{id, fmt.Sprintf("a pnetid has only letters and digits, not %q", r)}
		}
	}
	return strings.ToUpper(trimmed), nil
}

func isAlnum(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
}
