// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"smcr/internal/cmdutil"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commandPage returns the page of a command, with the verbs below it.
func commandPage(cmd *cobra.Command, own []section) ([]byte, error) {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	for _, s := range own {
		if !slices.Contains(order, s.title) {
			return nil, fmt.Errorf("section %s has no place: add it to order", s.title)
		}
	}
	var r roff
	r.begin(name, "8")
	for _, title := range order {
		s := find(own, title)
		switch title {
		case "NAME":
			r.section(title)
			fmt.Fprintf(&r, "%s \\- %s\n", literal(name), inline(lower(cmd.Short)))
		case "SYNOPSIS":
			r.section(title)
			synopses(&r, cmd)
			for _, b := range s.blocks {
				r.WriteString(".PP\n" + inline(b.text) + "\n")
			}
		case "DESCRIPTION":
			r.section(title)
			text := description(cmd)
			if cmd.Long == "" && len(s.blocks) > 0 {
				text = nil // the short one is in NAME
			}
			r.blocks(text, true)
			r.blocks(s.blocks, len(text) == 0)
			for _, alias := range cmd.Aliases {
				if len(alias) >= len(cmd.Name()) || strings.HasPrefix(alias, cmd.Name()) {
					continue // the plural, or the like
				}
				fmt.Fprintf(&r, ".PP\n%s is short for %s.\n", bold(alias), bold(cmd.Name()))
			}
		case "COMMANDS":
			for _, b := range s.blocks {
				if !slices.ContainsFunc(visible(cmd), func(c *cobra.Command) bool { return c.Name() == b.term }) {
					return nil, fmt.Errorf("COMMANDS has an item %q, and there is no such command", b.term)
				}
			}
			commands(&r, cmd, s)
		case "OPTIONS":
			r.section(title)
			options(&r, cmd)
		case "REASONS":
			if len(s.blocks) > 0 {
				r.section(title)
				r.blocks(s.blocks, true)
				explanations(&r)
			}
		case "EXAMPLES":
			examples(&r, cmd, s)
		case "EXIT STATUS":
			r.section(title)
			if len(s.blocks) == 0 {
				exitStatus(&r, cmd, strings.Contains(toText(find(own, "SYNOPSIS")), "*smcr*"))
			}
			r.blocks(s.blocks, true)
		case "ENVIRONMENT":
			r.section(title)
			r.item(bold(cmdutil.BackendEnv), "The stack to ask if "+bold("--backend")+" is not given.")
			r.blocks(s.blocks, false)
		case "SEE ALSO":
			if len(s.blocks) == 0 {
				return nil, errors.New("the page has no section SEE ALSO")
			}
			fallthrough
		default:
			if len(s.blocks) > 0 {
				r.section(title)
				r.blocks(s.blocks, true)
			}
		}
	}
	return r.Bytes(), nil
}

// order is that of the sections of a command's page.
var order = []string{
	"NAME", "SYNOPSIS", "DESCRIPTION", "VIEWS", "KEYS", "RATES", "COMMANDS", "OPTIONS", "SMC-TOOLS COMMANDS", "OUTPUT", "REASONS", "SHORT CONNECTIONS", "EXAMPLES", "EXIT STATUS",
	"ENVIRONMENT", "FILES", "SIGNALS", "NOTES", "SEE ALSO",
}

// synopses writes the command lines of a command: its own, or those of its verbs.
func synopses(r *roff, cmd *cobra.Command) {
	if !cmd.HasParent() {
		r.WriteString(".SY smcr\n.OP \\-\\-backend stack\n.I command\n.RI [ argument ...]\n.YS\n.SY smcr\n.B \\-\\-help\n|\n.B \\-\\-version\n.YS\n")
		return
	}
	verbs := below(cmd)
	if len(verbs) == 0 {
		verbs = []*cobra.Command{cmd}
	}
	for _, v := range verbs {
		if v.HasAvailableSubCommands() {
			continue
		}
		_, usage, _ := strings.Cut(strings.Replace(v.Use, "[flags]", "", 1), " ")
		fmt.Fprintf(r, ".SY \"%s\"\n", literal(v.CommandPath()))
		v.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if hidden(f) || f.Shorthand != "" && strings.Contains(usage, "-"+f.Shorthand+" ") {
				return
			}
			word := "--" + f.Name
			if f.Shorthand != "" {
				word = "-" + f.Shorthand
			}
			placeholder, _ := pflag.UnquoteUsage(f)
			if placeholder != "" && f.NoOptDefVal != "" {
				fmt.Fprintf(r, "[%s\\~[%s]]\n", bold(word), italic(valueName(f)))
				return
			}
			fmt.Fprintf(r, ".OP %s %s\n", literal(word), literal(valueName(f)))
		})
		if usage = strings.TrimSpace(usage); usage != "" {
			r.WriteString(arguments(usage) + "\n")
		}
		r.WriteString(".YS\n")
	}
}

