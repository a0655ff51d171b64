// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A bufferSize is the flag value of a buffer size in bytes, as in smc_run: a number,
// or a number with the suffix k or K (KiB) or m or M (MiB).
type bufferSize int

// parseSize parses a buffer size. 0 is the default size.
func parseSize(s string) (int, error) {
	digits, unit := s, 1
	switch {
	case strings.HasSuffix(s, "k"), strings.HasSuffix(s, "K"):
		digits, unit = s[:len(s)-1], 1<<10
	case strings.HasSuffix(s, "m"), strings.HasSuffix(s, "M"):
		digits, unit = s[:len(s)-1], 1<<20
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || n > uint64(math.MaxInt32/unit) {
		return 0, fmt.Errorf("invalid size %q: must be a number of bytes, or a number with suffix k or M", s)
	}
	return int(n) * unit, nil
}

// Set implements pflag.Value.
func (b *bufferSize) Set(s string) error {
	n, err := parseSize(s)
	*b = bufferSize(n)
	return err
}

// Type implements pflag.Value.
func (b *bufferSize) Type() string { return "size" }

// String implements pflag.Value.
func (b *bufferSize) String() string {
	if *b == 0 {
		return ""
	}
	return strconv.Itoa(int(*b))
}
