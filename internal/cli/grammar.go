// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/smcrd"
	"smcr/internal/typo"
	"smcr/internal/watch"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// synonyms are the words of ip, rdma, systemctl and others for verbs that we
// have: they mean the same after every noun.
var synonyms = map[string][]string{
	"list":    {"show", "ls"},
	"show":    {"list", "ls"},
	"add":     {"create", "new"},
	"del":     {"delete", "rm", "remove"},
	"flush":   {"clear"},
	"enable":  {"on"},
	"disable": {"off"},
}

// plurals are other words for nouns.
var plurals = map[string][]string{
	"connection": {"connections", "conns"},
	"device":     {"devices", "devs"},
	"link":       {"links"},
	"linkgroup":  {"linkgroups", "lgrs", "lg"},
	"pnet":       {"pnets", "pnetid", "pnetids"},
	"program":    {"programs"},
	"rnics":      {"rnic"},
	"service":    {"services"},
	"stats":      {"statistics"},
	"ueid":       {"ueids", "eid", "eids"},
}

// otherWords are what smc-tools takes after objects besides verbs of ours.
var otherWords = map[string]string{
	"device":    "all ibdev netdev",
	"linkgroup": "link-show all ibdev netdev",
	"stats":     "reset json",
}

// addWords lets all nouns understand the same words.
func addWords(root *cobra.Command) {
	add := func(cmd *cobra.Command, words []string) {
		for _, w := range words {
			if w != cmd.Name() && !cmd.HasAlias(w) && find(cmd.Parent(), []string{w}) == "" {
				cmd.Aliases = append(cmd.Aliases, w)
			}
		}
	}
	for _, noun := range root.Commands() {
		add(noun, plurals[noun.Name()])
		for _, verb := range noun.Commands() {
			add(verb, synonyms[verb.Name()])
		}
		if w := otherWords[noun.Name()]; w != "" {
			noun.Annotations = map[string]string{cmdutil.OtherWords: w}
		}
	}
	root.Annotations = map[string]string{cmdutil.OtherWords: "help version"}
}

// normalize returns a command line of our grammar in the form that the command
// tree understands:
//
//   - a noun may be abbreviated as smc-tools' objects are;
//   - a noun without a verb lists: list or show stands for it, with the flags;
//   - info, rnics and topology, which do nothing else, may have that verb;
//   - help may stand behind a noun, and version is --version;
//   - an interval may stand apart from --watch.
//
// What it cannot understand it leaves to the commands, except for words that are
// none of theirs, which it refuses.
func normalize(root *cobra.Command, args []string) ([]string, error) {
	at := firstWord(root.PersistentFlags(), args)
	if at < 0 {
		return args, nil
	}
	if option := slices.IndexFunc(args[:at], isToolsOption); option >= 0 {
		if _, err := normalize(root, args[at:]); err != nil {
			return nil, err
		}
		return nil, cmdutil.UsageError("%s is only for command lines of smc-tools, such as 'smcr %[1]s linkgroup show'", args[option])
	}
	word := args[at]
	switch {
	case strings.HasPrefix(word, "__"), word == "help", word == "completion":
		return args, nil // cobra's own
	case word == "version":
		return []string{"--version"}, nil
	case find(root, []string{word}) == "":
		object := smcrd.Object(word)
		if object == "" || object == "help" {
			return args, nil
		}
		args = slices.Clone(args)
		args[at] = object
	}
	cmd, rest, err := root.Find(args)
	if err != nil || cmd == root {
		return args, nil
	}
	verb := cmd
	switch {
	case cmd.HasSubCommands():
		if verb = lister(cmd); verb == nil {
			return args, nil
		}
		if rest, err = verbless(cmd, verb, rest); err != nil {
			return nil, err
		}
		if cmd, _, err = root.Find(append(path(cmd), rest...)); err != nil {
			return args, nil
		}
		args = append(path(verb.Parent()), rest...)
	case cmd.Parent() == root && cmd.Flags().Lookup("watch") != nil:
		// The words for a list after what is nothing but a list.
		i := firstWord(cmd.Flags(), rest)
		if i < 0 || isInterval(rest, i) {
			break
		}
		words := append([]string{"show", "help"}, synonyms["show"]...)
		if w := rest[i]; w == "help" {
			rest = []string{"--help"}
		} else if slices.Contains(words, w) {
			rest = slices.Delete(slices.Clone(rest), i, i+1)
		} else if near := typo.Nearest(w, words); near != "" {
			return nil, cmdutil.UsageError("unknown command %q for %q: did you mean %q?", w, cmd.CommandPath(), near)
		} else {
			return nil, cmdutil.Unknown(cmd, w)
		}
		args = append(path(cmd), rest...)
	}
	if cmd.Flags().Lookup("watch") != nil {
		args = joinIntervals(args)
	}
	return args, nil
}

