// SPDX-License-Identifier: Apache-2.0

package softroce

// psn is a packet sequence number: 24 bits, compared modulo 2^24
// (InfiniBand specification, volume 1, section 9.7.2).
type psn uint32

const (
	psnMask = 1<<24 - 1
	// psnHalf is half the sequence space. PSN a is before b if b-a modulo 2^24
	// is less than this. A requester must not have more packets than this
	// outstanding.
	psnHalf = 1 << 23
)

// add returns p advanced by n, which may be negative.
func (p psn) add(n int) psn { return psn(uint32(int(p)+n) & psnMask) }

// sub returns the signed distance from o to p, in [-2^23, 2^23).
func (p psn) sub(o psn) int {
	d := int(uint32(p-o) & psnMask)
	if d >= psnHalf {
		d -= 1 << 24
	}
	return d
}

// before reports whether p is before o.
func (p psn) before(o psn) bool { return p.sub(o) < 0 }

// in reports whether p lies in [lo, hi), an interval shorter than 2^23.
func (p psn) in(lo, hi psn) bool {
	return uint32(p-lo)&psnMask < uint32(hi-lo)&psnMask
}
