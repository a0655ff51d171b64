// SPDX-License-Identifier: Apache-2.0

//go:build unix

package rdmaverbs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// AllocBuffer maps n zeroed bytes outside the Go heap, page-aligned. The
// garbage collector does not move or free them, so a device may access them. Free
// them with FreeBuffer. It returns ErrInvalid if n is not positive, and the error of
// mmap(2).
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

// FreeBuffer unmaps a buffer from AllocBuffer. All memory regions on it must be
// closed before. It returns the error of munmap(2).
func FreeBuffer(b []byte) error { return unix.Munmap(b) }
