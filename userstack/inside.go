// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net/netip"

	"smcr/smc"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
)

// Package inside gives package service, and tests of whole stacks, what is not exported.
var _ = inside.Bind(inside.Binding{
	SetHost: func(config any, h inside.Host) {
		c := config.(*Config)
		c.network, c.option = h.Network, h.Option
	},
	Tune: func(config any, t inside.Tuning) {
		c := config.(*Config)
		c.tuneTimers, c.random, c.sendChunk = t.Timers, t.Random, t.SendChunk
	},
	Stack:   func(stack any) any { return insideStack{stack.(*Stack)} },
	Inspect: func(stack any) any { return inspector{stack.(*Stack)} },
})

// inspector implements inside.Inspector.
type inspector struct{ s *Stack }

var _ inside.Inspector[*Conn] = inspector{}

func (i inspector) MemoryInUse() int { return i.s.mem.InUse() }

func (i inspector) Ending() int {
	i.s.reg.mu.Lock()
	defer i.s.reg.mu.Unlock()
	return len(i.s.reg.ending)
}

func (i inspector) Groups() (list []inside.Group) {
	for _, g := range i.s.reg.groupList() {
		list = append(list, inspectedGroup{g})
	}
	return list
}

func (i inspector) SetLimits(links, conns int) { i.s.cfg.MaxLinks, i.s.cfg.MaxConns = links, conns }

func (inspector) GroupOf(c *Conn) inside.Group { return inspectedGroup{c.g} }

func (inspector) View(c *Conn, f func(*linkgroup.Conn)) {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	f(c.core)
}

func (inspector) Readable(c *Conn) (n int, err error) {
	c.g.mu.Lock()
	a, b, err := c.in.readable()
	c.g.unlock()
	return len(a) + len(b), err
}

func (inspector) Writable(c *Conn) (n int, err error) {
	c.g.mu.Lock()
	a, b, err := c.out.reserve(c.core.SendSize(), 0)
	c.out.dropSpace()
	c.g.unlock()
	return len(a) + len(b), err
}

func (inspector) Woken(c *Conn) (woken bool) {
	for _, ch := range []chan struct{}{c.in.wake, c.out.wake} {
		select {
		case <-ch:
			woken = true
		default:
		}
	}
	return woken
}

// inspectedGroup implements inside.Group.
type inspectedGroup struct{ g *group }

func (x inspectedGroup) Name() string { return x.g.name() }

func (x inspectedGroup) Peer() netip.Addr {
	x.g.mu.Lock()
	defer x.g.mu.Unlock()
	return x.g.peerAddr
}

func (x inspectedGroup) View(f func(*linkgroup.Group)) {
	x.g.mu.Lock()
	defer x.g.mu.Unlock()
	f(x.g.core)
}

func (x inspectedGroup) PeerHasLost(qpn smc.QPN, from netip.Addr, cause error) {
	x.g.peerHasLost(qpn, from, cause)
}
