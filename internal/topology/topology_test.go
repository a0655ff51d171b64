// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"smcr/internal/testing/netnstest"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the pictures to testdata")

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func netdev(i uint32) string { return map[uint32]string{2: "eth0", 3: "eth1", 4: "eth2"}[i] }

// listing returns what a stack in a state answers at a number of seconds after epoch.
func listing(t *testing.T, s nltest.State, seconds float64) Listing {
	t.Helper()
	before := time.Now()
	l, err := Read(t.Context(), "user", nltest.NewFake(s))
	if err != nil {
		t.Fatal(err)
	}
	if l.Time.Before(before) || l.Time.After(time.Now()) {
		t.Errorf("time %v", l.Time)
	}
	l.Time = epoch.Add(time.Duration(seconds * float64(time.Second)))
	return l
}

// sample returns the model of the sample state, with rates.
func sample(t *testing.T) Stack {
	t.Helper()
	before := listing(t, nltest.SampleState(), 0)
	counters := before.Counters()
	later := nltest.SampleState()
	later.Stats.SMCR.TXBytes += 5 << 20
	later.Stats.SMCR.RXBytes += 3000
	later.Connections[1].TXBytes += 4 << 20
	later.Connections[1].RXBytes += 2000
	later.Connections = append(later.Connections,
		nl.Connection{State: smc.StateInit, Inode: 2001})
	l := listing(t, later, 2)
	return Build(&l, &counters, netdev)
}

// pictures returns the pictures of stacks by the name of the golden file.
func pictures(stacks []Stack, groups int) map[string][]byte {
	return map[string][]byte{
		"txt": Text(stacks, groups), "dot": DOT(stacks, groups),
		"wide.svg": SVG(stacks, Wide, groups), "narrow.svg": SVG(stacks, Narrow, groups),
	}
}

// scenes are the models of the golden tests.
func scenes(t *testing.T) map[string][]Stack {
	t.Helper()
	empty := listing(t, nltest.State{}, 0)
	many := listing(t, nltest.Rows(40), 0)
	many.Links[30].State = smc.LinkInactive
	many.Groups[31].Peer = "" // as from a kernel
	kernel := listing(t, nltest.SampleState(), 0)
	kernel.Stack, kernel.Info.Stack, kernel.Links[2].IBDev = "kernel", "", "gone0"
	kernel.Groups = append(kernel.Groups, nl.LinkGroup{ID: 0x300})
	return map[string][]Stack{
		"sample": {sample(t)},
		"empty":  {Build(&empty, nil, netdev)},
		"many":   {Build(&many, nil, netdev)},
		"two":    {Build(&kernel, nil, netdev), sample(t)},
	}
}

// TestGolden compares the pictures with those in testdata.
func TestGolden(t *testing.T) {
	for name, stacks := range scenes(t) {
		for kind, got := range pictures(stacks, 5) {
			file := filepath.Join("testdata", name+"."+kind)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		}
	}
}

// TestBounds checks that the size of a picture does not depend on how many link groups
// there are, and that what is left out is counted.
func TestBounds(t *testing.T) {
	small, large := listing(t, nltest.Rows(500), 0), listing(t, nltest.Rows(2000), 0)
	for _, l := range []*Listing{&small, &large} {
		for i := range 100 {
			l.Devices = append(l.Devices, nl.Device{Name: fmt.Sprintf("dev%d", i), Ports: []nl.Port{{Valid: true}}})
		}
	}
	of := func(l *Listing) map[string][]byte { return pictures([]Stack{Build(l, nil, netdev)}, DefaultGroups) }
	a, b := of(&small), of(&large)
	for kind := range a {
		if d := len(b[kind]) - len(a[kind]); d < -200 || d > 200 || len(a[kind]) > 64<<10 {
			t.Errorf("%s: %d and %d bytes", kind, len(a[kind]), len(b[kind]))
		}
		for _, want := range []string{"1976 more link groups with 395200 connections", "more ports"} {
			if !strings.Contains(string(b[kind]), want) {
				t.Errorf("%s does not say %q", kind, want)
			}
		}
	}
}

