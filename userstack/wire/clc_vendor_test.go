// SPDX-License-Identifier: Apache-2.0

package wire

import "testing"

// TestVendorUDPPort: Vendor tells each port, and what others may write there is none.
func TestVendorUDPPort(t *testing.T) {
	for _, port := range []uint16{0, 1, 4791, 0xc000, 0xffff} {
		x := FirstContactExt{Vendor: VendorUDPPort(port)}
		if got := x.UDPPort(); got != port || port == 0 && x.Vendor != 0 {
			t.Errorf("port %d: Vendor %#x tells %d", port, x.Vendor, got)
		}
	}
	for _, vendor := range []uint32{1, 0xc000, 0xffff, 0x534c<<16 | 0xc000, 0x01534d00, 0xffffffff} {
		x := FirstContactExt{Vendor: vendor}
		if got := x.UDPPort(); got != 0 {
			t.Errorf("Vendor %#x tells port %d", vendor, got)
		}
	}
}
