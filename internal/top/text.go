// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"smcr/internal/printable"

	"github.com/charmbracelet/x/ansi"
)

// clean returns a text that takes as many cells of a terminal as width says, whatever the
// terminal: special characters become question marks, and marks that combine with the
// character before them, which terminals treat in different ways, are removed.
func clean(s string) string {
	s = printable.Line(s)
	for i := range len(s) {
		if s[i] >= 0x80 {
			return strings.Map(func(r rune) rune {
				if unicode.In(r, unicode.Mn, unicode.Me) {
					return -1
				}
				return r
			}, s)
		}
	}
	return s
}

// width returns how many cells of a terminal a clean text takes.
func width(s string) int { return ansi.StringWidth(s) }

// cut returns the beginning of a clean text that fits in w cells, with "~" at its end if
// something is missing.
func cut(s string, w int) string {
	switch {
	case w <= 0:
		return ""
	case width(s) <= w:
		return s
	}
	return ansi.Truncate(s, w, "~")
}

// fit returns a clean text in exactly w cells.
func fit(s string, w int, right bool) string {
	s = cut(s, w)
	pad := strings.Repeat(" ", max(0, w-width(s)))
	if right {
		return pad + s
	}
	return s + pad
}

// wrap breaks a clean text into lines of at most w cells.
func wrap(s string, w int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		switch {
		case line == "":
			line = word
		case width(line)+1+width(word) <= w:
			line += " " + word
		default:
			lines, line = append(lines, cut(line, w)), word
		}
	}
	return append(lines, cut(line, w))
}

// short returns a number in at most five characters, "-" for one that is not known (NaN).
func short(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v <= 0:
		return "0"
	case v < 9.95:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	}
	const units = " KMGTPE"
	u := 0
	for v >= 999.5 && u < len(units)-1 {
		v /= 1000
		u++
	}
	unit := strings.TrimSpace(units[u : u+1])
	switch {
	case u > 0 && v < 9.995:
		return fmt.Sprintf("%.2f%s", v, unit)
	case u > 0 && v < 99.95:
		return fmt.Sprintf("%.1f%s", v, unit)
	}
	return fmt.Sprintf("%.0f%s", v, unit)
}

// seconds returns a time as the user writes it: 500ms, 2s, 1m.
func seconds(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	return s
}