// verbless returns the words after a noun with a verb at their beginning.
func verbless(noun, list *cobra.Command, rest []string) ([]string, error) {
	if slices.ContainsFunc(rest, func(w string) bool { return w == "-h" || w == "--help" }) {
		return rest, nil
	}
	i := firstWord(list.Flags(), rest)
	switch {
	case i < 0, isInterval(rest, i), takesIDs(list) && smcrd.IsID(rest[i]):
		return append([]string{list.Name()}, rest...), nil
	case find(noun, []string{rest[i]}) != "":
		// The verb comes behind a flag that looked as if it took a value.
		return slices.Concat([]string{rest[i]}, rest[:i], rest[i+1:]), nil
	case rest[i] == "help":
		return []string{"--help"}, nil
	}
	return nil, cmdutil.Unknown(noun, rest[i])
}

// lister returns the verb that lists what a noun is about, or nil.
func lister(noun *cobra.Command) *cobra.Command {
	for _, name := range []string{"list", "show"} {
		for _, c := range noun.Commands() {
			if c.Name() == name {
				return c
			}
		}
	}
	return nil
}

// takesIDs reports whether a verb takes identifiers of link groups or links.
func takesIDs(verb *cobra.Command) bool { return verb.Use == "list [ID...]" && !isConnection(verb) }

func isConnection(verb *cobra.Command) bool { return verb.Parent().Name() == "connection" }

// path returns the words that lead to a command.
func path(cmd *cobra.Command) []string { return strings.Fields(cmd.CommandPath())[1:] }

// isToolsOption reports whether a word is an option of smc-tools, and none of
// ours.
func isToolsOption(word string) bool {
	return strings.HasPrefix(word, "-") && word != "--help" && word != "--version" && smcrd.KnowsOption(word)
}

// firstWord returns the place of the first word that is neither one of flags nor
// the value of one, or -1. What stands behind "--" is left alone.
func firstWord(flags *pflag.FlagSet, args []string) int {
	for i := 0; i < len(args); i++ {
		w := args[i]
		var f *pflag.Flag
		switch {
		case w == "--":
			return -1
		case w == "-" || !strings.HasPrefix(w, "-"):
			return i
		case strings.Contains(w, "="):
		case strings.HasPrefix(w, "--"):
			f = lookup(flags, w[2:])
		default:
			f = flags.ShorthandLookup(w[len(w)-1:])
		}
		if f != nil && f.NoOptDefVal == "" {
			i++ // its value
		}
	}
	return -1
}

// lookup finds a flag; --backend is one of every command.
func lookup(flags *pflag.FlagSet, name string) *pflag.Flag {
	if f := flags.Lookup(name); f != nil || name != "backend" {
		return f
	}
	return &pflag.Flag{Name: name}
}

// isWatch reports whether a word is --watch without its interval, alone or behind
// other letters.
func isWatch(w string) bool {
	return w == "--watch" || len(w) > 1 && w[0] == '-' && w[1] != '-' && strings.HasSuffix(w, "w") && !strings.Contains(w, "=")
}

// isInterval reports whether word i is the interval of a --watch before it.
func isInterval(args []string, i int) bool {
	return i > 0 && isWatch(args[i-1]) && watch.IsInterval(args[i])
}

// joinIntervals makes one word of --watch and the interval that follows.
func joinIntervals(args []string) []string {
	var out []string
	for i, w := range args {
		if isInterval(args, i) {
			out[len(out)-1] += "=" + w
			continue
		}
		out = append(out, w)
	}
	return out
}