// TestLimit checks which link groups remain.
func TestLimit(t *testing.T) {
	l := listing(t, nltest.Rows(10), 0)
	l.Links[7].State, l.Links[9].State = smc.LinkActivating, smc.LinkInactive
	s := Build(&l, nil, netdev)
	for _, tt := range []struct {
		groups  int
		want    string
		omitted string
	}{
		{0, "", "Not shown: 10 more link groups with 2000 connections, to 10 more peers"},
		{1, "00000800", "Not shown: 9 more link groups with 1800 connections, to 9 more peers"},
		{4, "00000100 00000200 00000800 00000a00", "Not shown: 6 more link groups with 1200 connections, to 6 more peers"},
		{10, "00000100 00000200 00000300 00000400 00000500 00000600 00000700 00000800 00000900 00000a00", ""},
	} {
		var ids []string
		limited := Limit(s, tt.groups)
		for _, p := range limited.Peers {
			for _, g := range p.Groups {
				ids = append(ids, g.ID)
			}
		}
		omitted := ""
		if limited.Omitted != nil {
			omitted = limited.Omitted.String()
		}
		if got := strings.Join(ids, " "); got != tt.want || omitted != tt.omitted {
			t.Errorf("%d: %s, %q", tt.groups, got, omitted)
		}
	}
	if len(s.Peers) != 10 || s.Omitted != nil {
		t.Error("Limit has changed the model")
	}
}

// TestRates checks the rates of two listings.
func TestRates(t *testing.T) {
	s := sample(t)
	g := s.Peers[0].Groups[0]
	if s.Peers[0].Address != "10.77.0.2" || g.ID != "00000100" {
		t.Fatalf("%+v", s.Peers)
	}
	want := map[string][2]*Rates{
		"stack":       {s.Rates, {5 << 19, 1500}},
		"link group":  {g.Rates, {4 << 19, 1000}},
		"link":        {g.Links[0].Rates, {4 << 19, 1000}},
		"other link":  {g.Links[1].Rates, {}},
		"port":        {s.Devices[0].Rates, {4 << 19, 1000}},
		"other group": {s.Peers[1].Groups[0].Rates, {}},
	}
	for name, w := range want {
		if !reflect.DeepEqual(w[0], w[1]) {
			t.Errorf("%s: %+v, want %+v", name, w[0], w[1])
		}
	}
	if s.Conns != (Conns{SMCR: 1, TCP: 1, Listen: 1}) {
		t.Errorf("connections %+v", s.Conns)
	}

	// When there are none.
	for name, change := range map[string]func(before, now *Listing){
		"restarted":     func(_, now *Listing) { now.Info.PID++ },
		"counters fell": func(_, now *Listing) { now.Stats.SMCR.TXBytes = 0 },
		"too soon":      func(_, now *Listing) { now.Time = epoch.Add(time.Millisecond) },
		"backwards":     func(_, now *Listing) { now.Time = epoch.Add(-time.Second) },
	} {
		before, now := listing(t, nltest.SampleState(), 0), listing(t, nltest.SampleState(), 1)
		change(&before, &now)
		c := before.Counters()
		if s := Build(&now, &c, netdev); s.Rates != nil || s.Peers[0].Groups[0].Rates != nil || s.Devices[0].Rates != nil {
			t.Errorf("%s: rates %+v", name, s.Rates)
		}
	}

	// A connection that is new, and one with the number of an older one.
	before, now := listing(t, nltest.SampleState(), 0), listing(t, nltest.SampleState(), 1)
	before.Conns[1].TXBytes, now.Conns[1].TXBytes = 100, 70
	extra := now.Conns[1]
	extra.Inode, extra.TXBytes, extra.RXBytes = 9999, 30, 0
	now.Conns = append(now.Conns, extra)
	c := before.Counters()
	if s := Build(&now, &c, netdev); s.Peers[0].Groups[0].Rates.Sent != 100 {
		t.Errorf("%+v", s.Peers[0].Groups[0].Rates)
	}
	// The kernel tells the bytes of the stack only.
	before, now = listing(t, nltest.SampleState(), 0), listing(t, nltest.SampleState(), 1)
	before.Info.Stack, now.Info.Stack = "", ""
	c = before.Counters()
	if s := Build(&now, &c, netdev); s.Rates == nil || s.Peers[0].Groups[0].Rates != nil {
		t.Error("wrong rates for the kernel")
	}
}

