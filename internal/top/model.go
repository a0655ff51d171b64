// SPDX-License-Identifier: Apache-2.0

package top

import (
	"slices"
	"strings"
	"time"
)

// An Action is what a key asks the program to do.
type Action int

// The actions.
const (
	Nothing  Action = iota // go on
	Quit                   // end the program
	Suspend                // stop the process, as Ctrl-Z does elsewhere
	Redraw                 // draw all of the screen again
	Reset                  // the next sample is due now
	Postpone               // the interval has changed
)

// viewNames are the names of the views, by number.
var viewNames = [views]string{"Summary", "Groups", "Links", "Conns", "Fallbacks"}

// intervals are those that + and - choose among.
var intervals = []time.Duration{
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
}

// A place is what a view remembers while others are shown.
type place struct {
	pane
	order    order
	filter   string
	selected string // id of a row
	cursor   int    // its number
	top      int    // number of the first row on the screen
	followed bool   // the cursor stays with its row; otherwise at the first row
}

// A Model is the state of the screen. Its methods take events and return what to do. It is
// not safe for concurrent use.
type Model struct {
	view          view
	places        [views]*place
	width, height int
	interval      time.Duration
	sample        *Sample
	failure       string // why there is no sample
	paused, help  bool
	editing       bool   // a filter is being typed
	input         string // what was typed
	before        string // the filter before
}

// NewModel returns a model for a terminal of 80x24.
func NewModel(interval time.Duration) *Model {
	m := &Model{width: 80, height: 24, interval: interval}
	m.places = [views]*place{
		viewSummary:   {pane: &paneOf[stackRow]{sheet: stackSheet, of: func(s *Sample) *part[stackRow] { return &s.stacks }}},
		viewGroups:    {pane: &paneOf[groupRow]{sheet: groupSheet, of: func(s *Sample) *part[groupRow] { return &s.groups }}, order: order{column: columnOf(groupSheet, "B/s")}},
		viewLinks:     {pane: &paneOf[linkRow]{sheet: linkSheet, of: func(s *Sample) *part[linkRow] { return &s.links }}, order: order{column: columnOf(linkSheet, "B/s")}},
		viewConns:     {pane: &paneOf[connRow]{sheet: connSheet, of: func(s *Sample) *part[connRow] { return &s.conns }}, order: order{column: columnOf(connSheet, "B/s")}},
		viewFallbacks: {pane: &paneOf[fallbackRow]{sheet: fallbackSheet, of: func(s *Sample) *part[fallbackRow] { return &s.fallbacks }}},
	}
	return m
}

// Resize sets the size of the terminal.
func (m *Model) Resize(width, height int) {
	m.width, m.height = max(1, width), max(1, height)
	m.follow()
}

// Interval returns the time from one sample to the next.
func (m *Model) Interval() time.Duration { return m.interval }

// Paused reports whether the screen does not take samples.
func (m *Model) Paused() bool { return m.paused }

// Query returns which rows the next sample should have.
func (m *Model) Query() (q Query) {
	for v, p := range m.places {
		q.orders[v], q.words[v] = p.order, p.words()
	}
	return q
}

// Update takes a sample.
func (m *Model) Update(s *Sample) {
	m.sample, m.failure = s, ""
	for _, p := range m.places {
		p.load(s)
		p.arrange(p.order, p.words())
	}
	m.follow()
}

// Fail takes the reason why there is no sample. What was shown before is not shown any more,
// because it is not so any more.
func (m *Model) Fail(why string) {
	m.Update(&Sample{})
	m.sample, m.failure = nil, clean(strings.Join(strings.Fields(why), " "))
}

// words returns the words of the filter.
func (p *place) words() []string { return strings.Fields(strings.ToLower(p.filter)) }

// follow moves the cursor to the row it was on, wherever that is now, and the screen to the
// cursor.
func (m *Model) follow() {
	p := m.places[m.view]
	n, _, _ := p.counts()
	if p.followed {
		for i := range n {
			if p.id(i) == p.selected {
				p.cursor = i
				break
			}
		}
	} else {
		p.cursor = 0
	}
	m.moveTo(p.cursor)
	p.followed = p.followed && p.cursor > 0
}

