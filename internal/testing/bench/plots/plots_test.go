// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/bench"
)

// whole makes a result with values for each plot.
func whole() *bench.Result {
	r := &bench.Result{Schema: bench.Schema, Date: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Commit: "0123abc", Rounds: 2, Seconds: 1}
	for i, row := range bench.Rows() {
		row.Add(100, 40+10*float64(i))
		row.Add(120, 50+10*float64(i))
		row.Finish()
		r.Rows = append(r.Rows, row)
	}
	for n := 1; n <= 64<<20; n *= 8 {
		s := &bench.Size{Bytes: n, ThroughputTCP: []float64{float64(n), float64(2 * n)}, ThroughputSMC: []float64{float64(n) / 2, 0}}
		if n <= 4096 {
			s.RoundTripTCP, s.RoundTripSMC = []float64{20}, []float64{40}
		}
		r.Sizes = append(r.Sizes, s)
	}
	for _, n := range []int{1, 10, 100} {
		r.Connections = append(r.Connections, &bench.Population{Connections: n, RequestsTCP: []float64{1000}, RequestsSMC: []float64{500}, MemoryTCP: []float64{0.5}, MemorySMC: []float64{float64(n)}})
	}
	r.Connections = append(r.Connections, &bench.Population{Connections: 10000, Skipped: "too few files"})
	for _, row := range []string{"iperf3-1500", "roundtrip", "wrk"} {
		for _, side := range []string{"client", "server"} {
			r.Shares = append(r.Shares,
				&bench.Share{Row: row, Transport: "tcp", Side: side, Component: "program", Unit: "s/GiB", User: 0.1, System: 0.2},
				&bench.Share{Row: row, Transport: "smc", Side: side, Component: "stack", Unit: "s/GiB", User: 0.3, System: 0.4})
		}
	}
	for _, row := range []string{"goapi", "goapi-roundtrip"} {
		for _, side := range []string{"client", "server"} {
			for _, name := range bench.AreaNames {
				r.Areas = append(r.Areas, &bench.Area{Row: row, Side: side, Name: name, Share: 1 / float64(len(bench.AreaNames))})
			}
		}
	}
	return r
}

// TestDraw: each plot is valid XML with its words, and the same in each run.
func TestDraw(t *testing.T) {
	first, err := drawAll(whole())
	if err != nil {
		t.Fatal(err)
	}
	again, err := drawAll(whole())
	if err != nil {
		t.Fatal(err)
	}
	words := map[string][]string{
		"targets":     {"iperf3-1500", "at least", "aim", "roundtrip"},
		"throughput":  {"16 MiB", "1 B", "kernel TCP", "SMC-R", "MiB/s"},
		"roundtrip":   {"4 KiB", "µs (less is better)"},
		"requests":    {"100", "requests/s"},
		"memory":      {"MiB (less is better)"},
		"time-areas":  {"software RoCE", "128 KiB, client"},
		"time-iperf3": {"SMC-R, client", "stack, kernel", "s/GiB"},
	}
	for i, d := range first {
		if !bytes.Equal(d.svg, again[i].svg) {
			t.Errorf("%s is another the second time", d.name)
		}
		for dec := xml.NewDecoder(bytes.NewReader(d.svg)); ; {
			if _, err := dec.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", d.name, err)
			}
		}
		for _, word := range words[d.name] {
			if !strings.Contains(string(d.svg), ">"+word+"<") {
				t.Errorf("%s has no %q", d.name, word)
			}
		}
		if strings.Contains(string(d.svg), "NaN") || strings.Contains(string(d.svg), "Inf") {
			t.Errorf("%s has what is no number", d.name)
		}
	}
	if len(areaColors) != len(bench.AreaNames) {
		t.Errorf("%d colours of %d areas", len(areaColors), len(bench.AreaNames))
	}
	if len(first) != len(plots) {
		t.Errorf("%d plots of %d", len(first), len(plots))
	}
}

// TestIncomplete: an incomplete result is not drawn.
func TestIncomplete(t *testing.T) {
	for name, cut := range map[string]func(*bench.Result){
		"rows":        func(r *bench.Result) { r.Rows = nil },
		"sizes":       func(r *bench.Result) { r.Sizes = nil },
		"connections": func(r *bench.Result) { r.Connections = r.Connections[3:] },
		"shares":      func(r *bench.Result) { r.Shares = r.Shares[:4] },
		"areas":       func(r *bench.Result) { r.Areas = nil },
	} {
		r := whole()
		cut(r)
		if _, err := drawAll(r); !errors.Is(err, errIncomplete) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestRun writes the plots and the table of the newest result.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	results, document, svg := filepath.Join(dir, "results"), filepath.Join(dir, "doc.md"), filepath.Join(dir, "svg")
	if _, err := whole().Write(results); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(document, []byte("no marks\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(results, document, svg); !errors.Is(err, bench.ErrNoMarks) {
		t.Errorf("without marks: %v", err)
	}
	const head = "words\n<!-- begin: make bench-plots -->\n"
	if err := os.WriteFile(document, []byte(head+"<!-- end: make bench-plots -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(results, document, svg); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(document)
	if err != nil || !strings.HasPrefix(string(text), head+"2026-03-04, commit 0123abc") || !strings.Contains(string(text), "| roundtrip |") {
		t.Errorf("%v\n%s", err, text)
	}
	for _, p := range plots {
		if _, err := os.Stat(filepath.Join(svg, p.name+".svg")); err != nil {
			t.Error(err)
		}
	}
}

func TestByteSize(t *testing.T) {
	for n, want := range map[float64]string{1: "1 B", 512: "512 B", 1024: "1 KiB", 1536: "1536 B", 32 << 10: "32 KiB", 64 << 20: "64 MiB"} {
		if got := byteSize(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int]string{7: "7", 1000: "1,000", 12345678: "12,345,678"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
