// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"testing"
	"time"
)

// BenchmarkEvent measures the cost of an event of a link group without the protocol: the
// lock, and the search for actions and for the next deadline.
func BenchmarkEvent(b *testing.B) {
	bed := newBed(b, nil)
	c, s := bed.connect()
	b.Run("lock", func(b *testing.B) {
		n := 0
		for b.Loop() {
			c.g.mu.Lock()
			n++
			c.g.mu.Unlock()
		}
	})
	b.Run("event", func(b *testing.B) {
		nothing := func(time.Time) {}
		b.ReportAllocs()
		for b.Loop() {
			c.g.do(nothing)
		}
	})
	bed.finish(c, s)
}
