// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"

	"smcr/internal/printable"
)

// A pen writes the elements of an SVG image. Colours are attributes, and each element has a
// class too: a page can give it another colour, for example in dark mode, and needs no
// style of the image's own. A strict content security policy would not allow one.
type pen struct{ b bytes.Buffer }

// The classes of what is drawn, with their attributes.
var classes = map[string]string{
	"ground":     `fill="#ffffff"`,
	"host":       `fill="#eef2f6" stroke="#aab4bf"`,
	"card":       `fill="#ffffff" stroke="#aab4bf"`,
	"ink":        `fill="#17212b"`,
	"strong":     `fill="#17212b" font-weight="600"`,
	"muted":      `fill="#53606d"`,
	"wire":       `fill="none" stroke="#8a96a3" stroke-width="2"`,
	"active":     `fill="none" stroke="#0b7a53" stroke-width="2.5"`,
	"activating": `fill="none" stroke="#8f5f00" stroke-width="2.5" stroke-dasharray="7 4"`,
	"inactive":   `fill="none" stroke="#b3261e" stroke-width="2.5" stroke-dasharray="2 5"`,
}

// class returns the attributes of a class.
func class(name string) string { return fmt.Sprintf(`class="%s" %s`, name, classes[name]) }

// Sizes of text in pixels.
const (
	textSize  = 13
	smallSize = 12
	lineStep  = 18 // from one line of text to the next
)

func (p *pen) printf(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

// box draws a rectangle with round corners.
func (p *pen) box(kind string, x, y, w, h int) {
	p.printf(`<rect %s x="%d" y="%d" width="%d" height="%d" rx="6"/>`+"\n", class(kind), x, y, w, h)
}

// text writes a line, cut to a width in pixels. If it is cut, the whole line is its title.
// The anchor is start or end.
func (p *pen) text(kind string, x, y, width int, anchor, s string) {
	if s == "" {
		return
	}
	size := textSize
	if kind == "muted" {
		size = smallSize
	}
	s = printable.Line(s)
	shown := fit(s, width, size)
	p.printf(`<text %s x="%d" y="%d" font-size="%d"`, class(kind), x, y, size)
	if anchor == "end" {
		p.printf(` text-anchor="end"`)
	}
	p.printf(`>`)
	if shown != s {
		p.printf(`<title>%s</title>`, escape(s))
	}
	p.printf("%s</text>\n", escape(shown))
}

// state draws the mark of a state: a dot for active, a ring for activating, a cross for
// anything else.
func (p *pen) state(state string, x, y int) {
	switch look(state) {
	case "active":
		p.printf(`<circle class="active dot" fill="#0b7a53" cx="%d" cy="%d" r="5"/>`+"\n", x, y)
	case "activating":
		p.printf(`<circle class="activating ring" fill="none" stroke="#8f5f00" stroke-width="2.5" cx="%d" cy="%d" r="4"/>`+"\n", x, y)
	default:
		p.printf(`<path class="inactive cross" fill="none" stroke="#b3261e" stroke-width="2.5" d="M%d %dl8 8m0 -8l-8 8"/>`+"\n", x-4, y-4)
	}
}

// curve draws a line from one point to another that begins and ends horizontally.
func (p *pen) curve(kind string, x1, y1, x2, y2 int) {
	mid := (x1 + x2) / 2
	p.printf(`<path %s d="M%d %dC%d %d %d %d %d %d"/>`+"\n", class(kind), x1, y1, mid, y1, mid, y2, x2, y2)
}

// look returns the class of a state of a link or of a port.
func look(state string) string {
	switch state {
	case linkActive: // also that of a port
		return "active"
	case linkActivating:
		return "activating"
	}
	return "inactive"
}

// escape returns text for XML.
func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder returns no error
	return b.String()
}

// fit cuts a text to a width in pixels. The widths of characters are those of usual fonts
// without serifs; wide ones, such as Chinese, are as wide as high.
func fit(s string, width, size int) string {
	used, cut := 0.0, 0
	for i, r := range s {
		w := 0.56
		if r >= 0x1100 {
			w = 1
		}
		if used+w*float64(size) > float64(width) {
			return s[:cut] + "…"
		}
		used += w * float64(size)
		if used+0.9*float64(size) <= float64(width) {
			cut = i + len(string(r))
		}
	}
	return s
}
