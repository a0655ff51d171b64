// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestShorten(t *testing.T) {
	got := shorten([]Line{{30 * time.Second, "a"}, {31 * time.Second, "b"}, {31 * time.Second, "c"}, {90 * time.Second, "d"}})
	want := []Line{{1500 * time.Millisecond, "a"}, {2500 * time.Millisecond, "b"}, {2500 * time.Millisecond, "c"}, {4 * time.Second, "d"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// drawn is what a browser shows of an SVG.
type drawn struct {
	texts []string
	all   string
}

// look reads an SVG as XML.
func look(t *testing.T, svg []byte) (d drawn) {
	t.Helper()
	d.all = string(svg)
	in := xml.NewDecoder(strings.NewReader(d.all))
	text := false
	for {
		tok, err := in.Token()
		if errors.Is(err, io.EOF) {
			return d
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			if text = tok.Name.Local == "text"; text {
				d.texts = append(d.texts, "")
			}
			for _, a := range tok.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("<%s %s>", tok.Name.Local, a.Name.Local)
				}
			}
		case xml.EndElement:
			text = false
		case xml.CharData:
			if text {
				d.texts[len(d.texts)-1] += string(tok)
			}
		}
	}
}

// positions returns the times in percent and the positions of an animation.
func (d drawn) positions(t *testing.T, name string) (at []float64, y []int) {
	t.Helper()
	_, rest, ok := strings.Cut(d.all, "@keyframes "+name+" {\n")
	if !ok {
		t.Fatalf("no animation %s", name)
	}
	rest, _, _ = strings.Cut(rest, "\n}\n")
	for _, m := range regexp.MustCompile(`(?m)^([0-9.]+)% \{ transform: translateY\((-?\d+)px\) \}$`).FindAllStringSubmatch(rest, -1) {
		p, _ := strconv.ParseFloat(m[1], 64)
		n, _ := strconv.Atoi(m[2])
		at, y = append(at, p), append(y, n)
	}
	return at, y
}

// TestDraw: each line is there as text, clean, and comes at its time.
func TestDraw(t *testing.T) {
	var lines []Line
	for i := range 40 {
		lines = append(lines, Line{time.Duration(i) * time.Second, fmt.Sprint("line ", i)})
	}
	lines[1].Text = "<b>&\x1b[31mred\x07\tx"
	lines[2].Text = strings.Repeat("ä", 200)
	d := look(t, draw("make <demo>", lines))
	if d.texts[0] != "make <demo>" || d.texts[1] != "line 0" || len(d.texts) != 41 {
		t.Errorf("%d texts: %q", len(d.texts), d.texts[:2])
	}
	if s := d.texts[2]; strings.ContainsAny(s, "\x1b\x07\t") || !strings.HasPrefix(s, "<b>&") {
		t.Errorf("%q", s)
	}
	if n := len([]rune(d.texts[3])); n != columns {
		t.Errorf("a long line has %d characters, want %d", n, columns)
	}
	at, y := d.positions(t, "cover")
	// 40 lines in 39 seconds, and 6 more.
	if len(at) != 42 || at[20] != 42.222 || y[20] != 20*height || y[41] != 40*height {
		t.Errorf("uncovered at %v: %v", at, y)
	}
	at, y = d.positions(t, "scroll")
	if y[0] != 0 || y[1] != -height || at[1] != 62.222 || y[len(y)-1] != -(40-rows)*height {
		t.Errorf("scrolled at %v: %v", at, y)
	}
	look(t, draw("nothing", nil))
}

// TestRecord records a command.
func TestRecord(t *testing.T) {
	out := filepath.Join(t.TempDir(), "x.svg")
	if err := run(out, "", []string{"sh", "-c", "echo one; sleep 0.2; echo two >&2"}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	d := look(t, b)
	if want := []string{"[sh -c echo one; sleep 0.2; echo two >&2]", "one", "two"}; !cmp.Equal(d.texts, want) {
		t.Errorf("%q, want %q", d.texts, want)
	}
	if err := run(out, "", []string{"sh", "-c", "exit 3"}); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v, want exit status 3", err)
	}
	if err := run("", "", nil); err == nil {
		t.Error("no error without a file")
	}
}
