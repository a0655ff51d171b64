// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
)

// testTime bounds each wait of a test.
const testTime = testkind.Patience

// stacks returns the stacks of the goroutines of this package.
func stacks() string {
	buf := make([]byte, 1<<20)
	var out []string
	for s := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(s, "service.(*") {
			out = append(out, s)
		}
	}
	return strings.Join(out, "\n\n")
}

// openFDs returns what the descriptors are, without that which tells.
func openFDs(t testing.TB) (fds []string) {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if link, err := os.Readlink("/proc/self/fd/" + n.Name()); err == nil {
			fds = append(fds, n.Name()+" "+link)
		}
	}
	return fds
}

// checkLeaks wants, at the end of the test, no goroutine of this package and
// no more descriptors than now.
func checkLeaks(t testing.TB) {
	t.Helper()
	// The runtime's poller has descriptors of its own from its first use on.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	_ = w.Close()
	rdmaverbs.ZeroBuffer(nil) // so has the zeroing of buffers
	before := len(openFDs(t))
	t.Cleanup(func() {
		testkind.Eventually(t, "goroutines or descriptors left", func() (any, bool) {
			s, fds := stacks(), openFDs(t)
			saw := fmt.Sprintf("%d descriptors, %d before: %v\n%s", len(fds), before, fds, s)
			return saw, s == "" && len(fds) <= before
		})
	})
}
