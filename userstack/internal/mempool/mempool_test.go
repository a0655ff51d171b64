// SPDX-License-Identifier: Apache-2.0

package mempool

import (
	"testing"
	"time"
)

// TestPool: memory is reused, zeroed, while the pool keeps it.
func TestPool(t *testing.T) {
	freed := 0
	p := New(func() { freed++ })
	const n = 1 << 16
	get := func() []byte {
		t.Helper()
		b, err := p.Get(n)
		if err != nil || len(b) != n {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		for i, c := range b {
			if c != 0 {
				t.Fatalf("byte %d is %d", i, c)
			}
		}
		return b
	}
	b := get()
	b[0], b[n-1] = 1, 2
	now := time.Now()
	p.Put(b, now)
	again := get()
	if &again[0] != &b[0] || freed != 1 || p.InUse() != n {
		t.Errorf("not the same memory, or %d calls and %d bytes in use", freed, p.InUse())
	}
	p.Put(again, now)
	if !p.Trim(now) {
		t.Error("memory used at that time was given back")
	}
	if p.Trim(now.Add(time.Second)) || p.InUse() != 0 || len(p.Kept()) != 0 {
		t.Errorf("%d buffers are kept, %d bytes in use", len(p.Kept()), p.InUse())
	}
	b = get()
	p.Close()
	p.Put(b, now)
	if len(p.Kept()) != 0 || p.InUse() != 0 || freed != 2 {
		t.Errorf("after Close: %d buffers are kept, %d bytes in use, %d calls", len(p.Kept()), p.InUse(), freed)
	}
}
