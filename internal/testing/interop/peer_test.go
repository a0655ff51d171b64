// SPDX-License-Identifier: Apache-2.0

package interop

import "testing"

// TestPeer is the short form of TestKernel, for `make test`: the kernel is the client
// of the stack in user space, then its server.
func TestPeer(t *testing.T) {
	kernel, user := newBed(t, 1)
	traffic{version: 2, sizes: []int{1<<20 + 1}, parallel: 4, each: 100_000, short: 4}.flow(t, kernel, user)
}
