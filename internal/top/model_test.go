// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"smcr/internal/sample"
	"smcr/nl"
	"smcr/smc"

	"pgregory.net/rapid"
)

// TestAnySize gives the model random keys, sizes and samples. Each screen has the size of the
// terminal.
func TestAnySize(t *testing.T) {
	names := []string{
		"1", "2", "3", "4", "5", "tab", "shift+tab", "up", "down", "pgup", "pgdown", "home", "end", "s", "S", "r", "/", "a", "世", "enter",
		"esc", "backspace", "ctrl+u", "p", "+", "-", "?", "x",
	}
	rapid.Check(t, func(rt *rapid.T) {
		m, before := started()
		for i := range rapid.IntRange(1, 30).Draw(rt, "events") {
			switch rapid.IntRange(0, 9).Draw(rt, "event") {
			case 0:
				m.Resize(rapid.IntRange(1, 200).Draw(rt, "width"), rapid.IntRange(1, 60).Draw(rt, "height"))
			case 1:
				m.Fail(rapid.StringN(0, 300, 300).Draw(rt, "why"))
			case 2, 3:
				sc := host(uint64(4 + i))
				if rapid.Bool().Draw(rt, "fewer") {
					sc.stacks = sc.stacks[:1]
				}
				var s *Sample
				s, before = sc.digest(m.Query(), before)
				m.Update(s)
			default:
				k := rapid.SampledFrom(names).Draw(rt, "key")
				text := k
				if len(k) > 1 && k[0] < 0x80 {
					text = ""
				}
				m.Key(k, text)
			}
			checkShape(t, "random", m)
			if t.Failed() {
				rt.FailNow()
			}
		}
	})
}

// TestHostileText checks that no text of others breaks a line: the cells around it stay
// where they are.
func TestHostileText(t *testing.T) {
	for _, s := range []string{
		"\x1b[2J\x1b]0;title\a", "a\nb\rc\td", "\u202egnp.exe", "世界世界世界世界", "e\u0301\u0301\u0301\u0301", strings.Repeat("\u0300", 500),
		"\xff\xfe\x9b", "👩\u200d👩\u200d👧", "🇩🇪🇩🇪", "\u200b\u200b", strings.Repeat("x", 5000), "", "\u1100\u1161\u11a8", "\U000e0041",
	} {
		c := clean(s)
		for w := range 12 {
			if got := fit(c, w, w%2 == 0); width(got) != w {
				t.Errorf("%q in %d cells: %q has %d", s, w, got, width(got))
			}
		}
		m := NewModel(time.Second)
		sc := host(1)
		for i := range sc.conns["user"] {
			sc.conns["user"][i].Command = s
		}
		sc.stacks[1].Groups[0].V2.PeerHost, sc.stacks[1].Groups[0].Peer, sc.stacks[1].Groups[0].PNETID = s, s, s
		sc.stacks[1].Links[0].IBDev, sc.stacks[1].Devices[0].Name, sc.stacks[1].Info.StackVersion = s, s, s
		sample, _ := sc.digest(m.Query(), nil)
		m.Update(sample)
		for _, size := range [][2]int{{80, 24}, {40, 10}, {250, 50}} {
			m.Resize(size[0], size[1])
			for range views {
				checkShape(t, fmt.Sprintf("%q", s), m)
				m.Key("tab", "")
			}
		}
		m.Fail(s)
		checkShape(t, fmt.Sprintf("failure %q", s), m)
	}
}

// TestMany checks that a sample of 100,000 connections keeps the busiest, and no more than it
// may, and that the filter finds what it does not keep.
func TestMany(t *testing.T) {
	const n = 100_000
	m := NewModel(time.Second)
	many := func(sec uint64) scene {
		sc := host(sec)
		conns := make([]nl.Connection, n)
		for i := range conns {
			conns[i] = nl.Connection{
				State: smc.StateActive, Mode: nl.ModeSMCR, Inode: uint64(i + 1), LinkGroup: 0x100,
				Local: addr("10.0.0.1:80"), Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(i>>16)+1),
				Command: fmt.Sprintf("program%d", i), PID: 1, RXBytes: uint64(i*7919%n) * sec,
			}
		}
		sc.conns["user"] = conns
		return sc
	}
	s, before := many(1).digest(m.Query(), nil)
	m.Update(s)
	s, before = many(2).digest(m.Query(), before)
	m.Update(s)
	if len(s.conns.rows) != maxRows || cap(s.conns.rows) > 4*maxRows || s.totals.conns != n+1 || len(before.conns) != n+1 {
		t.Errorf("%d rows of %d, %d connections, %d remembered", len(s.conns.rows), cap(s.conns.rows), s.totals.conns, len(before.conns))
	}
	for i, r := range s.conns.rows {
		if want := float64(n - 1 - i); r.flow.rx != want {
			if r.stack == sample.Kernel {
				continue
			}
			t.Fatalf("row %d has %v B/s, want %v", i, r.flow.rx, want)
		}
	}
	keys(m, "4 end")
	if got := text(m); !strings.Contains(got, "983-1000 of 1000 (first of 100001)") {
		t.Errorf("at the end:\n%s", got)
	}
	keys(m, "/ p r o g r a m 1 2 0 enter") // the connections that it matches are not the busiest
	s, before = many(3).digest(m.Query(), before)
	m.Update(s)
	if s.conns.matching != 111 || len(s.conns.rows) != 111 {
		t.Errorf("%d rows match, %d are there", s.conns.matching, len(s.conns.rows))
	}
	keys(m, "esc S S S S S r") // by peer, from the last
	s, _ = many(4).digest(m.Query(), before)
	m.Update(s)
	if got := s.conns.rows[0].remote; got != addr("10.1.255.255:1") {
		t.Errorf("the last peer is %s", got)
	}
}

