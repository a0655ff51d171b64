// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"smcr/internal/printable"
)

// A Table is rows of cells under column headers.
type Table struct {
	columns []Column
	rows    [][]string
}

// A Column is a column of a table.
type Column struct {
	Name  string
	Right bool // numbers: aligned at the right
}

// NewTable returns an empty table. A column whose name begins with ">" is aligned
// to the right, for numbers; the character is not part of the name.
func NewTable(names ...string) *Table {
	t := &Table{}
	for _, n := range names {
		n, right := strings.CutPrefix(n, ">")
		t.columns = append(t.columns, Column{Name: n, Right: right})
	}
	return t
}

// Add adds a row with one cell for each column, formatted by [fmt.Sprint] and
// [printable.Line].
func (t *Table) Add(cells ...any) {
	if len(cells) != len(t.columns) {
		panic(fmt.Sprintf("output: row of %d cells in a table of %d columns", len(cells), len(t.columns)))
	}
	row := make([]string, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case string:
			row[i] = printable.Line(c)
		case fmt.Stringer:
			row[i] = printable.Line(c.String())
		default:
			row[i] = printable.Line(fmt.Sprint(c))
		}
	}
	t.rows = append(t.rows, row)
}

// Print writes the table. One without rows is its header: nobody can tell silence from a
// command that does nothing.
func (t *Table) Print(w io.Writer) error {
	header := make([]string, len(t.columns))
	width := make([]int, len(t.columns))
	for i, c := range t.columns {
		header[i] = c.Name
		width[i] = utf8.RuneCountInString(c.Name)
	}
	for _, row := range t.rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	out := bufio.NewWriterSize(w, bufferSize)
	var line []byte
	print := func(row []string) {
		line = line[:0]
		for i, cell := range row {
			pad := width[i] - utf8.RuneCountInString(cell)
			if i > 0 {
				line = append(line, "  "...)
			}
			if t.columns[i].Right {
				line = append(appendBlanks(line, pad), cell...)
			} else {
				line = appendBlanks(append(line, cell...), pad)
			}
		}
		out.Write(append(bytes.TrimRight(line, " "), '\n'))
	}
	print(header)
	for _, row := range t.rows {
		print(row)
	}
	return out.Flush() // also returns the first error of Write
}

// bufferSize is the size of a write in bytes.
const bufferSize = 64 << 10

func appendBlanks(b []byte, n int) []byte {
	for range n {
		b = append(b, ' ')
	}
	return b
}

// JSON writes v indented, with a newline at the end. A nil slice is an empty
// array. Characters that are not printable are escaped.
func JSON[T any](w io.Writer, v []T) error {
	if v == nil {
		v = []T{}
	}
	return writeJSON(w, v, "  ")
}

// JSONLine writes v in one line. Characters that are not printable are escaped.
func JSONLine(w io.Writer, v any) error { return writeJSON(w, v, "") }

func writeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(printable.JSON(b.Bytes()))
	return err
}

// Count returns a number with a noun: "1 link", "2 links".
func Count[N int | uint32 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Or returns s, or "-" if s is empty.
func Or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Size returns a number of bytes for a table, as one word: "512B", "64KiB", "1.5MiB".
func Size[N uint32 | uint64](n N) string {
	if n < 1<<10 {
		return fmt.Sprintf("%dB", n)
	}
	f, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} {
		if f /= 1 << 10; f < 1<<10-0.05 {
			break
		}
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + unit
}

// lineWidth is the width of wrapped text in characters.
const lineWidth = 88

// Wrap breaks text into lines of at most 88 characters, unless a word is longer. The first
// line begins with first and the others with rest. There is no newline at the end.
func Wrap(first, text, rest string) string {
	var b strings.Builder
	line, empty := first, true
	for word := range strings.FieldsSeq(text) {
		switch {
		case empty:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > lineWidth:
			b.WriteString(line + "\n")
			line = rest + word
		default:
			line += " " + word
		}
		empty = false
	}
	return b.String() + line
}

// YesNo returns "Yes" or "No".
func YesNo(yes bool) string {
	if yes {
		return "Yes"
	}
	return "No"
}

// SMCVersions returns the versions of SMC that a stack has: "v1 v2", or "v1" without
// version 2.
func SMCVersions(v2 bool) string {
	if v2 {
		return "v1 v2"
	}
	return "v1"
}
