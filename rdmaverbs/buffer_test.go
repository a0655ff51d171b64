// SPDX-License-Identifier: Apache-2.0

//go:build linux

package rdmaverbs

import (
	"os"
	"runtime/debug"
	"slices"
	"testing"
)

func newBuffer(t testing.TB, n int) []byte {
	t.Helper()
	b, err := AllocBuffer(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := FreeBuffer(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

func allZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// written writes to parts of b, none of them a whole page.
func written(b []byte, page int) {
	for _, at := range []int{0, page - 1, 3*page - 5, 70*page + 7, len(b) - 3} {
		for i := range b[at:min(at+9, len(b))] {
			b[at+i] = 0xff
		}
	}
}

// TestZeroBuffer: the given part is zero afterwards and nothing else is changed, for all
// positions of its begin and end. Pages that were never written to take no memory.
func TestZeroBuffer(t *testing.T) {
	page := os.Getpagesize()
	b := newBuffer(t, 150*page)
	held := func(want int) {
		t.Helper()
		if got := HeldBytes(b); got >= 0 && got != want*page {
			t.Errorf("%d pages take memory, want %d", got/page, want)
		}
	}
	held(0)
	written(b, page)
	held(6) // 0, 1, 2, 3, 70, 149
	ZeroBuffer(b)
	held(6) // the check below reads all pages, which then count as held
	if !allZero(b) {
		t.Error("not all is zero")
	}

	for _, f := range []struct {
		name string
		zero func([]byte)
	}{
		{"zero", ZeroBuffer},
		{"discard", func(b []byte) {
			if err := DiscardBuffer(b); err != nil {
				t.Error(err)
			}
		}},
	} {
		for _, from := range []int{0, 1, page - 1, page, page + 1, 3*page - 1} {
			for _, to := range []int{from, from + 1, 4*page - 1, 4 * page, 4*page + 1, 149*page + 1, len(b)} {
				for i := range b {
					b[i] = byte(i)%255 + 1
				}
				f.zero(b[from:to])
				if !allZero(b[from:to]) {
					t.Fatalf("%s [%d:%d]: not all is zero", f.name, from, to)
				}
				for i := range b {
					if (i < from || i >= to) && b[i] != byte(i)%255+1 {
						t.Fatalf("%s [%d:%d]: byte %d is changed to %d", f.name, from, to, i, b[i])
					}
				}
			}
		}
	}
}

// TestDiscardBuffer: the pages take no memory afterwards.
func TestDiscardBuffer(t *testing.T) {
	page := os.Getpagesize()
	b := newBuffer(t, 150*page)
	written(b, page)
	if err := DiscardBuffer(b[page : 140*page]); err != nil {
		t.Fatal(err)
	}
	if got := HeldBytes(b); got >= 0 && got != 2*page {
		t.Errorf("%d pages take memory, want 2", got/page)
	}
}

func TestZeroBufferAllocs(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("what os.File is given is allocated under the race detector: go test -run TestZeroBufferAllocs ./rdmaverbs")
	}
	b := newBuffer(t, 256<<10)
	b[0] = 1
	if n := testing.AllocsPerRun(100, func() { ZeroBuffer(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkZeroBuffer measures the cost of reusing a buffer of which one page, or all
// pages, were written to.
func BenchmarkZeroBuffer(b *testing.B) {
	page := os.Getpagesize()
	for name, pages := range map[string]int{"one": 1, "all": 64} {
		b.Run(name, func(b *testing.B) {
			buf := newBuffer(b, 64*page)
			for i := range pages {
				buf[i*page] = 1
			}
			for b.Loop() {
				ZeroBuffer(buf)
			}
		})
	}
}
