// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"os"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// Looks of one process wait for each other, and none for those of another.
func TestLooksBound(t *testing.T) {
	testkind.System(t)
	x := newLooks(t.Context())
	var held []*look
	own, parent := os.Getpid(), os.Getppid()
	for i := range procLooks {
		l, err := x.begin(nil, own, time.Millisecond)
		if err != nil {
			t.Fatalf("look %d: %v", i, err)
		}
		held = append(held, l)
	}
	if _, err := x.begin(nil, own, time.Millisecond); !errors.Is(err, errBusy) {
		t.Errorf("one more: %v, want %v", err, errBusy)
	}
	other, err := x.begin(nil, parent, time.Millisecond)
	if err != nil {
		t.Errorf("of another process: %v", err)
	}
	// Who waits is next.
	next := make(chan *look)
	go func() {
		l, err := x.begin(nil, own, patience)
		if err != nil {
			t.Error(err)
		}
		next <- l
	}()
	for queued := 0; queued == 0; time.Sleep(time.Millisecond) {
		x.mu.Lock()
		queued = len(x.proc(own).queue)
		x.mu.Unlock()
	}
	x.end(held[0])
	held[0] = <-next
	for _, l := range append(held, other) {
		x.end(l)
	}
	if x.total != 0 || len(x.procs) != 0 || len(x.fresh) != 0 {
		t.Errorf("left: %d, %v, %v", x.total, x.procs, x.fresh)
	}
}

// Where places are scarce, a process that has none gets one before others get
// another.
func TestLooksScarce(t *testing.T) {
	testkind.System(t)
	x := newLooks(t.Context())
	x.total = sharedLooks // of processes that are not those of the test
	own, parent := os.Getpid(), os.Getppid()
	first, err := x.begin(nil, own, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.begin(nil, own, time.Millisecond); !errors.Is(err, errBusy) {
		t.Errorf("a second one: %v, want %v", err, errBusy)
	}
	other, err := x.begin(nil, parent, time.Millisecond)
	if err != nil {
		t.Fatalf("of another process: %v", err)
	}
	x.mu.Lock()
	x.total = maxLooks
	x.mu.Unlock()
	x.end(other)
	x.mu.Lock()
	x.total = maxLooks
	x.mu.Unlock()
	if _, err := x.begin(nil, parent, time.Millisecond); !errors.Is(err, errBusy) {
		t.Errorf("beyond all: %v, want %v", err, errBusy)
	}
	x.end(first)
}
