// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
)

// A section is a titled part of a page.
type section struct {
	title  string
	blocks []block
}

// A block is a paragraph, a list item (term is not empty) or literal lines.
type block struct {
	term    string
	text    string   // of a paragraph or item, one line
	literal []string // without their indentation
}

// parseText reads a text of pages/. doc.go has the format.
func parseText(s string) ([]section, error) {
	var out []section
	body := ""
	flush := func() {
		if len(out) > 0 {
			out[len(out)-1].blocks = parseBlocks(body)
		}
		body = ""
	}
	for i, line := range strings.Split(s, "\n") {
		title, ok := strings.CutPrefix(line, "# ")
		switch {
		case ok:
			flush()
			out = append(out, section{title: title})
		case len(out) == 0 && strings.TrimSpace(line) != "":
			return nil, fmt.Errorf("line %d: text before the first section", i+1)
		default:
			body += line + "\n"
		}
	}
	flush()
	return out, nil
}

var item = regexp.MustCompile(`^ {4}(\S+) {2,}(\S.*)$`)

// parseBlocks reads paragraphs, as texts of commands have them too.
func parseBlocks(s string) []block {
	var out []block
	for part := range strings.SplitSeq(strings.Trim(s, "\n"), "\n\n") {
		lines := strings.Split(strings.Trim(part, "\n"), "\n")
		switch {
		case strings.TrimSpace(part) == "":
		case item.MatchString(lines[0]) && strings.HasPrefix(lines[len(lines)-1], "    ") && hanging(lines):
			out = append(out, hangingItems(lines)...)
		case strings.HasPrefix(lines[0], "  "):
			indent := len(lines[0]) - len(strings.TrimLeft(lines[0], " "))
			for i := range lines {
				if len(lines[i]) >= indent {
					lines[i] = lines[i][indent:]
				}
			}
			// An empty line within literal lines.
			if n := len(out); n > 0 && out[n-1].literal != nil {
				out[n-1].literal = append(append(out[n-1].literal, ""), lines...)
				continue
			}
			out = append(out, block{literal: lines})
		default:
			out = append(out, paragraphs(lines)...)
		}
	}
	return out
}

// hanging reports whether lines are a list of words with texts in a column of
// their own, of which some need more than one line.
func hanging(lines []string) bool {
	column := strings.Index(lines[0], item.FindStringSubmatch(lines[0])[2])
	more := false
	for _, l := range lines {
		if len(l) <= column || l[column-1] != ' ' {
			return false
		}
		more = more || strings.TrimSpace(l[:column]) == ""
	}
	return more
}

func hangingItems(lines []string) (out []block) {
	for _, l := range lines {
		if m := item.FindStringSubmatch(l); m != nil && l[4] != ' ' {
			out = append(out, block{term: m[1], text: m[2]})
		} else {
			out[len(out)-1].text += " " + strings.TrimSpace(l)
		}
	}
	for i := range out {
		out[i].text = upper(out[i].text) + "."
	}
	return out
}

func paragraphs(lines []string) (out []block) {
	var now block
	for _, l := range lines {
		if term, ok := strings.CutPrefix(l, "= "); ok {
			if now.term != "" || now.text != "" {
				out = append(out, now)
			}
			now = block{term: term}
			continue
		}
		now.text = strings.TrimSpace(now.text + " " + l)
	}
	return append(out, now)
}

// find returns the section with a title, or an empty one.
func find(sections []section, title string) section {
	for _, s := range sections {
		if s.title == title {
			return s
		}
	}
	return section{title: title}
}
