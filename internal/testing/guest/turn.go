// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TurnsVariable is the environment variable that limits how many tests have guests at
// the same time, in all processes that have it. Its value is a directory of [MakeTurns].
// Without it there is no limit.
const TurnsVariable = "SMCR_GUEST_TURNS"

// MakeTurns makes a directory for n turns. The caller removes it.
func MakeTurns(n int) (dir string, err error) {
	dir, err = os.MkdirTemp("", "smcr-guest-turns-")
	if err != nil {
		return "", fmt.Errorf("guest: %w", err)
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			return "", errors.Join(fmt.Errorf("guest: %w", err), os.RemoveAll(dir))
		}
	}
	return dir, nil
}

// takeTurn waits for one of the turns in dir. A turn is the lock on a file, so the end of
// the process gives it back too.
func takeTurn(ctx context.Context, dir string) (giveBack func() error, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("guest: no turns in %q: %w", dir, errors.Join(err, os.ErrNotExist))
	}
	for {
		for _, name := range names {
			f, err := os.OpenFile(name, os.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("guest: %w", err)
			}
			if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
				return f.Close, nil
			}
			f.Close()
			if err != unix.EWOULDBLOCK && err != unix.EINTR {
				return nil, fmt.Errorf("guest: lock %s: %w", name, err)
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("guest: wait for a turn: %w", context.Cause(ctx))
		}
	}
}

// WaitedText begins the line by which a test says how long it has waited for its turn.
// A duration follows.
const WaitedText = "waited for the guests of other tests: "

// AwaitTurn takes a turn until the end of the test, if there is a limit of guests. [New]
// and [Pair] call it. A test that has its guests in another way calls it itself.
func AwaitTurn(t testing.TB) {
	t.Helper()
	dir := os.Getenv(TurnsVariable)
	if dir == "" {
		return
	}
	begin := time.Now()
	giveBack, err := takeTurn(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := giveBack(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%s%v", WaitedText, time.Since(begin).Round(100*time.Millisecond))
}
