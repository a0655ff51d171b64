// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package rdmaverbs

// ZeroBuffer zeroes b, which is memory from AllocBuffer or a part of it.
func ZeroBuffer(b []byte) { clear(b) }

// DiscardBuffer zeroes b, which is memory from AllocBuffer or a part of it.
// Only on Linux does it give pages back to the system. It always returns nil.
func DiscardBuffer(b []byte) error {
	clear(b)
	return nil
}

// HeldBytes returns -1: the system does not provide this information.
func HeldBytes([]byte) int { return -1 }
