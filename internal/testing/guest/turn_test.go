// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// TestTurns: there are as many turns as were made, and a turn that was given back serves
// the next one that waits.
func TestTurns(t *testing.T) {
	dir, err := MakeTurns(2)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	take := func(ctx context.Context) (func() error, error) {
		t.Helper()
		return takeTurn(ctx, dir)
	}
	first, err := take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, err := take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Real time: no turn comes in it.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := take(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("third turn of two: %v", err)
	}
	third := make(chan error, 1)
	go func() {
		giveBack, err := take(t.Context())
		if err == nil {
			err = giveBack()
		}
		third <- err
	}()
	if err := first(); err != nil {
		t.Error(err)
	}
	if err := <-third; err != nil {
		t.Error(err)
	}
	if err := second(); err != nil {
		t.Error(err)
	}
	if _, err := takeTurn(t.Context(), t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("turn in an empty directory: %v", err)
	}
}
