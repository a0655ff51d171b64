// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"
)

// A Style says what a line is. None of what the screen says is said by style alone.
type Style int

// The styles.
const (
	Plain    Style = iota // all other lines
	Title                 // the first line
	Tabs                  // the names of the views
	Header                // the names of columns
	Selected              // the row under the cursor
	Warning               // why there is no sample
	Footer                // the last line
)

// A Line is a line of the screen. Its text is clean and fits.
type Line struct {
	Style Style
	Text  string
}

// low is the height below which the screen has a short head.
const low = 16

// headLines is how many lines there are above the table, with the names of its columns.
func (m *Model) headLines() int {
	if m.height < low {
		return 3
	}
	return 5
}

// page returns how many rows of a table fit.
func (m *Model) page() int { return max(1, m.height-m.headLines()-1) }

// Screen returns the lines of the screen, as many as the terminal has.
func (m *Model) Screen() []Line {
	var s []Line
	add := func(style Style, text string) { s = append(s, Line{style, fit(text, m.width, false)}) }
	add(Title, m.title())
	if m.height >= low {
		t := &Totals{flow: unknownFlow, rxCalls: unknown, txCalls: unknown, newConns: unknown, fallbacks: unknown, errors: unknown, retransmits: unknown}
		if m.sample != nil {
			t = &m.sample.totals
		}
		add(Plain, m.numbers(t))
		add(Plain, m.rates(t))
	}
	add(Tabs, m.tabs())
	switch {
	case m.help:
		m.addHelp(add)
	case m.failure != "":
		add(Plain, "")
		for i, l := range wrap(m.failure, m.width-2) {
			add(Warning, [2]string{"! ", "  "}[min(i, 1)]+l)
		}
		add(Plain, "")
		add(Plain, "  smcr top asks again every "+seconds(m.interval)+".")
	case m.sample == nil:
		add(Plain, "")
		add(Plain, "  Waiting for the first sample ...")
	case m.view == viewSummary:
		m.addSummary(add, m.height-len(s)-1)
	default:
		m.addTable(add)
	}
	for len(s) < m.height-1 {
		add(Plain, "")
	}
	s = s[:max(0, m.height-1)]
	add(Footer, m.footer())
	return s
}

func (m *Model) title() string {
	s := "smcr top"
	if m.sample != nil {
		s += "  " + m.sample.at.Format("15:04:05")
	}
	s += "  every " + seconds(m.interval)
	if m.paused {
		s += "  [PAUSED]"
	}
	if m.sample == nil {
		return s
	}
	var names []string
	for _, r := range m.sample.stacks.rows {
		names = append(names, clean(r.name))
	}
	label := "  stack "
	if len(names) > 1 {
		label = "  stacks "
	}
	return s + label + strings.Join(names, ", ")
}

func (m *Model) numbers(t *Totals) string {
	s := fmt.Sprintf("Groups %d  Links %d  Conns %d (SMC-R %d, TCP %d", t.groups, t.links, t.conns, t.smcr, t.tcp)
	if t.smcd > 0 {
		s += fmt.Sprintf(", SMC-D %d", t.smcd)
	}
	return s + ")"
}

func (m *Model) rates(t *Totals) string {
	return fmt.Sprintf("RX %sB/s  TX %sB/s  Calls %s/s  New %s/s  Fallb %s/s  Err %s/s  Retr %s/s",
		short(t.flow.rx), short(t.flow.tx), short(t.rxCalls+t.txCalls), short(t.newConns), short(t.fallbacks), short(t.errors), short(t.retransmits))
}

func (m *Model) tabs() string {
	var b strings.Builder
	for v, name := range viewNames {
		if view(v) == m.view {
			fmt.Fprintf(&b, "[%d %s]", v+1, name)
		} else {
			fmt.Fprintf(&b, " %d %s ", v+1, name)
		}
	}
	if m.width < width(b.String()) {
		return fmt.Sprintf("[%d %s] of %d views", int(m.view)+1, viewNames[m.view], int(views))
	}
	p := m.places[m.view]
	if m.view != viewSummary && !m.editing && p.filter != "" {
		b.WriteString("  filter: " + clean(p.filter))
	}
	return b.String()
}