// moveTo moves the cursor to a row, as far as there are rows.
func (m *Model) moveTo(i int) {
	p := m.places[m.view]
	n, _, _ := p.counts()
	p.cursor = max(0, min(i, n-1))
	p.selected = ""
	if n > 0 {
		p.selected = p.id(p.cursor)
	}
	// At the top, the first rows stay there, whichever they are; elsewhere the cursor follows
	// its row.
	p.followed = p.cursor > 0
	page := m.page()
	p.top = max(p.cursor-page+1, min(p.top, p.cursor))
	p.top = max(0, min(p.top, n-page))
}

// Key takes a key: its name, and the text that it stands for, which may be empty.
func (m *Model) Key(name, text string) Action {
	switch {
	case name == "ctrl+c":
		return Quit
	case name == "ctrl+z":
		return Suspend
	case name == "ctrl+l":
		return Redraw
	case m.editing:
		m.edit(name, text)
		return Nothing
	case m.help:
		m.help = false
		if name != "q" {
			return Nothing
		}
		return Nothing
	}
	p := m.places[m.view]
	switch name {
	case "q":
		return Quit
	case "?", "h", "f1":
		m.help = true
	case "p", "space":
		m.paused = !m.paused
		if !m.paused {
			return Reset
		}
	case "+", "=", "-":
		m.changeInterval(name != "-")
		return Postpone
	case "tab", "right":
		m.show((m.view + 1) % views)
	case "shift+tab", "left":
		m.show((m.view + views - 1) % views)
	case "1", "2", "3", "4", "5":
		m.show(view(name[0] - '1'))
	case "esc":
		m.setFilter("")
	case "enter":
		m.open()
	case "/":
		if m.view != viewSummary {
			m.editing, m.input, m.before = true, p.filter, p.filter
		}
	case "s", ">", ".":
		m.sortBy(1)
	case "S", "<", ",":
		m.sortBy(-1)
	case "r":
		m.arrange(order{p.order.column, !p.order.reverse})
	default:
		m.move(name)
	}
	return Nothing
}

// move moves the cursor.
func (m *Model) move(name string) {
	p := m.places[m.view]
	n, _, _ := p.counts()
	switch name {
	case "up", "k":
		m.moveTo(p.cursor - 1)
	case "down", "j":
		m.moveTo(p.cursor + 1)
	case "pgup", "ctrl+b":
		m.moveTo(p.cursor - m.page())
	case "pgdown", "ctrl+f":
		m.moveTo(p.cursor + m.page())
	case "home", "g":
		m.moveTo(0)
	case "end", "G":
		m.moveTo(n - 1)
	}
}

// show changes the view.
func (m *Model) show(v view) {
	m.view = v
	m.follow()
}

// arrange sorts the rows that are here. The next sample has the first rows of all.
func (m *Model) arrange(o order) {
	if m.view == viewSummary {
		return
	}
	p := m.places[m.view]
	p.order = o
	p.pane.arrange(o, p.words())
	m.follow()
}

// sortBy sorts by the next or previous column.
func (m *Model) sortBy(step int) {
	p := m.places[m.view]
	n := len(p.heads())
	m.arrange(order{column: (p.order.column + step + n) % n})
}

// setFilter filters the rows that are here.
func (m *Model) setFilter(text string) {
	p := m.places[m.view]
	p.filter = text
	m.arrange(p.order)
}

// maxFilter is how many characters a filter may have.
const maxFilter = 64

// edit takes a key while a filter is typed. The rows change with each key.
func (m *Model) edit(name, text string) {
	runes := []rune(m.input)
	switch name {
	case "enter":
		m.editing = false
		return
	case "esc":
		m.editing, m.input = false, m.before
	case "backspace", "ctrl+h":
		m.input = string(runes[:max(0, len(runes)-1)])
	case "ctrl+u":
		m.input = ""
	default:
		if text == "" || len(runes) >= maxFilter {
			return
		}
		m.input += clean(text)
	}
	m.setFilter(m.input)
}

// open shows what belongs to the selected link group or link: its links, its connections.
func (m *Model) open() {
	p := m.places[m.view]
	if n, _, _ := p.counts(); n == 0 || m.view != viewGroups && m.view != viewLinks {
		return
	}
	id := p.cells(p.cursor, p.cursor+1)[0][0] // of the link group
	m.show(m.view + 1)
	m.setFilter(strings.ToLower(id))
}

// changeInterval chooses the next longer or shorter interval.
func (m *Model) changeInterval(longer bool) {
	i, exact := slices.BinarySearch(intervals, m.interval)
	switch {
	case longer && exact:
		i++
	case !longer:
		i--
	}
	m.interval = intervals[max(0, min(i, len(intervals)-1))]
}
