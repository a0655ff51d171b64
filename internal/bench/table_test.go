// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5},
	} {
		in := append([]float64(nil), test.in...)
		if got := Median(in); got != test.want {
			t.Errorf("Median(%v) = %v, want %v", test.in, got, test.want)
		}
		if diff := cmp.Diff(test.in, in); diff != "" && len(in) > 0 {
			t.Errorf("Median changed its argument: %s", diff)
		}
	}
}

func TestPrint(t *testing.T) {
	var b strings.Builder
	err := Print(&b, []*Measure{
		{Name: "throughput", Unit: "MiB/s", TCP: []float64{100, 300, 200}, SMC: []float64{150, 100, 90}},
		{Name: "round trip", Unit: "µs", LessIsBetter: true, TCP: []float64{14.04}, SMC: []float64{7.021}},
		{Name: "memory", Unit: "KiB", TCP: []float64{0}, SMC: []float64{512}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for line := range strings.Lines(b.String()) {
		got = append(got, strings.Fields(line)[:])
	}
	want := [][]string{
		strings.Fields("measure kernel TCP (min-max) SMC-R (min-max) unit ratio better is"),
		strings.Fields("throughput 200 100-300 100 90.0-150 MiB/s 0.50 more"),
		strings.Fields("round trip 14.0 14.0-14.0 7.02 7.02-7.02 µs 0.50 less"),
		strings.Fields("memory 0.00 0.00-0.00 512 512-512 KiB - more"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