// heading returns the names of the columns, with an arrow at the one that the rows are sorted by.
func heading(p pane, o order, sorted bool) []head {
	h := p.heads()
	if !sorted {
		return h
	}
	// Numbers begin with the largest, text with A.
	down := h[o.column].right != o.reverse
	h[o.column].name += map[bool]string{true: " v", false: " ^"}[down]
	return h
}

// names returns the names of heads.
func names(h []head) []string {
	out := make([]string, len(h))
	for i := range h {
		out[i] = h[i].name
	}
	return out
}

// addTable adds the table of the view.
func (m *Model) addTable(add func(Style, string)) {
	p := m.places[m.view]
	n, _, _ := p.counts()
	from := max(0, min(p.top, n-1))
	to := min(n, from+m.page())
	cells := p.cells(from, max(from, to))
	h := heading(p, p.order, true)
	widths := layout(h, cells, m.width-2, p.order.column)
	add(Header, "  "+line(names(h), h, widths))
	if n == 0 {
		add(Plain, "")
		if p.filter != "" {
			add(Plain, "  nothing matches the filter; Esc removes it")
		} else {
			add(Plain, "  none")
		}
	}
	for i, row := range cells {
		if from+i == p.cursor {
			add(Selected, "> "+line(row, h, widths))
		} else {
			add(Plain, "  "+line(row, h, widths))
		}
	}
}

// addSummary adds the tables of the summary, in the given number of lines.
func (m *Model) addSummary(add func(Style, string), lines int) {
	section := func(p pane, atMost int) {
		n, _, _ := p.counts()
		if lines < 2 {
			return
		}
		n = min(n, atMost, lines-1)
		cells := p.cells(0, n)
		h := p.heads()
		widths := layout(h, cells, m.width-2, -1)
		add(Header, "  "+line(names(h), h, widths))
		for _, row := range cells {
			add(Plain, "  "+line(row, h, widths))
		}
		lines -= n + 1
		if m.height >= low && lines > 2 {
			add(Plain, "")
			lines--
		}
	}
	devices := &paneOf[deviceRow]{sheet: deviceSheet, held: m.sample.devices, shown: m.sample.devices.rows}
	busiest := &paneOf[connRow]{sheet: connSheet, held: m.sample.busiest, shown: m.sample.busiest.rows}
	section(m.places[viewSummary].pane, 4)
	section(devices, 4)
	section(busiest, maxBusiest)
}

// footer returns the last line: what is typed, or where the screen is and the keys.
func (m *Model) footer() string {
	if m.editing {
		return "filter: " + cut(clean(m.input), max(0, m.width-10)) + "_"
	}
	keys := "q quit  1-5 view  s sort  r reverse  / filter  p pause  ? help"
	if m.view == viewSummary {
		keys = "q quit  1-5 view  p pause  +/- interval  ? help"
	}
	if m.help {
		return "any key returns"
	}
	p := m.places[m.view]
	n, matching, total := p.counts()
	if m.view == viewSummary || m.sample == nil || n == 0 {
		return keys
	}
	where := fmt.Sprintf("%d-%d of %d", p.top+1, min(n, p.top+m.page()), n)
	switch {
	case matching > n:
		where += fmt.Sprintf(" (first of %d)", matching)
	case total > n:
		where += fmt.Sprintf(" (%d in all)", total)
	}
	return where + "  " + keys
}

// helpLines explain the keys.
var helpLines = []string{
	"1-5 Tab     view: summary, link groups, links, connections, fallbacks",
	"Up Down PgUp PgDn Home End    move; the cursor follows its row",
	"s S or > <  sort by the next or previous column    r  reverse",
	"/           filter: rows that have all words       Esc  no filter",
	"Enter       links of the group, connections of the link's group",
	"p Space     pause       + -  longer or shorter interval",
	"q Ctrl-C    quit        Ctrl-Z  stop    Ctrl-L  draw again",
	"",
	"B/s is RX/s and TX/s: bytes that programs receive and send each second.",
	"- is what a stack does not count. Retr/s of a link is that of its device.",
}

func (m *Model) addHelp(add func(Style, string)) {
	add(Plain, "")
	for _, l := range helpLines {
		if width(l)+2 <= m.width {
			add(Plain, "  "+l)
			continue
		}
		for _, part := range wrap(l, m.width-2) {
			add(Plain, "  "+part)
		}
	}
}
