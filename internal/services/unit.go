// SPDX-License-Identifier: Apache-2.0

package services

import (
	"strings"
)

// A Unit is what systemd says about a service.
type Unit struct {
	Name  string            // with the suffix .service
	Props map[string]string // of systemctl show
	// Settings are those of [Service] in the files of the unit, without the drop-in file of smcr. Each
	// has its values in order, since the last empty one.
	Settings map[string][]string
}

// properties are those that are asked for.
var properties = []string{
	"ActiveState", "ConsistsOf", "ControlGroup", "Id", "LoadError", "LoadState", "MainPID", "NetworkNamespacePath", "PrivateNetwork",
	"Slice", "SubState", "Transient", "TriggeredBy",
}

// exec returns the commands that start the program.
func (u Unit) exec() []string { return u.Settings["ExecStart"] }

// setting returns the value of a setting that has one, or nothing.
func (u Unit) setting(name string) string {
	v := u.Settings[name]
	if len(v) == 0 {
		return ""
	}
	return v[len(v)-1]
}

// words returns the words of all values of a setting that is a list.
func (u Unit) words(name string) []string { return strings.Fields(strings.Join(u.Settings[name], " ")) }

// on reports whether a setting is on. Some have other values than yes and no.
func (u Unit) on(name string) bool { return !off(u.setting(name)) }

func off(value string) bool {
	switch strings.ToLower(value) {
	case "", "no", "false", "off", "0", "n", "f":
		return true
	}
	return false
}

// parseShow parses the output of systemctl show: a line for each property.
func parseShow(text string) map[string]string {
	props := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\n"), "="); ok {
			props[name] = value
		}
	}
	return props
}

// parseCat returns the settings of [Service] in the output of systemctl cat: the unit's file and its
// drop-in files, in their order, each after a comment with its path. File without is left out.
func parseCat(text, without string) map[string][]string {
	settings := map[string][]string{}
	section, skip := "", false
	for line := range logicalLines(text) {
		if path, ok := strings.CutPrefix(line, "# /"); ok {
			skip = "/"+path == without
			section = "" // each file begins anew
			continue
		}
		switch line = strings.TrimSpace(line); {
		case skip || line == "" || isComment(line):
		case line[0] == '[':
			section = line
		case section == "[Service]":
			name, value, _ := strings.Cut(line, "=")
			name = strings.TrimSpace(name)
			if value = strings.TrimSpace(value); value == "" {
				delete(settings, name)
				continue
			}
			settings[name] = append(settings[name], value)
		}
	}
	return settings
}

// logicalLines yields the lines of unit files. A line that ends in a backslash goes on with the next
// one that is no comment (systemd.syntax(7)).
func logicalLines(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		before := ""
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\r\n")
			if before != "" && isComment(line) {
				continue
			}
			if start, ok := strings.CutSuffix(line, `\`); ok && !isComment(before+line) {
				before += start + " "
				continue
			}
			if !yield(before + line) {
				return
			}
			before = ""
		}
		if before != "" {
			yield(before)
		}
	}
}

func isComment(line string) bool {
	t := strings.TrimSpace(line)
	return t != "" && (t[0] == '#' || t[0] == ';')
}

// A command is a value of ExecStart= in parts.
type command struct {
	prefix string // special characters, such as - and !!
	argv   string // what follows, as it is
}

// parseCommand splits a value of ExecStart=.
func parseCommand(value string) command {
	argv := strings.TrimLeft(value, "@-:+!|")
	return command{prefix: value[:len(value)-len(argv)], argv: strings.TrimSpace(argv)}
}

// program returns the first word of a command, without quotes.
func (c command) program() string {
	word, _, _ := strings.Cut(c.argv, " ")
	return strings.Trim(word, `"'`)
}
