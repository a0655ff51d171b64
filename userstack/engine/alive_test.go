// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// TestAlive checks that a loop that sleeps, or is busy, is alive, and one whose round does
// not end is not.
func TestAlive(t *testing.T) {
	testkind.System(t)
	l, err := New(0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := Alive(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	stuck, release := make(chan struct{}), make(chan struct{})
	l.Task(func() {
		close(stuck)
		<-release
	}).Schedule()
	<-stuck
	// Real time: no answer comes meanwhile.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := Alive(ctx, l); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a loop in a round that does not end: %v", err)
	}
	l.mu.Lock() // a loop that does not give its lock back
	// Real time: no answer comes meanwhile.
	ctx2, cancel2 := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel2()
	if err := Alive(ctx2, l); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a loop that keeps its lock: %v", err)
	}
	l.mu.Unlock()
	close(release)
	if err := Alive(t.Context(), l); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Alive(t.Context(), l); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
