// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPrintListings(t *testing.T) {
	var b strings.Builder
	err := PrintListings(&b, []*Listing{
		{Command: "smcr --version", Wall: []float64{3, 2, 4}, CPU: []float64{1.5}, Memory: []float64{5}},
		{
			Command: "smcss -a", Rows: 1000, Wall: []float64{9, 8, 100}, CPU: []float64{7, 7, 70}, Memory: []float64{12, 11, 13},
			C: &CTool{Rows: 40, Wall: 50, Memory: 1.68},
		},
	}, 6)
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for line := range strings.Lines(b.String()) {
		got = append(got, strings.Fields(line))
	}
	want := [][]string{
		strings.Fields("rows time ms (min-max) CPU ms memory MiB C: time ms memory MiB command"),
		strings.Fields("- 3.00 2.00-4.00 1.50 <6.00 - - smcr --version"),
		strings.Fields("1000 9.00 8.00-100 7.00 12.0 50.0 1.68 smcss -a"),
	}
	if diff := cmp.Diff(want, got[:3]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !strings.Contains(b.String(), "another machine") {
		t.Error("the output does not say where the figures of the C tools come from")
	}
}
