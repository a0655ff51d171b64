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
	"ActiveState", "ConsistsOf", "ControlGroup", "Id", "LoadError", "LoadState", "NetworkNamespacePath", "PrivateNetwork",
	"Slice", "TriggeredBy",
}

// exec returns the commands that start the program.
func (u Unit) exec() []string { return u.Settings["ExecStart"] }

// programs returns the programs of these commands.
func (u Unit) programs() (all []string) {
	for _, value := range u.exec() {
		all = append(all, programOf(value))
	}
	return all
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

// programOf returns the first word of a value of ExecStart=, without quotes and special characters such as - and !!.
func programOf(value string) string {
	word, _, _ := strings.Cut(strings.TrimLeft(value, "@-:+!| "), " ")
	return strings.Trim(word, `"'`)
}
