// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func result(t *testing.T) *Result {
	t.Helper()
	r := &Result{
		Schema: Schema, Date: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Commit: "0123abc", Command: `smcrbench -serve-flags "--spin [0]"`,
		Machine: Machine{Cores: 2, CPU: "Model [1]", Kernel: "6.1.2", Arch: "amd64", Go: "go1.26"}, Rounds: 2, Seconds: 1,
		Sizes: []*Size{{Bytes: 1, ThroughputTCP: []float64{1, 2.5}, ThroughputSMC: []float64{-1, 3}}},
		Connections: []*Population{
			{Connections: 1, RequestsTCP: []float64{1000, 2000}, RequestsSMC: []float64{500, 500}, MemoryTCP: []float64{1}, MemorySMC: []float64{20}},
			{Connections: 4000, RequestsTCP: []float64{10}, RequestsSMC: []float64{5}, MemoryTCP: []float64{1}, MemorySMC: []float64{20},
				IdleTCP: []float64{0.25}, IdleSMC: []float64{1.25}, Pairs: 2},
			{Connections: 10000, Skipped: "too few files"},
		},
	}
	for _, id := range []string{"iperf3-1500", "memory", "connect"} {
		x := row(t, id)
		x.Add(100, 50)
		x.Add(200, 80)
		x.Finish()
		r.Rows = append(r.Rows, x)
	}
	return r
}

func TestWriteReadNewest(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "results")
	if _, _, err := Newest(dir); !errors.Is(err, ErrNoResult) {
		t.Errorf("Newest of nothing: %v", err)
	}
	want := result(t)
	name, err := want.Write(dir)
	if err != nil || filepath.Base(name) != "2026-03-04-0123abc.json" {
		t.Fatalf("Write: %s, %v", name, err)
	}
	got, err := Read(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-written +read)\n%s", diff)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `"throughput_tcp": [1,2.5]`) {
		t.Errorf("numbers are not on one line:\n%s", text)
	}

	// A result of the same day, later, with a name that sorts first.
	later := result(t)
	later.Date, later.Commit = want.Date.Add(time.Hour), "0000000"
	if _, err := later.Write(dir); err != nil {
		t.Fatal(err)
	}
	newest, file, err := Newest(dir)
	if err != nil || newest.Commit != "0000000" || filepath.Base(file) != later.FileName() {
		t.Errorf("Newest: %v, %s, %v", newest, file, err)
	}

	// An invalid file is an error.
	for _, broken := range []string{`{"schema": 2}`, `{`} {
		if err := os.WriteFile(filepath.Join(dir, "x.json"), []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Newest(dir); err == nil || !strings.Contains(err.Error(), "x.json") {
			t.Errorf("Newest with %s: %v", broken, err)
		}
	}
}

func TestPrint(t *testing.T) {
	r := result(t)
	r.Forced, r.OthersMax, r.ServeFlags = true, 0.25, "--no-engine"
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for line := range strings.Lines(b.String()) {
		got = append(got, strings.Fields(line))
	}
	want := [][]string{
		strings.Fields("2026-03-04, commit 0123abc; 2 cores of Model [1], Linux 6.1.2, amd64, go1.26; 2 rounds of 1 s, smcr serve --no-engine; medians (min-max)."),
		strings.Fields("row MTU kernel TCP (min-max) SMC-R (min-max) unit ratio at least aim met"),
		strings.Fields("iperf3-1500 1500 150 100-200 65.0 50.0-80.0 Gbit/s 0.45 0.3 0.6 target"),
		strings.Fields("memory 1500 150 100-200 65.0 50.0-80.0 KiB -85.0 KiB 160 KiB 40 KiB aim"),
		strings.Fields("connect 1500 150 100-200 65.0 50.0-80.0 connections/s 0.45 - - -"),
		strings.Fields("connections requests/s, TCP SMC-R ratio MiB, TCP SMC-R idle CPU %, TCP SMC-R at most met"),
		strings.Fields("1 1500 (1000-2000) 500 (500-500) 0.38 1.00 (1.00-1.00) 20.0 (20.0-20.0) - - - -"),
		strings.Fields("4000 10.0 (10.0-10.0) 5.00 (5.00-5.00) 0.50 1.00 (1.00-1.00) 20.0 (20.0-20.0) 0.25 (0.25-0.25) 1.25 (1.25-1.25) 1 target"),
		strings.Fields("10000 - - - - - - - - -"),
		strings.Fields("Measured with -force while others used up to 25 % of the CPU: these figures prove nothing."),
		strings.Fields("4000 connections are spread over 2 pairs of hosts: the limit of open files allows a stack no more."),
		strings.Fields("10000 connections were left out: too few files."),
		strings.Fields("Kernel TCP itself scatters between the rounds, so these ratios are uncertain: iperf3-1500 (by a factor of 2.00), connect (by a factor of 2.00)."),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestMarkdown(t *testing.T) {
	got := result(t).Markdown()
	for _, want := range []string{
		"| iperf3-1500 | iperf3 | 1500 | 150 (100-200) | 65.0 (50.0-80.0) | Gbit/s | 0.45 | 0.3 | 0.6 | target |\n",
		"| memory | memory of a connection, both ends | 1500 |",
		"|\n\n| connections | requests/s, TCP |",
		"|---|\n| 1 | 1500 (1000-2000) |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "-force") {
		t.Errorf("a result that was not forced says so:\n%s", got)
	}
}

// TestIdleMet: the cost of the stacks is the difference to TCP.
func TestIdleMet(t *testing.T) {
	for _, test := range []struct {
		tcp, smc []float64
		want     string
	}{
		{nil, nil, "-"},
		{[]float64{0.5}, []float64{1.5}, "target"},
		{[]float64{0.5}, []float64{1.6}, "no"},
		{[]float64{0, 0, 0}, []float64{9, 0.9, 0.8}, "target"},
	} {
		if got := (&Population{IdleTCP: test.tcp, IdleSMC: test.smc}).idleMet(); got != test.want {
			t.Errorf("%v over TCP, %v over SMC-R: %s, want %s", test.tcp, test.smc, got, test.want)
		}
	}
}

func TestReplace(t *testing.T) {
	document := []byte("# A\n" + markBegin + "\nold\nlines\n" + markEnd + "\nrest\n")
	want := "# A\n" + markBegin + "\nnew\n" + markEnd + "\nrest\n"
	for range 2 { // a second Replace changes nothing
		var err error
		if document, err = Replace(document, "new\n"); err != nil || string(document) != want {
			t.Fatalf("%v\n%s", err, document)
		}
	}
	for _, bad := range []string{"", markBegin + "\n", markEnd + "\n", markEnd + "\n" + markBegin + "\n"} {
		if _, err := Replace([]byte(bad), "new\n"); !errors.Is(err, ErrNoMarks) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
