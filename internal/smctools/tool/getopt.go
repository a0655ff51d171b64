// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"fmt"
	"strings"
)

// A LongOption is an option that begins with two dashes.
type LongOption struct {
	Name  string
	Value bool // it takes a value
	Short byte // what it stands for
}

// A Getopt reads a command line as getopt_long of the C library does: options
// and other words in any order, "--" ends the options, long options may be
// abbreviated.
type Getopt struct {
	Program string // name in messages
	Short   string // letters, each with ":" after it when it takes a value
	Long    []LongOption

	// Ordered ends the options at the first word that is none.
	Ordered bool

	args    []string
	cluster string // letters left of the current word
	rest    []string
}

// Parse sets the words to read.
func (g *Getopt) Parse(args []string) { g.args, g.cluster, g.rest = args, "", nil }

// Next returns the next option and its value. The option is 0 at the end. The
// message is that of the C library, without a line end, when the command line is
// wrong; reading may go on then.
func (g *Getopt) Next() (opt byte, value, message string) {
	for g.cluster == "" {
		if len(g.args) == 0 {
			return 0, "", ""
		}
		word := g.args[0]
		switch {
		case word == "--":
			g.rest = append(g.rest, g.args[1:]...)
			g.args = nil
		case len(word) < 2 || word[0] != '-':
			if g.Ordered {
				g.rest, g.args = append(g.rest, g.args...), nil
				continue
			}
			g.rest = append(g.rest, word)
			g.args = g.args[1:]
		case strings.HasPrefix(word, "--"):
			g.args = g.args[1:]
			return g.long(word[2:])
		default:
			g.cluster = word[1:]
			g.args = g.args[1:]
		}
	}
	c := g.cluster[0]
	g.cluster = g.cluster[1:]
	i := strings.IndexByte(g.Short, c)
	if i < 0 || c == ':' {
		return '?', string(c), fmt.Sprintf("%s: invalid option -- '%c'", g.Program, c)
	}
	if i+1 == len(g.Short) || g.Short[i+1] != ':' {
		return c, "", ""
	}
	value, g.cluster = g.cluster, ""
	if value == "" {
		if len(g.args) == 0 {
			return '?', string(c), fmt.Sprintf("%s: option requires an argument -- '%c'", g.Program, c)
		}
		value, g.args = g.args[0], g.args[1:]
	}
	return c, value, ""
}

// long reads a long option.
func (g *Getopt) long(word string) (opt byte, value, message string) {
	name, value, hasValue := strings.Cut(word, "=")
	var found []LongOption
	for _, o := range g.Long {
		if o.Name == name {
			found = []LongOption{o}
			break
		}
		if strings.HasPrefix(o.Name, name) {
			found = append(found, o)
		}
	}
	switch {
	case len(found) == 0:
		return '?', word, fmt.Sprintf("%s: unrecognized option '--%s'", g.Program, word)
	case len(found) > 1:
		var b strings.Builder
		for _, o := range found {
			fmt.Fprintf(&b, " '--%s'", o.Name)
		}
		return '?', word, fmt.Sprintf("%s: option '--%s' is ambiguous; possibilities:%s", g.Program, word, b.String())
	}
	o := found[0]
	switch {
	case !o.Value && hasValue:
		return '?', word, fmt.Sprintf("%s: option '--%s' doesn't allow an argument", g.Program, o.Name)
	case o.Value && !hasValue:
		if len(g.args) == 0 {
			return '?', word, fmt.Sprintf("%s: option '--%s' requires an argument", g.Program, o.Name)
		}
		value, g.args = g.args[0], g.args[1:]
	}
	return o.Short, value, ""
}

// Rest returns the words that are no options, once Next has returned 0.
func (g *Getopt) Rest() []string { return g.rest }

// An Option is an option that was given.
type Option struct {
	Letter byte // or the Short of a long option
	Value  string
}

// All returns all options and the other words. Every mistake is reported to
// wrong, as the program getopt of util-linux does, and makes ok false.
func (g *Getopt) All(args []string, wrong func(message string)) (opts []Option, rest []string, ok bool) {
	g.Parse(args)
	ok = true
	for {
		opt, value, message := g.Next()
		switch opt {
		case 0:
			return opts, g.Rest(), ok
		case '?':
			wrong(message)
			ok = false
		default:
			opts = append(opts, Option{opt, value})
		}
	}
}
