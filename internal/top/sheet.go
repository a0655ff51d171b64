// SPDX-License-Identifier: Apache-2.0

package top

import (
	"math"
	"slices"
	"strings"
)

// A column is a column of a table of rows of type R.
type column[R any] struct {
	name string
	// text returns the cell. It need not be clean.
	text func(*R) string
	// value returns what the rows are sorted by, NaN if it is not known. Nil: the text.
	value func(*R) float64
	// compare sorts the rows of a column without value. Nil: by the text.
	compare func(a, b *R) int
	// min is the number of cells to which the column may shrink. 0: it does not shrink.
	min int
	// rank says which columns disappear where there is not enough room, the highest first.
	rank int
}

// number is a column of a number in short form.
func number[R any](name string, rank int, value func(*R) float64) column[R] {
	return column[R]{name: name, rank: rank, value: value, text: func(r *R) string { return short(value(r)) }}
}

// An order is how the rows of a table are sorted: numbers from the largest, text from A to Z.
type order struct {
	column  int
	reverse bool
}

// A sheet describes a table.
type sheet[R any] struct {
	columns []column[R]
	// id tells the rows apart.
	id func(*R) string
	// tie orders rows whose cells are the same, so that they stay where they are.
	tie func(a, b *R) int
}

// compare returns the function that sorts rows.
func (s *sheet[R]) compare(o order) func(a, b *R) int {
	c := s.columns[o.column]
	return func(a, b *R) int {
		n := 0
		if c.compare != nil {
			n = c.compare(a, b)
		} else if c.value == nil {
			n = strings.Compare(c.text(a), c.text(b))
		} else {
			x, y := c.value(a), c.value(b)
			switch {
			case math.IsNaN(x) || math.IsNaN(y): // what is not known comes last in any order
				switch {
				case !math.IsNaN(y):
					return 1
				case !math.IsNaN(x):
					return -1
				}
			case x > y:
				n = -1
			case x < y:
				n = 1
			}
		}
		if o.reverse {
			n = -n
		}
		if n == 0 {
			n = s.tie(a, b)
		}
		return n
	}
}

// matches returns the function that reports whether a row has all words somewhere. The words
// are in lower case.
func (s *sheet[R]) matches(words []string) func(*R) bool {
	if len(words) == 0 {
		return func(*R) bool { return true }
	}
	return func(r *R) bool {
		var b strings.Builder
		for _, c := range s.columns {
			b.WriteString(c.text(r))
			b.WriteByte('\n')
		}
		text := strings.ToLower(b.String())
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
	}
}

// A part is the rows of a table that a sample keeps.
type part[R any] struct {
	rows []R
	// matching rows there are, of total. There may be more of them than are kept.
	matching, total int
}

// maxRows is how many rows of each table a sample keeps.
const maxRows = 1000

// A topN keeps the first rows of a table in an order.
type topN[R any] struct {
	part[R]
	limit   int
	matches func(*R) bool
	compare func(a, b *R) int
	full    bool // the rows up to limit are sorted, and rows behind them have been dropped
}

// newTopN returns a topN for up to limit rows that have all words.
func (s *sheet[R]) newTopN(o order, words []string, limit int) *topN[R] {
	return &topN[R]{limit: limit, matches: s.matches(words), compare: s.compare(o)}
}

// add adds a row.
func (t *topN[R]) add(r *R) {
	t.total++
	if !t.matches(r) {
		return
	}
	t.matching++
	if t.full && t.compare(&t.rows[t.limit-1], r) <= 0 {
		return
	}
	t.rows = append(t.rows, *r)
	if len(t.rows) >= 2*t.limit {
		t.cut()
	}
}

// merge adds the rows of another topN with the same order.
func (t *topN[R]) merge(o *topN[R]) {
	total, matching := t.total+o.total, t.matching+o.matching
	for i := range o.rows {
		t.add(&o.rows[i])
	}
	t.total, t.matching = total, matching
}

// cut sorts the rows and drops those beyond the limit.
func (t *topN[R]) cut() {
	slices.SortFunc(t.rows, func(a, b R) int { return t.compare(&a, &b) })
	if len(t.rows) > t.limit {
		clear(t.rows[t.limit:])
		t.rows, t.full = t.rows[:t.limit], true
	}
}

