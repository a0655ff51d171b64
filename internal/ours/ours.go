// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"path"
	"slices"
	"strings"
)

// program is the name of the program, wherever it is installed.
const program = "smcr"

// commands are those whose processes live long enough to have sockets.
var commands = []string{"serve", "exporter", "check", "run", "top", "trace", "verbs"}

// Process returns which part of smcr a process is, such as "smcr exporter", or "" if it is none. comm is its name, as the kernel has it, and
// argv its command line, which may be empty. What 'smcr run' has started is a process of another program.
func Process(comm string, argv []string) string {
	if comm != program || len(argv) == 0 || path.Base(argv[0]) != program {
		return ""
	}
	for _, word := range argv[1:] {
		if slices.Contains(commands, word) {
			return program + " " + word
		}
	}
	return program
}

// units are the names of the units of smcr, without a suffix, and without an instance.
var units = []string{"smcr", "smcr-run", "smcr-apply", "smcr-exporter"}

// Unit reports whether a unit is one of smcr by its name: a service or a socket unit, an instance, or the slice of the instances.
func Unit(name string) bool {
	if name == "system-smcr.slice" {
		return true
	}
	name, kind := strings.TrimSuffix(name, path.Ext(name)), path.Ext(name)
	name, _, _ = strings.Cut(name, "@")
	return (kind == ".service" || kind == ".socket") && slices.Contains(units, name)
}

// Runs reports whether a unit is one of smcr by its name and the programs that it starts: one that an administrator has made.
func Runs(unit string, programs []string) bool {
	return strings.HasPrefix(unit, program) && slices.ContainsFunc(programs, func(p string) bool { return path.Base(p) == program })
}
