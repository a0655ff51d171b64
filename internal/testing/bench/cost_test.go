// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestUsedBetween: programs that ended meanwhile count, and neither the measuring process nor the stacks do.
func TestUsedBetween(t *testing.T) {
	const s = time.Second
	before := Snapshot{Procs: map[int]Proc{
		10: {PID: 10, Parent: 1, User: 3 * s, System: s, Children: 2 * s},
		11: {PID: 11, Parent: 10, User: s},             // a stack
		12: {PID: 12, Parent: 10, User: s, System: s},  // a server
		13: {PID: 13, Parent: 12, Children: 4 * s},     // its worker
		20: {PID: 20, Parent: 1, User: 100 * s},        // another program
		14: {PID: 14, Parent: 11, System: 7 * s},       // what a stack has started
		15: {PID: 15, Parent: 10, User: 90 * s / 1000}, // a client, which ends
	}}
	after := Snapshot{Procs: map[int]Proc{
		10: {PID: 10, Parent: 1, User: 13 * s, System: s, Children: 2*s + 590*s/1000},
		11: {PID: 11, Parent: 10, User: 2 * s},
		12: {PID: 12, Parent: 10, User: s, System: 3 * s},
		13: {PID: 13, Parent: 12, Children: 4 * s},
		20: {PID: 20, Parent: 1, User: 200 * s},
		14: {PID: 14, Parent: 11, System: 7*s + s/2},
	}}
	got := UsedBetween(before, after, 10, 11)
	if want := (Used{Programs: 2500 * time.Millisecond, Stacks: 1500 * time.Millisecond}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestCost(t *testing.T) {
	used := Used{Programs: time.Second, Stacks: 500 * time.Millisecond}
	var none, each *Cost
	if none = none.Each(used, 0, "µs/request"); none != nil {
		t.Errorf("without work: %+v", none)
	}
	each = each.Each(used, 1000, "µs/request").Each(used, 500, "µs/request")
	if diff := cmp.Diff(&Cost{Programs: []float64{1000, 2000}, Stacks: []float64{500, 1000}}, each); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(&Cost{Programs: []float64{0.5}, Stacks: []float64{0.25}}, (&Cost{}).Each(used, 2, "s/GiB")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestPrintAgainst prints a row that was measured with another build, too, and one that was not.
func TestPrintAgainst(t *testing.T) {
	r := result(t)
	r.Sizes, r.Connections, r.Against = nil, nil, "smcr 0.1.0 (fedcba9)"
	r.Rows = r.Rows[:2]
	x := r.Rows[0]
	x.Against = []float64{100, 100}
	x.CostUnit = "s/GiB"
	x.CostTCP, x.CostSMC, x.CostAgainst = &Cost{Programs: []float64{0.25, 0.75}, Stacks: []float64{0, 0}}, &Cost{Programs: []float64{1, 1}, Stacks: []float64{2, 2}}, &Cost{Programs: []float64{1, 1}, Stacks: []float64{3, 3}}
	x.Finish()
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"beside another build: smcr 0.1.0 (fedcba9);",
		"met other (min-max) SMC-R/other ",
		"target 100 100-100 0.65 ",
		"aim - - ",
		"CPU time of TCP: programs SMC-R: programs stacks other: programs stacks unit iperf3-1500 0.50 1.00 2.00 1.00 3.00 s/GiB ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
