// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"slices"
	"strings"

	"smcr/internal/smctools/smcrd"
	"smcr/internal/smctools/tool"
)

// CompatEnv is the environment variable that, with the value "strict", makes smcr
// accept only the command lines of smc-tools.
const CompatEnv = "SMCR_COMPAT"

// commandWords are the words that smc-tools accepts after an object. All other words
// of our commands select our grammar.
var commandWords = []string{"show", "link-show", "all", "ibdev", "netdev", "reset", "json", "add", "del", "flush", "enable", "disable", "help"}

// IsLegacy reports whether the arguments of smcr are a command line of
// smc-tools, not of our own grammar:
//
//   - Options of smc-tools before an object, and words after "--", belong to
//     smc-tools. --help and --version are ours.
//   - The first word belongs to smc-tools if it abbreviates one of its objects and is
//     not the name of a command that only we have, such as link. seid, which the smcr
//     of smc-tools refuses, is ours.
//   - After the object, one of our verbs or a flag makes the line ours. So does a word
//     that smc-tools does not know: our grammar reports the error, but smc-tools prints
//     a usage, or an empty list.
//
// The function ours returns the name of our command for words, which may be aliases,
// or "".
func IsLegacy(args []string, ours func(words ...string) string) bool {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch {
		case args[0] == "--help", args[0] == "--version":
			return false
		case args[0] == "--":
			return true
		case !smcrd.KnowsOption(args[0]):
			return true // an error in both grammars
		}
		if strings.HasPrefix(args[0], "-v") || strings.HasPrefix(args[0], "-h") {
			return true
		}
		args = args[1:]
		if len(args) == 0 {
			return true
		}
	}
	if len(args) == 0 {
		return false
	}
	object := smcrd.Object(args[0])
	switch {
	case object == "":
		return false
	case object != args[0] && ours(args[0]) != "" && ours(args[0]) != object:
		return false // link, not an abbreviation of linkgroup
	case object == "seid" && ours("seid") != "":
		return false // in smc-tools, only smcd has it
	case object == "help" && len(args) > 1:
		return false // help on a command
	}
	rest := args[1:]
	if len(rest) > 0 && !slices.Contains(commandWords, rest[0]) && ours(object, rest[0]) != "" {
		return false
	}
	if object == "ueid" && len(rest) == 2 && (tool.IsPrefix(rest[0], "add") || tool.IsPrefix(rest[0], "del")) {
		// The next word is an enterprise ID, even if it begins with a dash.
		return rest[1] != "--help" && rest[1] != "-h"
	}
	if slices.ContainsFunc(rest, func(word string) bool { return strings.HasPrefix(word, "-") }) {
		return false
	}
	return smcrd.Knows(object, rest)
}
