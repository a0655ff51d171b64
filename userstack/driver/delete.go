// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"syscall"
	"time"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/linkgroup"
	"smcr/userstack/wire"
)

// What an administrator ends.

// sameGroup reports whether two IDs name the same link group. The last byte of an ID can be
// the number of a link.
func sameGroup(a, b nl.LinkGroupID) bool { return a>>8 == b>>8 }

// find calls f for the link group with that ID, with its lock held. The error wraps
// syscall.ENOENT if there is none.
func (d *Driver) find(id nl.LinkGroupID, f func(g *Group, now time.Time) error) error {
	err := linkgroup.ErrGroupDead
	for _, g := range d.Groups() {
		if sameGroup(g.ID(), id) {
			err = g.event(func(now time.Time) error { return f(g, now) })
			break
		}
	}
	if err == linkgroup.ErrGroupDead {
		return fmt.Errorf("no link group %s: %w", id, syscall.ENOENT)
	}
	return err
}

// DeleteLinkGroup ends a link group in order: the peer is told, and all connections are
// reset (RFC 7609, section 3.5.4). The error wraps syscall.ENOENT if there is no such group.
func (d *Driver) DeleteLinkGroup(id nl.LinkGroupID) error {
	return d.find(id, func(g *Group, now time.Time) error {
		g.core.Terminate(now, wire.DeleteLinkOperator)
		return nil
	})
}

// DeleteLink deletes a link in order: its connections move to another link first (RFC 7609,
// sections 3.5.5.1.3 and 3.5.5.1.4). The error wraps syscall.ENOENT if there is no such
// link, and syscall.EBUSY if it is not active or if no other link is.
func (d *Driver) DeleteLink(id nl.LinkGroupID, number uint8) error {
	return d.find(id, func(g *Group, now time.Time) error {
		var link *linkgroup.Link
		others := 0
		for _, l := range g.core.Links() {
			switch {
			case l.ID() == number:
				link = l
			case l.State() == smc.LinkActive:
				others++
			}
		}
		switch {
		case link == nil:
			return fmt.Errorf("no link %d of link group %s: %w", number, id, syscall.ENOENT)
		case link.State() != smc.LinkActive:
			return fmt.Errorf("link %d of link group %s is not active: %w", number, id, syscall.EBUSY)
		case others == 0:
			return fmt.Errorf("link %d is the only active link of link group %s: %w", number, id, syscall.EBUSY)
		}
		g.core.DeleteLink(now, link, wire.DeleteLinkOperator)
		return nil
	})
}
