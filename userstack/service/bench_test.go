// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"runtime"
	"strings"
	"testing"
)

// BenchmarkRoundTrip has two programs send each other a byte in turns, over two
// services, and counts how often somebody waited for the lock of a link group.
// RDMA is simulated, and the time is mostly that of the simulation's timers.
func BenchmarkRoundTrip(b *testing.B) {
	c := newCarried(b, os.Geteuid())
	name := "goroutines"
	if withEngine {
		name = "engine"
	}
	b.Run(name, func(b *testing.B) {
		defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(1))
		before := groupLockWaits()
		n := 0
		for b.Loop() {
			c.cprog.write("x")
			c.sprog.read("x")
			c.sprog.write("y")
			c.cprog.read("y")
			n++
		}
		b.ReportMetric(float64(groupLockWaits()-before)/float64(n), "lockwaits/op")
	})
	c.cprog.close()
	c.sprog.close()
	c.over(b, false)
}

// groupLockWaits counts the waits for locks that methods of link groups let go.
func groupLockWaits() (n int64) {
	var records []runtime.BlockProfileRecord
	for size := 100; ; size *= 2 {
		records = make([]runtime.BlockProfileRecord, size)
		if got, ok := runtime.MutexProfile(records); ok {
			records = records[:got]
			break
		}
	}
	for _, r := range records {
		frames := runtime.CallersFrames(r.Stack())
		for {
			f, more := frames.Next()
			if strings.Contains(f.Function, "userstack.(*group)") {
				n += r.Count
				break
			}
			if !strings.HasPrefix(f.Function, "sync.") && !strings.HasPrefix(f.Function, "internal/sync.") || !more {
				break
			}
		}
	}
	return n
}
