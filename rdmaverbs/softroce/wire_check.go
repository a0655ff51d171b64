// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"slices"
	"sync/atomic"

	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// checkGIDs returns the drop counter for a packet with these source and
// destination GIDs, or nil if the packet is valid. ours are the GIDs of this
// port.
func (c *wireCounters) checkGIDs(sgid, dgid smc.GID, ours []smc.GID) *atomic.Uint64 {
	switch {
	case sgid == loopbackGID || dgid == loopbackGID:
		return &c.dropLoopback // annex A16, A16.7.2
	case !slices.Contains(ours, dgid):
		return &c.dropGID
	}
	return nil
}

// checkBTH returns the drop counter for a packet with this BTH, or nil if the
// packet is valid.
func (c *wireCounters) checkBTH(b header.BTH) *atomic.Uint64 {
	switch {
	case b.TVer() != 0:
		return &c.dropVersion
	case b.DestQP() <= 1:
		// CA16-8 for queue pair 0. Queue pair 1 is for management datagrams,
		// which SMC does not use.
		return &c.dropQP
	case b.PKey() != header.DefaultPKey && b.PKey() != header.DefaultPKey&0x7fff:
		// This port is a full member, so it also accepts packets of limited
		// members.
		return &c.dropPKey
	}
	return nil
}

// parseDrop returns the drop counter for a parse error.
func (c *wireCounters) parseDrop(err error) *atomic.Uint64 {
	if errors.Is(err, header.ErrShort) {
		return &c.dropShort
	}
	return &c.dropFormat
}
