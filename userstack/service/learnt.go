// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"net/netip"
	"slices"

	"smcr/nl"
	"smcr/smc"
)

var _ nl.Learner = continued{}

// Learnt implements nl.Learner.
func (c continued) Learnt(ctx context.Context) ([]nl.Learnt, error) {
	l, err := nl.LearnerOf(c.Control)
	if err != nil {
		return nil, err
	}
	all, err := l.Learnt(ctx)
	if err != nil || c.boundary == nil {
		return all, err
	}
	// The eBPF programs were told of these ports, and others have read the table since.
	all = slices.DeleteFunc(all, func(l nl.Learnt) bool { return l.Why == uint32(smc.DiagCopied) })
	quiet, err := c.boundary.d.Silences()
	for _, q := range quiet {
		all = append(all, nl.Learnt{UID: q.UID, Remote: q.Peer, Why: uint32(q.Why), Peer: uint32(q.PeerWhy), Left: q.For})
	}
	for _, m := range c.boundary.d.Mutes() {
		all = append(all, nl.Learnt{Everyone: true, Remote: netip.AddrPortFrom(m.Remote, 0), Why: uint32(smc.DiagSilent), Left: m.Left})
	}
	return all, err
}
