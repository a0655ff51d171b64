// SPDX-License-Identifier: Apache-2.0

package wire

// What stacks of this module tell each other in the bytes for vendors. Version 2 has them
// from release 1 on, and Linux ignores them.

// VendorOUI is the VendorOUI of an Offer of this module. It is in the range for local
// administration, so no vendor has it. If the proposal has it, both sides tell each other
// in FirstContactExt.Vendor from which UDP port the queue pair of the first link sends.
var VendorOUI = [3]byte{0x02, 'S', 'M'}

// vendorUDPPort is the upper half of a FirstContactExt.Vendor that has a UDP port.
const vendorUDPPort = 'S'<<8 | 'M'

// VendorUDPPort returns the FirstContactExt.Vendor that tells a UDP port: 0 for port 0.
func VendorUDPPort(port uint16) uint32 {
	if port == 0 {
		return 0
	}
	return vendorUDPPort<<16 | uint32(port)
}

// UDPPort returns the UDP port that Vendor tells, or 0 if it tells none.
func (x *FirstContactExt) UDPPort() uint16 {
	if x.Vendor>>16 != vendorUDPPort {
		return 0
	}
	return uint16(x.Vendor)
}
