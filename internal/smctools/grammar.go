// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"slices"
	"strings"

	"smcr/internal/smctools/smcrd"
	"smcr/internal/smctools/tool"
)

// CompatEnv is the environment variable that, when it is "strict", makes smcr
// nothing but the smcr of smc-tools.
const CompatEnv = "SMCR_COMPAT"

// commandWords are the words that smc-tools takes after an object. All others
// that a command of ours has are ours.
var commandWords = []string{"show", "link-show", "all", "ibdev", "netdev", "reset", "json", "add", "del", "flush", "enable", "disable", "help"}

// IsLegacy reports whether the arguments of smcr are a command line of
// smc-tools, not of our own grammar:
//
//   - options of smc-tools before an object, and words after "--", are theirs;
//     --help and --version are ours;
//   - the first word is theirs when it abbreviates one of their objects and is
//     not the name of a command that only we have, as link is; seid, which the
//     smcr of smc-tools refuses, is ours;
//   - after the object, one of our verbs or a flag makes the line ours, and so
//     does a word that smc-tools does not know: our grammar says what is wrong
//     with it, where theirs prints a usage, or an empty list.
//
// The function ours returns the name of the command of our own that words lead
// to, which may be aliases, or "".
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
		return false // smc-tools has it for smcd only
	case object == "help" && len(args) > 1:
		return false // help on a command
	}
	rest := args[1:]
	if len(rest) > 0 && !slices.Contains(commandWords, rest[0]) && ours(object, rest[0]) != "" {
		return false
	}
	if object == "ueid" && len(rest) == 2 && (tool.IsPrefix(rest[0], "add") || tool.IsPrefix(rest[0], "del")) {
		// The next word is an enterprise ID, whatever it begins with.
		return rest[1] != "--help" && rest[1] != "-h"
	}
	if slices.ContainsFunc(rest, func(word string) bool { return strings.HasPrefix(word, "-") }) {
		return false
	}
	return smcrd.Knows(object, rest)
}
