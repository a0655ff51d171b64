// SPDX-License-Identifier: Apache-2.0

//go:build unix

package rdmaverbs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// AllocBuffer maps n zeroed bytes outside the Go heap, page-aligned, so that
// their address is stable and may be given to a peer. Free them with
// FreeBuffer.
func AllocBuffer(n int) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("%w: buffer of %d bytes", ErrInvalid, n)
	}
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return b, nil
}

// FreeBuffer unmaps a buffer from AllocBuffer. No memory region on it may
// remain.
func FreeBuffer(b []byte) error { return unix.Munmap(b) }
