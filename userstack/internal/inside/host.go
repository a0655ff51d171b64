// SPDX-License-Identifier: Apache-2.0

package inside

import "smcr/userstack/network"

// A Host replaces the machine on which a stack runs. A nil field stands for the real
// one.
type Host struct {
	Network network.Network
	// Option stays the caller's to close.
	Option network.OptionMarker
}
