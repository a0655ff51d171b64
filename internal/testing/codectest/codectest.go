// SPDX-License-Identifier: Apache-2.0

package codectest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A Codec test compares a codec with one message that another program sent.
type Codec[T comparable] struct {
	Golden  string // the message
	Want    T      // its content
	Invalid []int  // positions where an "x" makes the message invalid
	Parse   func([]byte) (T, error)
	Append  func(*T, []byte) []byte
}

// Run reads and writes the message, and checks that it is refused if it is cut short
// or invalid.
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
	for _, i := range c.Invalid {
		b := []byte(c.Golden)
		b[i] = 'x'
		if v, err := c.Parse(b); err == nil {
			t.Errorf("x at %d: %+v", i, v)
		}
	}
}

// Fuzz checks that a message that was read and written again has the same content.
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
