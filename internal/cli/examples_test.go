// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/reasons"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// quoted finds command lines in single quotes.
var quoted = regexp.MustCompile(`'(smcr [^']*)'`)

// onHost is the prompt of one of two hosts.
var onHost = regexp.MustCompile(`^host[AB]# `)

// parses returns an error if a command line of the documentation is none that smcr
// understands: the command exists, its flags too, and the arguments are as many as it takes.
// Words in capitals stand for what the user chooses.
func parses(line string) error {
	streams, _, _, _ := cmdutil.MemoryStreams()
	root := NewRoot(&cmdutil.Factory{IO: streams, Backend: "auto"})
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "smcr" {
		return fmt.Errorf("%q does not begin with smcr and a command", line)
	}
	for i, w := range words {
		switch w {
		case "|", ">", "<", "&&", "&":
			words = words[:i]
		}
		if len(words) == i {
			break
		}
	}
	for i := range words {
		words[i] = placeholders.Replace(strings.Trim(words[i], "'\""))
	}
	args, err := normalize(root, words[1:])
	if err != nil {
		return err
	}
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if cmd == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("no command %q", rest[0])
	}
	if err := cmd.ParseFlags(rest); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// placeholders are values for the words in capitals in command lines.
var placeholders = strings.NewReplacer(
	"BYTES", "1048576", "DESCRIPTORS", "1000", "PREFIX", "10.1.0.0/16", "GROUP", "100", "NUMBER", "2",
)

// eachCommand calls f for the commands that a user sees.
func eachCommand(f func(*cobra.Command)) {
	streams, _, _, _ := cmdutil.MemoryStreams()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		f(c)
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
				walk(sub)
			}
		}
	}
	walk(NewRoot(&cmdutil.Factory{IO: streams, Backend: "auto"}))
}

// TestExamples checks that each command has examples, and that they are command lines that
// smcr understands and that are about the command.
func TestExamples(t *testing.T) {
	n := 0
	eachCommand(func(c *cobra.Command) {
		n++
		if c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
			return
		}
		about := false
		for line := range strings.SplitSeq(c.Example, "\n") {
			if line == "" {
				continue
			}
			line, indented := strings.CutPrefix(line, "  ")
			if !indented || strings.TrimSpace(line) != line {
				t.Errorf("%s: example %q is not indented by two blanks", c.CommandPath(), line)
			}
			line = onHost.ReplaceAllString(line, "")
			if strings.HasPrefix(line, "ib") {
				continue // the other side, a program of perftest or libibverbs
			}
			if err := parses(line); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
			}
			about = about || strings.Contains(line, c.Name())
		}
		if !about {
			t.Errorf("%s: no example has the command:\n%s", c.CommandPath(), c.Example)
		}
	})
	if n < 40 {
		t.Errorf("only %d commands", n)
	}
}

// TestQuotedCommands checks the command lines in the texts of reasons, in the help of all
// commands, in the manual and in the documents.
func TestQuotedCommands(t *testing.T) {
	n := 0
	check := func(where, text string) {
		text = strings.ReplaceAll(text, "\n", " ")
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			n++
			if err := understood(m[1]); err != nil {
				t.Errorf("%s: %q: %v", where, m[1], err)
			}
		}
	}
	for _, r := range reasons.All() {
		check(r.Name, r.Cause+" "+strings.Join(r.Cure, " "))
	}
	eachCommand(func(c *cobra.Command) { check(c.CommandPath(), c.Long) })
	for _, pattern := range []string{
		"../../README.md", "../../docs/*.md", "../../deploy/README.md", "../../deploy/kubernetes/README.md",
		"../gendocs/troubleshooting.md.txt", "../gendocs/pages/*.txt",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no file: %v", pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			check(f, strings.ReplaceAll(string(b), "`", "'"))
		}
	}
	if n < 100 {
		t.Errorf("only %d command lines", n)
	}
}

// understood is parses for a command or a flag that a text names, perhaps without its arguments.
func understood(line string) error {
	if ofSMCTools.MatchString(line) {
		return nil // package smctools answers before this command line is parsed
	}
	err := parses(strings.ReplaceAll(line, "--pid PID", "--pid 1"))
	if err == nil {
		return nil
	}
	for _, missing := range []string{
		"required",               // "see 'smcr pnet add'"
		"flag needs an argument", // "'smcr serve --threads' sets it"
		"give a process",         // "'smcr why' says the reason"
	} {
		if strings.Contains(err.Error(), missing) {
			return nil
		}
	}
	return err
}

// ofSMCTools finds command lines with words that only smc-tools has.
var ofSMCTools = regexp.MustCompile(`^smcr (-d |lin l$)| (link-show|ibdev|json)( |$)`)
