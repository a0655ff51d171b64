// SPDX-License-Identifier: Apache-2.0

package interop

import "testing"

// TestPeer is the short form of TestKernel, for `make gate`: the kernel is the client of
// the user-space stack, and then its server.
func TestPeer(t *testing.T) {
	if !testing.Short() {
		t.Skip("TestKernel is the long form of this test")
	}
	kernel, user := newBedOf(t, setup{devices: 1, short: true})
	traffic{version: 2, sizes: []int{1<<20 + 1}, parallel: 4, each: 100_000, short: 4}.flow(t, kernel, user)
}