func TestRate(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B/s", 1023: "1023 B/s", 1024: "1.00 KiB/s", 10 << 10: "10.0 KiB/s", 100 << 10: "100 KiB/s", 1023 << 10: "1023 KiB/s",
		1<<20 - 1: "1.00 MiB/s", 258 << 20: "258 MiB/s", 5 << 29: "2.50 GiB/s", 1 << 63: "8388608 TiB/s",
	} {
		if got := Rate(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestHostile checks that texts of others add neither elements nor lines nor control
// characters to a picture.
func TestHostile(t *testing.T) {
	const hostile = "\x1b[2J\u202e\n</text><script>alert(1)</script>\"];evil--evil2[label=\"\\\xff&x;" + `'onload='alert(1)`
	count := func(text string) (lines map[string]int, elements map[string]map[string]int) {
		l := listing(t, nltest.SampleState(), 0)
		l.Devices[0].Provider = ""
		nltest.Poison(&l, text)
		lines, elements = map[string]int{}, map[string]map[string]int{}
		for kind, b := range pictures([]Stack{Build(&l, nil, func(uint32) string { return "eth0" + text })}, 5) {
			lines[kind] = bytes.Count(b, []byte("\n"))
			if i := strings.IndexFunc(string(b), func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }); i >= 0 {
				t.Errorf("%s: %q", kind, b[max(0, i-40):i+10])
			}
			if strings.HasSuffix(kind, "svg") {
				found := elementsOf(t, b)
				delete(found, "title") // of texts that are cut
				delete(found, "text")
				if found["script"] > 0 {
					t.Errorf("%s has a script", kind)
				}
				elements[kind] = found
			}
		}
		return lines, elements
	}
	badLines, badElements := count(hostile)
	goodLines, goodElements := count("benign-benign-benign-benign-benign-benign")
	for kind := range goodLines {
		// The text in the box of the host breaks between words.
		if d := badLines[kind] - goodLines[kind]; d < 0 || d > 4 || d > 0 && !strings.HasSuffix(kind, "svg") {
			t.Errorf("%s: %d lines, want %d", kind, badLines[kind], goodLines[kind])
		}
	}
	if diff := cmp.Diff(goodElements, badElements); diff != "" {
		t.Error(diff)
	}
}

// elementsOf returns how many elements of each kind a document has.
func elementsOf(t *testing.T, b []byte) map[string]int {
	t.Helper()
	n := map[string]int{}
	for dec := xml.NewDecoder(bytes.NewReader(b)); ; {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, b)
		}
		if e, ok := tok.(xml.StartElement); ok {
			n[e.Name.Local]++
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") {
					t.Errorf("attribute %s", a.Name.Local)
				}
			}
		}
	}
}

// TestGraphviz has Graphviz draw the graphs: each node that the model has, and no other.
func TestGraphviz(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Graphviz: part of make test-all")
	}
	netnstest.Require(t, "dot")
	hostile := sample(t)
	hostile.Host += `"]; evil -- evil2; x [label="` + "\\"
	hostile.Peers[0].Host = `a\`
	hostile.Peers[1].Host = `&lt;<b>x</b>&#0;`
	all := scenes(t)
	all["hostile"] = []Stack{hostile}
	for name, stacks := range all {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "dot", "-Tsvg")
		var stderr bytes.Buffer
		cmd.Stdin, cmd.Stderr = bytes.NewReader(DOT(stacks, 5)), &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, &stderr)
			continue
		}
		if strings.Contains(stderr.String(), "syntax") || strings.Contains(stderr.String(), "Error") {
			t.Errorf("%s: %s", name, &stderr)
		}
		elementsOf(t, out) // it is XML
		if strings.Contains(string(out), ">evil") {
			t.Errorf("%s has a node of the text", name)
		}
		for _, s := range stacks {
			s = Limit(s, 5)
			for _, p := range s.Peers {
				for _, g := range p.Groups {
					if !strings.Contains(string(out), "link group "+g.ID) {
						t.Errorf("%s: no link group %s", name, g.ID)
					}
				}
			}
		}
	}
}

// broken is a stack that does not know some questions, or does not answer them.
type broken struct {
	*nltest.Fake
	err error
}

func (b broken) Stats(context.Context) (nl.Stats, error) { return nl.Stats{}, b.err }

func TestRead(t *testing.T) {
	fake := nltest.NewFake(nltest.SampleState())
	if l, err := Read(t.Context(), "kernel", broken{fake, nl.ErrNotSupported}); err != nil || len(l.Groups) != 2 || len(l.Conns) != 3 || l.Stack != "kernel" {
		t.Errorf("%v, %+v", err, l)
	}
	gone := errors.New("gone")
	if l, err := Read(t.Context(), "kernel", broken{fake, gone}); !errors.Is(err, gone) || l.Groups != nil {
		t.Errorf("%v, %+v", err, l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, "kernel", fake); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
