// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestShare: all connections are on some pair, and no pair has too many.
func TestShare(t *testing.T) {
	for _, test := range []struct {
		n, most int
		want    []int
	}{
		{0, 100, nil},
		{1, 100, []int{1}},
		{100, 100, []int{100}},
		{101, 100, []int{100, 1}},
		{10000, 4750, []int{4750, 4750, 500}},
	} {
		var got []int
		for i := range pairsFor(test.n, test.most) {
			got = append(got, share(test.n, test.most, i))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%d connections, %d each: %v, want %v", test.n, test.most, got, test.want)
		}
		if extra := share(test.n, test.most, len(test.want)); extra != 0 {
			t.Errorf("%d connections, %d each: %d more", test.n, test.most, extra)
		}
	}
}

// TestEach: the results are added up, and the errors are joined.
func TestEach(t *testing.T) {
	s := &spread{crowds: make([]*crowd, 3)}
	sum, err := s.each(func(i int, _ *crowd) (float64, error) { return float64(i + 1), nil })
	if sum != 6 || err != nil {
		t.Errorf("%v, %v; want 6", sum, err)
	}
	first, last := errors.New("first"), errors.New("last")
	_, err = s.each(func(i int, _ *crowd) (float64, error) { return 0, []error{first, nil, last}[i] })
	if !errors.Is(err, first) || !errors.Is(err, last) {
		t.Errorf("%v; want both errors", err)
	}
}

// TestRaiseFiles: child processes have the same limit.
func TestRaiseFiles(t *testing.T) {
	testkind.System(t)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) })
	low := was
	low.Cur = min(256, was.Max)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	if got := perPair(); got != 0 {
		t.Errorf("with 256 descriptors %d connections on a pair of hosts", got)
	}
	if err := raiseFiles(); err != nil {
		t.Fatal(err)
	}
	var is unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &is); err != nil || is.Cur != is.Max || is.Max < was.Max {
		t.Errorf("limit %+v of %+v: %v", is, was, err)
	}
	out, err := exec.Command("sh", "-c", "ulimit -n").Output()
	if err != nil || strings.TrimSpace(string(out)) != strconv.FormatUint(is.Cur, 10) {
		t.Errorf("a program has %q, not %d: %v", out, is.Cur, err)
	}
	if want := (int(is.Cur) - filesSpare) / filesEach; perPair() != max(0, want) {
		t.Errorf("%d connections on a pair of hosts, not %d", perPair(), want)
	}
}
