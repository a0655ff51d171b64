// SPDX-License-Identifier: Apache-2.0

package softroce

import "fmt"

// QPNParts is the number of parts into which QPNs divides the numbers of queue pairs.
const QPNParts = 16

// qpnPartBits is how many bits of a queue pair number have the part.
const qpnPartBits = 4

// QPNs says which numbers the queue pairs of a device get. The zero value means all
// numbers. [QPNPart] returns one of QPNParts disjoint parts: processes with different
// parts can have devices on the same netdev, and know which packets are for them.
type QPNs struct {
	part uint8 // 1 to QPNParts, or 0 for all numbers
}

// QPNPart returns part n of the numbers, 0 to QPNParts-1.
func QPNPart(n int) (QPNs, error) {
	if n < 0 || n >= QPNParts {
		return QPNs{}, fmt.Errorf("softroce: part %d of the queue pair numbers: must be less than %d", n, QPNParts)
	}
	return QPNs{part: uint8(n + 1)}, nil
}

// first returns the highest bits of the first of the three bytes of the numbers, and the
// mask of these bits. Both are 0 if the zero value is meant.
func (q QPNs) first() (bits, mask uint8) {
	if q.part == 0 {
		return 0, 0
	}
	return (q.part - 1) << (8 - qpnPartBits), 0xff << (8 - qpnPartBits) & 0xff
}

// pick makes a number of a random one.
func (q QPNs) pick(random uint32) uint32 {
	bits, mask := q.first()
	return random&psnMask&^(uint32(mask)<<16) | uint32(bits)<<16
}

// has reports whether n is one of the numbers.
func (q QPNs) has(n uint32) bool {
	bits, mask := q.first()
	return uint8(n>>16)&mask == bits
}

// UseQPNs chooses the numbers of the queue pairs of devices that are opened from now on.
func (p *Provider) UseQPNs(n QPNs) { p.c.numbers = n }
