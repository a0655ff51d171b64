// SPDX-License-Identifier: Apache-2.0

package bench

import (
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

func TestScatter(t *testing.T) {
	for _, test := range []struct {
		in   []float64
		want float64
	}{
		{nil, 1}, {[]float64{0, 0}, 1}, {[]float64{7}, 1}, {[]float64{10, 5, 8}, 2}, {[]float64{0, 4, 6}, 1.5},
	} {
		if got := Scatter(test.in); got != test.want {
			t.Errorf("Scatter(%v) = %v, want %v", test.in, got, test.want)
		}
	}
}

// TestRatios: each round is divided by the value of TCP in the same round, not by a mean.
func TestRatios(t *testing.T) {
	got := Ratios([]float64{100, 0, 50, 10}, []float64{50, 1, 50})
	if diff := cmp.Diff([]float64{0.5, 1}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRound(t *testing.T) {
	for in, want := range map[float64]float64{0: 0, 1.23456: 1.235, 123456: 123500, 0.000123456: 0.0001235, -9.87654: -9.877} {
		if got := Round(in); got != want {
			t.Errorf("Round(%v) = %v, want %v", in, got, want)
		}
	}
}
