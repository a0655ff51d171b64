// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnThread: the first thread of the process is never changed, since it cannot end.
func TestOnThread(t *testing.T) {
	first := 0
	for range 2000 {
		runtime.Gosched()
		done := make(chan bool)
		go func() { done <- unix.Gettid() == os.Getpid() }()
		if <-done {
			first++
		}
		changed, kept := 0, 0
		OnThread("a test", func() bool { changed = unix.Gettid(); return false })
		OnThread("a test", func() bool { kept = unix.Gettid(); return true })
		if changed == os.Getpid() || kept == os.Getpid() {
			t.Fatal("a call was on the first thread of the process")
		}
	}
	t.Logf("%d of 2000 other goroutines were on the first thread", first)
}
