// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
	"time"

	"smcr/internal/printable"
)

// Line is what a command printed, and when, from its start on.
type Line struct {
	At   time.Duration
	Text string
}

const (
	columns = 100
	rows    = 28
	height  = 18 // of a line, in pixels
	top     = 30 // height of the title

	longest = 1500 * time.Millisecond // the longest pause that is shown
	atEnd   = 6 * time.Second         // how long the end stays before all begins again
)

// shorten returns lines with pauses of at most longest, the first one after a moment.
func shorten(lines []Line) []Line {
	out := make([]Line, len(lines))
	var last, at time.Duration
	for i, l := range lines {
		at += min(max(l.At-last, 0), longest)
		last = l.At
		out[i] = Line{at, l.Text}
	}
	return out
}

// draw draws the lines of a command. The title stands above them.
func draw(title string, lines []Line) []byte {
	lines = shorten(lines)
	total := atEnd
	if n := len(lines); n > 0 {
		total += lines[n-1].At
	}
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	width, full := columns*8+20, top+rows*height+12
	p(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`, width, full, width, full)
	p(`<title>%s</title>`, escape(title))
	p(`<style>`)
	p(`text { font: 13px 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre }`)
	p(`.said { fill: #79c0ff }`)
	p(`.cover { fill: #0d1117; transform: translateY(%dpx); animation: cover %.2fs step-end infinite }`, len(lines)*height, total.Seconds())
	p(`.all { transform: translateY(%dpx); animation: scroll %.2fs step-end infinite }`, -scrolled(len(lines)), total.Seconds())
	keyframes(&b, "cover", lines, total, func(n int) int { return n * height })
	keyframes(&b, "scroll", lines, total, func(n int) int { return -scrolled(n) })
	p(`@media (prefers-reduced-motion: reduce) { .cover, .all { animation: none } }`)
	p(`</style>`)
	p(`<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>`)
	p(`<text x="50%%" y="20" text-anchor="middle" style="fill:#9da7b3">%s</text>`, escape(title))
	p(`<svg y="%d" width="%d" height="%d"><g class="all">`, top, width, rows*height)
	for i, l := range lines {
		class := ""
		if s := strings.TrimSpace(l.Text); strings.HasPrefix(s, "*") || strings.Contains(s, "# ") {
			class = ` class="said"` // a heading, or a command with its prompt
		}
		p(`<text x="10" y="%d"%s>%s</text>`, i*height+13, class, escape(cut(l.Text)))
	}
	p(`<rect class="cover" width="%d" height="%d"/>`, width, (len(lines)+rows)*height)
	p(`</g></svg>`)
	p(`</svg>`)
	return b.Bytes()
}

// scrolled is how far n lines have scrolled, in pixels.
func scrolled(n int) int { return max(0, n-rows) * height }

// keyframes writes the positions after 0, 1, 2 … lines.
func keyframes(b *bytes.Buffer, name string, lines []Line, total time.Duration, position func(n int) int) {
	fmt.Fprintf(b, "@keyframes %s {\n0%% { transform: translateY(%dpx) }\n", name, position(0))
	for i, l := range lines {
		if i+1 < len(lines) && lines[i+1].At == l.At || position(i+1) == position(i) && i+1 < len(lines) {
			continue
		}
		fmt.Fprintf(b, "%.3f%% { transform: translateY(%dpx) }\n", 100*l.At.Seconds()/total.Seconds(), position(i+1))
	}
	fmt.Fprintf(b, "100%% { transform: translateY(%dpx) }\n}\n", position(len(lines)))
}

// cut returns what of a line is drawn.
func cut(s string) string {
	s = printable.Line(strings.TrimRight(strings.ReplaceAll(s, "\t", "        "), " "))
	if r := []rune(s); len(r) > columns {
		return string(r[:columns-1]) + "…"
	}
	return s
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder takes everything
	return b.String()
}
