// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestPassesOnce: a stack knows of a macvlan device that comes and goes, and lists the devices no more often than that.
func TestPassesOnce(t *testing.T) {
	testkind.System(t)
	b := newBed(t, splice)
	d := b.d[0]
	ip := func(line string) {
		t.Helper()
		if out, err := b.A.Command(t.Context(), "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	want := func(of string, want bool) {
		t.Helper()
		index := uint32(b.index(b.A, of))
		testkind.Eventually(t, "the device "+of, func() (any, bool) {
			is := d.passesOnce(index)
			d.twice.mu.Lock()
			defer d.twice.mu.Unlock()
			return []bool{is, d.twice.known}, is == want && d.twice.known
		})
	}
	want("eth0", true)
	ip("link add link eth0 name upper0 type macvlan")
	want("eth0", false)
	want("upper0", false)
	ip("link del upper0")
	want("eth0", true)
	d.changes.close()
	testkind.Eventually(t, "the watch ends", func() (any, bool) {
		d.twice.mu.Lock()
		defer d.twice.mu.Unlock()
		return nil, d.twice.blind
	})
	if index := uint32(b.index(b.A, "eth0")); !d.passesOnce(index) || d.twice.known {
		t.Error("without a watch, the devices are not listed anew")
	}
}
