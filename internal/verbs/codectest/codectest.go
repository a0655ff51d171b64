// SPDX-License-Identifier: Apache-2.0

package codectest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A Codec test holds a codec against one message that another program sent.
type Codec[T comparable] struct {
	Golden string // the message
	Want   T      // what it says
	Spoil  []int  // places where an 'x' makes it wrong
	Parse  func([]byte) (T, error)
	Append func(*T, []byte) []byte
}

// Run reads and writes the message, and has it refused where it is cut short or
// spoilt.
func (c Codec[T]) Run(t *testing.T) {
	t.Helper()
	got, err := c.Parse([]byte(c.Golden))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c.Want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(c.Golden, string(c.Append(&got, nil))); d != "" {
		t.Error(d)
	}
	for n := range len(c.Golden) {
		if v, err := c.Parse([]byte(c.Golden[:n])); err == nil {
			t.Errorf("%d bytes: %+v", n, v)
		}
	}
	for _, i := range c.Spoil {
		b := []byte(c.Golden)
		b[i] = 'x'
		if v, err := c.Parse(b); err == nil {
			t.Errorf("x at %d: %+v", i, v)
		}
	}
}

// Fuzz checks that whatever is read is written so that it reads the same.
func (c Codec[T]) Fuzz(f *testing.F) {
	f.Add([]byte(c.Golden))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := c.Parse(b)
		if err != nil {
			return
		}
		again, err := c.Parse(c.Append(&v, nil))
		if err != nil || again != v {
			t.Errorf("%q: %+v, then %+v, %v", b, v, again, err)
		}
	})
}
