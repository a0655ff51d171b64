// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
)

// Median returns the middle value, or the mean of the two middle values if their number
// is even. Without values it returns 0.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// Scatter returns the largest value as a multiple of the smallest one. It is 1 if all are
// equal, or if fewer than two values are above 0.
func Scatter(values []float64) float64 {
	least, most := 0.0, 0.0
	for _, v := range values {
		if v > 0 && (least == 0 || v < least) {
			least = v
		}
		most = max(most, v)
	}
	if least == 0 {
		return 1
	}
	return most / least
}

// Ratios returns smc[i] / tcp[i] for each round that has both values, with TCP above 0.
func Ratios(tcp, smc []float64) []float64 {
	var r []float64
	for i := range min(len(tcp), len(smc)) {
		if tcp[i] > 0 {
			r = append(r, smc[i]/tcp[i])
		}
	}
	return r
}

// spread prints the least and the largest of the values.
func spread(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	return format(slices.Min(values)) + "-" + format(slices.Max(values))
}

// format prints three significant digits, or all digits of a larger number.
func format(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
