// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestSocketsOf: the kernel says that it cannot tell of the sockets of a protocol, and lists none in no state.
func TestSocketsOf(t *testing.T) {
	testkind.System(t)
	s, err := openSockets()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if s.diag == nil {
		t.Skip("the kernel has no sock_diag of TCP")
	}
	if all, err := s.dump(unix.AF_INET, unix.IPPROTO_TCP, 0); len(all) != 0 || err != nil {
		t.Errorf("TCP: %d sockets, %v", len(all), err)
	}
	const nothing = 253 // a protocol for experiments
	if all, err := s.dump(unix.AF_INET, nothing, 0); len(all) != 0 || !errors.Is(err, unix.ENOENT) {
		t.Errorf("protocol %d: %d sockets, %v, want ENOENT", nothing, len(all), err)
	}
}
