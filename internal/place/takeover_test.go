// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// heir inherits the place of c and opens its sockets.
func heir(t *testing.T, v *view, c *Claim) *Claim {
	t.Helper()
	lock, err := c.Lock()
	if err != nil {
		t.Fatal(err)
	}
	next, err := v.inherit(lock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = next.Close() })
	for _, name := range []string{Commands, Takeover} {
		if _, err := next.Listen(name); err != nil {
			t.Fatal(err)
		}
	}
	return next
}

func part(t *testing.T, c *Claim) int {
	t.Helper()
	n, err := c.Part()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Part(); again != n || err != nil {
		t.Errorf("part %d, then %d, %v", n, again, err)
	}
	return n
}

// TestInherit takes a place over several times. It is never free, and clients always find
// a socket: that of the old process until Publish.
func TestInherit(t *testing.T) {
	v := newView(t)
	claims := []*Claim{newStack(t, v)}
	if n := part(t, claims[0]); n != 0 {
		t.Errorf("the first part is %d", n)
	}
	for i := range 3 {
		old := claims[i]
		next := heir(t, v, old)
		if n := part(t, next); n != i+1 {
			t.Errorf("process %d has part %d", i+1, n)
		}
		if err := v.reach(); err != nil {
			t.Errorf("before Publish: %v", err)
		}
		if _, err := v.take(); !errors.Is(err, ErrTaken) {
			t.Errorf("before Publish: %v", err)
		}
		if err := next.Publish(); err != nil {
			t.Fatal(err)
		}
		l, err := old.Leave(time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		claims = append(claims, next)
		if got := len(v.ending()); got != i+1 {
			t.Errorf("%d stacks are ending, want %d", got, i+1)
		}
	}
	for i, c := range claims[:len(claims)-1] {
		if u, err := c.DialNext(t.Context()); err != nil {
			t.Errorf("process %d does not find the last one: %v", i, err)
		} else {
			_ = u.Close()
		}
	}
	for i, c := range claims {
		if err := v.reach(); err != nil {
			t.Errorf("before the end of process %d: %v", i, err)
		}
		if _, err := v.take(); !errors.Is(err, ErrTaken) {
			t.Errorf("before the end of process %d: %v", i, err)
		}
		if err := errors.Join(c.Close(), c.Close()); err != nil {
			t.Error(err)
		}
	}
	if left := names(t, claims[0].dir); !slices.Equal(left, []string{lockName}) {
		t.Errorf("left: %q", left)
	}
	if _, err := claims[0].DialNext(t.Context()); !errors.Is(err, ErrAbsent) {
		t.Errorf("after the end of all: %v", err)
	}
	newStack(t, v)
}

// TestInheritFails checks that a process that dies before Publish changes nothing.
func TestInheritFails(t *testing.T) {
	v := newView(t)
	c := newStack(t, v)
	before := names(t, c.dir)
	next := heir(t, v, c)
	part(t, next)
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if after := names(t, c.dir); !slices.Equal(before, after) {
		t.Errorf("left: %q, want %q", after, before)
	}
	if err := v.reach(); err != nil {
		t.Error(err)
	}
	if _, err := v.take(); !errors.Is(err, ErrTaken) {
		t.Error(err)
	}
	// A file that is not the lock.
	f, err := os.Create(filepath.Join(t.TempDir(), lockName))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.inherit(f); !errors.Is(err, ErrTaken) {
		t.Errorf("another file: %v", err)
	}
}

// TestPartOfKilled checks that the parts of killed processes are free again, and that those
// of living ones are not, also if a new stack has the place.
func TestPartOfKilled(t *testing.T) {
	v := newView(t)
	c := newStack(t, v)
	part(t, c)
	next := heir(t, v, c)
	part(t, next)
	if err := next.Publish(); err != nil {
		t.Fatal(err)
	}
	l, err := c.Leave(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	next.die(t)
	if err := next.part.Close(); err != nil {
		t.Fatal(err)
	}
	third := newStack(t, v)
	if n := part(t, third); n != 1 {
		t.Errorf("the third process has part %d", n)
	}
	if got := v.ending(); !slices.Equal(got, []string{endingName(0)}) {
		t.Errorf("ending: %q", got)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := v.reach(); err != nil {
		t.Error(err)
	}
}

// TestParts checks the limit of processes.
func TestParts(t *testing.T) {
	v := newView(t)
	c := newStack(t, v)
	for range Parts {
		part(t, c)
		c = heir(t, v, c)
	}
	if _, err := c.Part(); !errors.Is(err, ErrParts) {
		t.Error(err)
	}
}
