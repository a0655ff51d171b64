// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"smcr/smc"
)

// lenientGID parses a GID the kernel sent. A link that is not set up yet has
// none, which is no reason to refuse the whole table.
func lenientGID(s string) smc.GID {
	g, err := smc.ParseGID(s)
	if err != nil {
		return smc.GID{}
	}
	return g
}
