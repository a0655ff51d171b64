// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"smcr/smc"
)

// lenientGID parses a GID from the kernel. A link that is not set up yet has no GID.
// lenientGID returns zero then, so that the table can be read.
func lenientGID(s string) smc.GID {
	g, err := smc.ParseGID(s)
	if err != nil {
		return smc.GID{}
	}
	return g
}
