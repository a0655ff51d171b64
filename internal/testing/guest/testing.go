// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"os"
	"testing"

	"smcr/internal/testing/testkind"
)

// New boots a guest that is closed at the end of the test. If this machine cannot boot
// guests, the test is skipped. It fails instead if CI=true is set in the environment. If
// there is a limit of guests, it waits for its turn, see [TurnsVariable].
func New(t testing.TB, cfg Config) *Guest {
	t.Helper()
	if !cfg.Short {
		SkipShort(t)
	}
	AwaitTurn(t)
	g, err := Boot(t.Context(), cfg)
	Check(t, err)
	closeAfter(t, g)
	return g
}

// Pair boots two guests like [BootPair]. They are closed at the end of the test, see
// [New].
func Pair(t testing.TB) (a, b *Guest) {
	t.Helper()
	SkipShort(t)
	AwaitTurn(t)
	a, b, err := BootPair(t.Context(), Config{})
	Check(t, err)
	closeAfter(t, a)
	closeAfter(t, b)
	return a, b
}

// SkipShort skips a test that boots guests in the short form of tests.
func SkipShort(t testing.TB) {
	t.Helper()
	testkind.System(t)
	if testing.Short() {
		t.Skip("boots a Linux kernel: run `sudo make test-all`")
	}
}

// Check handles the error of a boot: it skips the test if the machine cannot boot guests
// and CI=true is not set. Otherwise the test fails.
func Check(t testing.TB, err error) {
	t.Helper()
	testkind.System(t)
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
