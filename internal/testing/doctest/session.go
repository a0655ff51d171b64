// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Command is one command of a document, on one host.
type Command struct {
	Line       int      // of the document, from 1 on
	Host       string   // "hostA" or "hostB"
	Root       bool     // runs as root, otherwise as a user without privileges
	Text       string   // the command, for a shell; without the & of a background command
	Background bool     // runs until the end of the document
	Output     []string // lines that must be in the output, in this order
	Exit       int      // the exit status that the page says
}

var (
	prompt = regexp.MustCompile(`^(host[AB])([#$]) (.+)$`)
	exit   = regexp.MustCompile(`^\(exit status (\d+)\)$`)
)

// Parse returns the commands of a Markdown document, in their order.
func Parse(document string) []Command {
	var list []Command
	for _, b := range blocks(document) {
		list = append(list, b.commands()...)
	}
	return list
}

// Loose returns the lines of code blocks that have one of these programs as their first word
// and no prompt. Nobody runs them. Blocks that begin with ```text are what a screen shows.
func Loose(document string, programs ...string) []string {
	var list []string
	for _, b := range blocks(document) {
		for _, line := range b.lines {
			if b.info == "text" {
				break
			}
			if prompt.MatchString(line) {
				break // a session: its other lines are output
			}
			word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			for _, p := range programs {
				if word == p {
					list = append(list, strings.TrimSpace(line))
				}
			}
		}
	}
	return list
}

// block is a code block.
type block struct {
	first int    // number of its first line
	info  string // what follows the fence, such as "text"
	lines []string
}

// blocks returns the code blocks: fenced ones, and indented ones after an empty line.
func blocks(document string) []block {
	var list []block
	var b *block
	fence, empty := false, true
	for i, line := range strings.Split(document, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			if fence = !fence; fence {
				list = append(list, block{first: i + 2, info: strings.TrimLeft(trimmed, "`")})
				b = &list[len(list)-1]
			} else {
				b = nil
			}
		case fence:
			b.lines = append(b.lines, line)
		case strings.HasPrefix(line, "    ") && (b != nil || empty):
			if b == nil {
				list = append(list, block{first: i + 1})
				b = &list[len(list)-1]
			}
			b.lines = append(b.lines, line[4:])
		case trimmed == "" && b != nil:
			b.lines = append(b.lines, "")
		default:
			b = nil
		}
		empty = trimmed == ""
	}
	return list
}

func (b block) commands() []Command {
	var list []Command
	var c *Command
	more := false
	for i, line := range b.lines {
		line = strings.TrimRight(line, " ")
		m := prompt.FindStringSubmatch(line)
		switch {
		case more:
			c.Text += "\n" + line
		case m != nil:
			list = append(list, Command{Line: b.first + i, Host: m[1], Root: m[2] == "#", Text: m[3]})
			c = &list[len(list)-1]
		case c == nil || line == "":
		case exit.MatchString(line):
			c.Exit, _ = strconv.Atoi(exit.FindStringSubmatch(line)[1])
		default:
			c.Output = append(c.Output, line)
		}
		more = (more || m != nil) && strings.HasSuffix(line, `\`)
	}
	for i := range list {
		if text, ok := strings.CutSuffix(list[i].Text, " &"); ok {
			list[i].Text, list[i].Background = text, true
		}
	}
	return list
}

// Check compares the output and the exit status of a command with what the page shows.
func (c Command) Check(output string, status int) error {
	if status != c.Exit {
		return fmt.Errorf("exit status %d, and the page says %d", status, c.Exit)
	}
	lines := strings.Split(output, "\n")
	for _, want := range c.Output {
		re := pattern(want)
		for len(lines) > 0 && !re.MatchString(lines[0]) {
			lines = lines[1:]
		}
		if len(lines) == 0 {
			return fmt.Errorf("no line %q, or not in this order", want)
		}
		lines = lines[1:]
	}
	return nil
}

// pattern returns what matches a line that the page shows.
func pattern(line string) *regexp.Regexp {
	var re strings.Builder
	re.WriteString(`^\s*`)
	for i, part := range strings.Split(line, "…") {
		if i > 0 {
			re.WriteString(".*")
		}
		words := strings.Fields(part)
		for j, w := range words {
			if j > 0 {
				re.WriteString(`\s+`)
			}
			re.WriteString(regexp.QuoteMeta(w))
		}
	}
	re.WriteString(`\s*$`)
	return regexp.MustCompile(re.String())
}
