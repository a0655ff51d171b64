// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"os"
	"testing"
)

// New boots a guest that the test owns: it is closed when the test ends. On a
// machine that cannot boot guests the test is skipped, or fails when the
// environment says CI=true.
func New(t testing.TB, cfg Config) *Guest {
	t.Helper()
	if !cfg.Short {
		SkipShort(t)
	}
	g, err := Boot(t.Context(), cfg)
	Check(t, err)
	closeAfter(t, g)
	return g
}

// Pair boots two guests as [BootPair] does, that the test owns, see [New].
func Pair(t testing.TB) (a, b *Guest) {
	t.Helper()
	SkipShort(t)
	a, b, err := BootPair(t.Context(), Config{})
	Check(t, err)
	closeAfter(t, a)
	closeAfter(t, b)
	return a, b
}

// SkipShort skips a test that boots guests where only short ones are wanted.
func SkipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a Linux kernel: run `sudo make test-all`")
	}
}

// Check ends a test at the error of a boot: it skips the test when the machine
// cannot boot guests and CI is not true, else the test fails.
func Check(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, ErrUnavailable) && os.Getenv("CI") != "true" && !errors.Is(err, context.Canceled):
		t.Skipf("needs a guest: %v", err)
	default:
		t.Fatal(err)
	}
}

func closeAfter(t testing.TB, g *Guest) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("console of guest %s: %s", g.Name(), g.Console())
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}