var argument = regexp.MustCompile(`--?[A-Za-z]*|[A-Za-z][A-Za-z-]*|.`)

// arguments shows what follows a command's name: options bold, what stands for
// something italic.
func arguments(s string) string {
	return argument.ReplaceAllStringFunc(s, func(w string) string {
		switch {
		case strings.HasPrefix(w, "-"):
			return bold(w)
		case w == " ":
			return `\~`
		case unicode.IsLetter(rune(w[0])):
			return italic(w)
		}
		return w
	})
}

func hidden(f *pflag.Flag) bool { return f.Hidden || f.Name == "help" }

// description returns the text of a command without what has its own section.
func description(cmd *cobra.Command) []block {
	text := cmd.Long
	if text == "" {
		text = strings.TrimSuffix(cmd.Short, ".") + "."
	}
	return slices.DeleteFunc(parseBlocks(text), func(b block) bool { return strings.HasPrefix(b.text, "Exit status:") })
}

// commands writes the verbs of a command, each with its options, and what the
// text adds to each: "= VERB" and the paragraphs that follow.
func commands(r *roff, cmd *cobra.Command, own section) {
	verbs := visible(cmd)
	if len(verbs) == 0 {
		return
	}
	r.section("COMMANDS")
	if !cmd.HasParent() {
		for _, v := range verbs {
			r.item(bold("smcr-"+v.Name())+"(8)", inline(strings.TrimSuffix(v.Short, "."))+".")
		}
		return
	}
	for _, v := range below(cmd) {
		name := strings.TrimPrefix(v.CommandPath(), cmd.CommandPath()+" ")
		r.subsection(strings.Join(append([]string{name}, v.Aliases...), ", "))
		r.blocks(description(v), true)
		for _, b := range own.blocks {
			if b.term == name {
				b.term = ""
				r.blocks([]block{b}, false)
			}
		}
		v.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { option(r, f) })
	}
}

// options writes the options that belong to no verb.
func options(r *roff, cmd *cobra.Command) {
	if cmd.HasParent() && !cmd.HasAvailableSubCommands() {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { option(r, f) })
	}
	option(r, cmd.Root().PersistentFlags().Lookup("backend"))
	r.item(bold("-h")+", "+bold("--help"), "Show a short description of the command.")
	if !cmd.HasParent() {
		r.item(bold("--version"), "Show the version of the program.")
		r.item(bold("-v"), "Show the version of the smc-tools whose output smcr has.")
	}
}

// option writes an option with its value and default.
func option(r *roff, f *pflag.Flag) {
	if hidden(f) {
		return
	}
	head := bold("--" + f.Name)
	if f.Shorthand != "" {
		head = bold("-"+f.Shorthand) + ", " + head
	}
	switch name := valueName(f); {
	case name == "":
	case f.NoOptDefVal != "":
		head += " [" + italic(name) + "]"
	default:
		head += " " + italic(name)
	}
	r.item(head, inline(explain(f)))
}

// valueName returns what the value of an option is called, or "".
func valueName(f *pflag.Flag) string {
	name, _ := pflag.UnquoteUsage(f)
	if f.Name == "role" {
		return f.Name // its usage has a value in quotes
	}
	if name == "string" || name == "strings" || name == "stringArray" || name == "value" {
		return f.Name
	}
	return name
}

var (
	alternatives = regexp.MustCompile(`\b[a-z]+(\|[a-z]+)+\b`)
	modeOnly     = regexp.MustCompile(`^(kernel|user)(,[^:]*)?: `)
)

