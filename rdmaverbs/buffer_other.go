// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package rdmaverbs

// ZeroBuffer zeroes b, which is memory from AllocBuffer or a part of it.
func ZeroBuffer(b []byte) { clear(b) }

// DiscardBuffer zeroes b, which is memory from AllocBuffer or a part of it. Linux
// gives its pages back.
func DiscardBuffer(b []byte) error {
	clear(b)
	return nil
}

// HeldBytes is -1: the system does not tell which pages take memory.
func HeldBytes([]byte) int { return -1 }
