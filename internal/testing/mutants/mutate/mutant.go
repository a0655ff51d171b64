// SPDX-License-Identifier: Apache-2.0

package mutate

import (
	"fmt"
	"strings"
)

// A Mutant is one change of the source.
type Mutant struct {
	ID      int    // what SMCR_MUTANT selects, from 1 on
	Package string // import path
	File    string // base name
	Line    int
	Func    string // Function or Type.Method, "" for the initial value of a variable
	Change  string // what was changed to what, in one line; unique within Func
}

// String returns the place and the change.
func (m Mutant) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", m.File, m.Line, m.Func, m.Change)
}

// Removed is the change that lets a function return zero values at once.
const Removed = "body removed"

// RemovedMethods is the change that removes the bodies of all methods of a type.
const RemovedMethods = "bodies of all methods removed"

// maxText is how much of the source a change quotes, in bytes.
const maxText = 100

// oneLine returns source text without line breaks, shortened.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// A Set says which changes to make.
type Set int

const (
	// All changes conditions, operators, constants, statements and functions.
	All Set = iota
	// Bodies only removes the bodies of functions, and of all methods of a type.
	Bodies
)
