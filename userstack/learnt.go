// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"net/netip"
	"time"

	"smcr/nl"
	"smcr/smc"
)

var _ nl.Learner = (*control)(nil)

// Learnt implements nl.Learner: what a stack remembers of its peers beyond their connections and link groups. Who may have caused
// it is in docs/security.md, "What is learnt of a peer".
func (c *control) Learnt(ctx context.Context) (all []nl.Learnt, err error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	now := time.Now()
	c.s.paths.mu.Lock()
	for _, p := range c.s.paths.known.All(now) {
		all = append(all, nl.Learnt{
			Everyone: true, Local: p.Local, Remote: netip.AddrPortFrom(p.Remote, 0), Why: uint32(smc.DiagNoPath), Left: p.Left,
		})
	}
	c.s.paths.mu.Unlock()
	c.s.copies.all(now, func(uid uint32, at netip.AddrPort, left time.Duration) {
		all = append(all, nl.Learnt{UID: uid, Remote: at, Why: uint32(smc.DiagCopied), Left: left})
	})
	for _, m := range c.s.undecided.mutes(now) {
		all = append(all, nl.Learnt{Everyone: true, Remote: netip.AddrPortFrom(m.Remote, 0), Why: uint32(smc.DiagSilent), Left: m.Left})
	}
	return all, nil
}