// done returns the rows that are left, in order.
func (t *topN[R]) done() part[R] {
	t.cut()
	return t.part
}

// A head is the name of a column, as the screen needs it.
type head struct {
	name      string
	right     bool
	min, rank int
}

// A pane is the table of one view. It hides the type of its rows.
type pane interface {
	// load takes the rows of a sample.
	load(*Sample)
	// arrange sorts the rows and keeps those that have all words.
	arrange(o order, words []string)
	// counts returns how many rows are here, and how many there are.
	counts() (here, matching, total int)
	heads() []head
	id(i int) string
	// cells returns the cells of the rows from, up to but without to.
	cells(from, to int) [][]string
}

// paneOf is the pane of rows of type R.
type paneOf[R any] struct {
	*sheet[R]
	of    func(*Sample) *part[R]
	held  part[R]
	shown []R
	words []string
}

func (p *paneOf[R]) load(s *Sample) { p.held = *p.of(s) }

func (p *paneOf[R]) arrange(o order, words []string) {
	p.words = words
	matches, compare := p.matches(words), p.compare(o)
	p.shown = p.shown[:0]
	for i := range p.held.rows {
		if matches(&p.held.rows[i]) {
			p.shown = append(p.shown, p.held.rows[i])
		}
	}
	slices.SortFunc(p.shown, func(a, b R) int { return compare(&a, &b) })
}

func (p *paneOf[R]) counts() (here, matching, total int) {
	matching = p.held.matching
	if len(p.held.rows) == matching { // all matching rows are here, so a new filter is exact
		matching = len(p.shown)
	}
	return len(p.shown), matching, p.held.total
}

func (p *paneOf[R]) heads() []head {
	h := make([]head, len(p.columns))
	for i, c := range p.columns {
		h[i] = head{c.name, c.value != nil, c.min, c.rank}
	}
	return h
}

func (p *paneOf[R]) id(i int) string { return p.sheet.id(&p.shown[i]) }

func (p *paneOf[R]) cells(from, to int) [][]string {
	out := make([][]string, 0, to-from)
	for i := from; i < to; i++ {
		row := make([]string, len(p.columns))
		for j, c := range p.columns {
			if row[j] = clean(c.text(&p.shown[i])); row[j] == "" {
				row[j] = "-"
			}
		}
		out = append(out, row)
	}
	return out
}

// gap is the number of cells between columns.
const gap = 1

// layout chooses the columns that fit into w cells, and the width of each; 0 leaves it out.
// The column keep does not disappear.
func layout(heads []head, cells [][]string, w, keep int) []int {
	n := len(heads)
	natural, least := make([]int, n), make([]int, n)
	byRank := make([]int, n)
	for i, h := range heads {
		byRank[i] = i
		natural[i] = width(h.name)
		for _, row := range cells {
			natural[i] = max(natural[i], width(row[i]))
		}
		least[i] = natural[i]
		if h.min > 0 {
			least[i] = min(natural[i], max(h.min, width(h.name)))
		}
	}
	slices.SortStableFunc(byRank, func(a, b int) int {
		if (a == keep) != (b == keep) {
			if a == keep {
				return -1
			}
			return 1
		}
		return heads[a].rank - heads[b].rank
	})
	out := make([]int, n)
	room := w + gap
	var taken []int
	for _, i := range byRank {
		if least[i]+gap > room && len(taken) > 0 {
			break // the columns of lower rank are not shown without those of higher rank
		}
		out[i] = min(least[i], w)
		room -= out[i] + gap
		taken = append(taken, i)
	}
	for _, i := range taken {
		more := min(natural[i]-out[i], max(0, room))
		out[i] += more
		room -= more
	}
	return out
}

// line returns the cells of a row in their columns.
func line(cells []string, heads []head, widths []int) string {
	var b strings.Builder
	for i, c := range cells {
		if widths[i] == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		b.WriteString(fit(c, widths[i], heads[i].right))
	}
	return b.String()
}