// explain returns the usage of an option in sentences.
func explain(f *pflag.Flag) string {
	s := strings.TrimSuffix(f.Usage, ".")
	if name, _ := pflag.UnquoteUsage(f); name != valueName(f) {
		s = strings.ReplaceAll(s, "`", "*") // a value, not the name of one
	}
	s = alternatives.ReplaceAllStringFunc(s, func(list string) string {
		words := strings.Split(list, "|")
		for i := range words {
			words[i] = "*" + words[i] + "*"
		}
		return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	})
	s = modeOnly.ReplaceAllString(s, "in mode *$1*$2: ")
	s = upper(s) + "."
	switch f.DefValue {
	case "", "false", "0", "0s", "[]":
		return s
	}
	if strings.Contains(s, "default") {
		return s
	}
	return s + " The default is *" + f.DefValue + "*."
}

// examples writes the examples of a command and its verbs, then those with
// output.
func examples(r *roff, cmd *cobra.Command, own section) {
	var lines []string
	for _, c := range append([]*cobra.Command{cmd}, visible(cmd)...) {
		if c.Example == "" || !cmd.HasParent() && c != cmd {
			continue
		}
		for l := range strings.SplitSeq(c.Example, "\n") {
			// A command and its verbs may share examples. A line with a prompt belongs to the
			// lines around it.
			if l = strings.TrimSpace(l); !strings.HasPrefix(l, "smcr ") || !slices.Contains(lines, l) {
				lines = append(lines, l)
			}
		}
	}
	if len(lines)+len(own.blocks) == 0 {
		return
	}
	r.section("EXAMPLES")
	if len(lines) > 0 {
		r.blocks([]block{{literal: lines}}, true)
	}
	r.blocks(own.blocks, len(lines) == 0)
}

// exitStatus writes the statuses that all commands have in common.
// Commands that smc-tools has too end as there in its forms.
func exitStatus(r *roff, cmd *cobra.Command, tools bool) {
	done := "Done."
	if slices.ContainsFunc(append(visible(cmd), cmd), func(c *cobra.Command) bool { return c.Name() == "list" || c.Name() == "smcr" }) {
		done += " An empty list is not an error."
	}
	for _, s := range []struct {
		code int
		text string
	}{
		{cmdutil.ExitOK, done},
		{cmdutil.ExitError, "Error. The message is on standard error."},
		{cmdutil.ExitUsage, "Invalid command line."},
		{cmdutil.ExitNotFound, "An object that the command names does not exist."},
		{cmdutil.ExitPermission, "Missing privileges."},
		{cmdutil.ExitNoBackend, "The SMC stack does not exist."},
	} {
		r.item(bold(fmt.Sprint(s.code)), s.text)
	}
	if tools {
		r.WriteString(".PP\nCommand lines of smc-tools have the exit statuses of smc-tools: see\n.BR smcd (8).\n")
	}
}

// upper begins a text in upper case.
func upper(s string) string {
	if strings.HasPrefix(s, "`") {
		return "`" + upper(s[1:])
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func toText(s section) (text string) {
	for _, b := range s.blocks {
		text += b.text + "\n"
	}
	return text
}

// lower begins a text in lower case, unless that is a name.
func lower(s string) string {
	first, rest, _ := strings.Cut(s, " ")
	isName := strings.HasPrefix(s, "RoCE") || rest != "" && unicode.IsUpper(rune(rest[0])) && first == "Shared"
	if len(s) > 1 && unicode.IsLower(rune(s[1])) && !isName {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s
}

// textPage returns a page that is wholly a text.
func textPage(name string, sections []section) ([]byte, error) {
	page, number := cutSection(name)
	for _, want := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"} {
		if len(find(sections, want).blocks) == 0 {
			return nil, fmt.Errorf("the page has no section %s", want)
		}
	}
	var r roff
	r.begin(page, number)
	for _, s := range sections {
		r.section(s.title)
		switch s.title {
		case "NAME":
			fmt.Fprintf(&r, "%s \\- %s\n", literal(page), inline(s.blocks[0].text))
		case "SYNOPSIS":
			for i, b := range s.blocks {
				if i > 0 {
					r.WriteString(".br\n")
				}
				r.WriteString(inline(b.text) + "\n")
			}
		case "FALLBACK REASONS":
			r.blocks(s.blocks, true)
			fallbackReasons(&r)
		default:
			r.blocks(s.blocks, true)
		}
	}
	return r.Bytes(), nil
}