// TestBaselineLimit checks that connections that the baseline does not remember have no rate.
func TestBaselineLimit(t *testing.T) {
	_, before := host(1).digest(Query{}, nil)
	clear(before.conns)
	before.full = true
	s, _ := host(3).digest(Query{}, before)
	for _, r := range s.conns.rows {
		if !math.IsNaN(r.flow.rx) {
			t.Errorf("%+v", r)
		}
	}
}

// TestNewConnection checks that a connection that began since the last sample has the rate of
// all its bytes.
func TestNewConnection(t *testing.T) {
	old := host(1)
	old.conns["user"] = old.conns["user"][:1]
	_, before := old.digest(Query{}, nil)
	s, _ := host(3).digest(Query{}, before)
	for _, r := range s.conns.rows {
		if r.inode == 12 && r.flow.rx != 3*40e6/2 {
			t.Errorf("%v B/s", r.flow.rx)
		}
	}
}

// TestReplaced checks that there are no rates between two stacks.
func TestReplaced(t *testing.T) {
	_, before := host(1).digest(Query{}, nil)
	other := host(3)
	other.stacks[1].Info.PID = 1
	s, _ := other.digest(Query{}, before)
	for _, r := range s.conns.rows {
		if known := !math.IsNaN(r.flow.rx); known != (r.stack == sample.Kernel) {
			t.Errorf("%+v", r)
		}
	}
	for _, r := range s.groups.rows {
		if known := !math.IsNaN(r.flow.rx); known != (r.stack == sample.Kernel) {
			t.Errorf("%+v", r)
		}
	}
}

// TestTwins checks that nothing is said about link groups of the kernel that cannot be told
// apart.
func TestTwins(t *testing.T) {
	twins := func(sec uint64) scene {
		sc := host(sec)
		k := sc.stacks[0]
		twin := k.Links[0]
		twin.LinkGroup = 0x400
		k.Links = append(k.Links, twin)
		k.Groups = append(k.Groups, nl.LinkGroup{ID: 0x400, Conns: 1})
		return sc
	}
	_, before := twins(1).digest(Query{}, nil)
	s, _ := twins(3).digest(Query{}, before)
	for _, r := range s.groups.rows {
		if r.stack == sample.Kernel && !math.IsNaN(r.flow.rx) {
			t.Errorf("%+v", r)
		}
	}
	if r := s.conns.rows; r[0].group != 0 && r[0].stack == sample.Kernel {
		t.Errorf("%+v", r[0])
	}
}

// TestCursorFollows checks that the cursor stays with its row, and that it stays at the first
// row, whichever that is.
func TestCursorFollows(t *testing.T) {
	m, before := started()
	keys(m, "4 down")
	selected := m.places[viewConns].selected
	sc := host(5)
	sc.conns["user"][1].RXBytes, sc.conns["user"][1].TXBytes = 3*40e6, 1500 // the busiest rests
	s, before := sc.digest(m.Query(), before)
	m.Update(s)
	if p := m.places[viewConns]; p.selected != selected || p.cursor != 0 {
		t.Errorf("cursor at %d, on %s, want %s", p.cursor, p.selected, selected)
	}
	s, _ = host(7).digest(m.Query(), before)
	m.Update(s)
	if p := m.places[viewConns]; p.selected == selected || p.cursor != 0 {
		t.Errorf("cursor at %d, on %s", p.cursor, p.selected)
	}
}

// TestActions checks what keys ask for, and the intervals.
func TestActions(t *testing.T) {
	m, _ := started()
	for _, step := range []struct {
		key  string
		want Action
	}{
		{"p", Nothing}, {"p", Reset}, {"+", Postpone}, {"ctrl+z", Suspend}, {"ctrl+l", Redraw}, {"ctrl+c", Quit},
		{"4", Nothing}, {"/", Nothing}, {"q", Nothing}, {"ctrl+c", Quit}, {"esc", Nothing}, {"?", Nothing}, {"q", Nothing}, {"q", Quit},
	} {
		if got := m.Key(step.key, step.key); got != step.want {
			t.Errorf("%s: %v, want %v", step.key, got, step.want)
		}
	}
	for _, step := range []struct {
		begin time.Duration
		key   string
		want  time.Duration
	}{
		{2 * time.Second, "+", 5 * time.Second}, {2 * time.Second, "-", time.Second}, {3 * time.Second, "+", 5 * time.Second},
		{3 * time.Second, "-", 2 * time.Second}, {time.Hour, "+", 5 * time.Minute}, {time.Hour, "-", 5 * time.Minute}, {100 * time.Millisecond, "-", 200 * time.Millisecond},
	} {
		m := NewModel(step.begin)
		if m.Key(step.key, step.key); m.Interval() != step.want {
			t.Errorf("%v %s: %v, want %v", step.begin, step.key, m.Interval(), step.want)
		}
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", -1: "0", 0.04: "0", 0.5: "0.5", 2: "2", 9.94: "9.9", 9.96: "10", 999.4: "999", 999.6: "1.00K", 1234: "1.23K", 12345: "12.3K",
		999_500: "1.00M", 123e9: "123G", 1.8e19: "18.0E", math.Inf(1): "+InfE",
	} {
		if got := short(v); got != want || len(got) > 5 {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
	if short(math.NaN()) != "-" {
		t.Error("NaN")
	}
}

// TestColumns checks that the columns that code names exist.
func TestColumns(t *testing.T) {
	if columnOf(connSheet, "B/s") == 0 || columnOf(groupSheet, "B/s") == 0 || columnOf(linkSheet, "B/s") == 0 || columnOf(deviceSheet, "Retr/s") == 0 {
		t.Error("a column is missing")
	}
}
