// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"slices"
	"sync/atomic"

	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// checkGIDs returns the counter of the reason to drop a packet with these
// source and destination GIDs, or nil if there is none. ours are the GIDs
// that we answer to.
func (c *wireCounters) checkGIDs(sgid, dgid smc.GID, ours []smc.GID) *atomic.Uint64 {
	switch {
	case sgid == loopbackGID || dgid == loopbackGID:
		return &c.dropLoopback // annex A16, A16.7.2
	case !slices.Contains(ours, dgid):
		return &c.dropGID
	}
	return nil
}

// checkBTH returns the counter of the reason to drop a packet with this BTH,
// or nil if there is none.
func (c *wireCounters) checkBTH(b header.BTH) *atomic.Uint64 {
	switch {
	case b.TVer() != 0:
		return &c.dropVersion
	case b.DestQP() <= 1:
		// CA16-8 for queue pair 0. Queue pair 1 takes management datagrams,
		// which SMC does without.
		return &c.dropQP
	case b.PKey() != header.DefaultPKey && b.PKey() != header.DefaultPKey&0x7fff:
		// A full member, which we are, also takes what limited members send.
		return &c.dropPKey
	}
	return nil
}

// parseDrop returns the counter that suits a parse error.
func (c *wireCounters) parseDrop(err error) *atomic.Uint64 {
	if errors.Is(err, header.ErrShort) {
		return &c.dropShort
	}
	return &c.dropFormat
}
