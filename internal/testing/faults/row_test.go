// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRows: what is written is read again, rows of one fault are added up, and the table has
// a line for each and one for all.
func TestRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows")
	t.Setenv(ResultsVariable, file)
	for _, r := range []Row{
		{Fault: "b", Traffic: "x", Runs: 1, Conns: 4, Bytes: 100, SMC: 3, TCP: 1, Outcome: "lives"},
		{Fault: "a", Traffic: "x", Runs: 2, Conns: 8, Bytes: 7, Failed: 2, Corrupted: 1, Hung: 2, Leaked: 3},
		{Fault: "never made", Traffic: "x"},
		{Fault: "b", Traffic: "x", Runs: 1, Conns: 4, Bytes: 11, SMC: 4},
	} {
		if err := r.Write(); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	want := []Row{
		{Fault: "b", Traffic: "x", Runs: 2, Conns: 8, Bytes: 111, SMC: 7, TCP: 1, Outcome: "lives"},
		{Fault: "a", Traffic: "x", Runs: 2, Conns: 8, Bytes: 7, Failed: 2, Corrupted: 1, Hung: 2, Leaked: 3},
	}
	if len(rows) != len(want) || rows[0] != want[0] || rows[1] != want[1] {
		t.Errorf("rows %+v, want %+v", rows, want)
	}
	if !rows[0].Good() || rows[1].Good() {
		t.Error("only the first row is good")
	}
	lines := strings.Split(strings.TrimSpace(Table(rows)), "\n")
	for i, line := range []string{
		"| a | x | 2 | 8 | 0 | 0 | 2 | 7 | 1 | 2 | 3 |  |",
		"| b | x | 2 | 8 | 7 | 1 | 0 | 111 | 0 | 0 | 0 | lives |",
		"| **all** |  | 4 | 16 | 7 | 1 | 2 | 118 | 1 | 2 | 3 |  |",
	} {
		if len(lines) != 5 || lines[i+2] != line {
			t.Fatalf("table:\n%s\nwant line %q", strings.Join(lines, "\n"), line)
		}
	}
	if _, err := Read(strings.NewReader("{}\nbroken\n")); err == nil {
		t.Error("a broken line is no error")
	}
}

// TestOutcome: what a client prints decides what counts.
func TestOutcome(t *testing.T) {
	const (
		fine    = `{"seed":1,"sent":5,"received":5,"seconds":1}` + "\n"
		broken  = `{"seed":2,"sent":5,"received":3,"error":"reset","seconds":1}` + "\n"
		wrong   = `{"seed":3,"sent":5,"received":3,"error":"wrong bytes","corrupted":true,"seconds":1}` + "\n"
		summary = "smcr: 1 connection over SMC-R, 2 over TCP\n"
	)
	for _, tt := range []struct {
		name string
		log  string
		late bool
		err  error
		want Row
	}{
		{"in order", fine + fine + fine + summary, false, nil, Row{Conns: 3, Bytes: 15, SMC: 1, TCP: 2}},
		{"errors", fine + broken + wrong, false, nil, Row{Conns: 3, Bytes: 11, Failed: 2, Corrupted: 1}},
		{"not run, and says why", "smcr: no descriptors\n", false, os.ErrInvalid, Row{Conns: 3, Failed: 3}},
		{"not run, without a word", "", false, os.ErrInvalid, Row{Conns: 3, Failed: 3, Hung: 1}},
		{"does not end", fine, true, os.ErrDeadlineExceeded, Row{Conns: 3, Bytes: 5, Failed: 2, Hung: 2}},
	} {
		if got := outcome(3, tt.log, tt.late, tt.err); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
