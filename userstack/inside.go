// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
)

// Package inside shows package service, and tests of whole stacks, what is not exported.
var _ = inside.Bind(inside.Binding{
	SetHost: func(config any, h inside.Host) {
		c := config.(*Config)
		c.network, c.option = h.Network, h.Option
	},
	Tune: func(config any, t inside.Tuning) {
		c := config.(*Config)
		c.tune, c.random = tuning{timers: t.Timers, sendChunk: t.SendChunk}, t.Random
	},
	Stack:   func(stack any) any { return insideStack{stack.(*Stack)} },
	Inspect: func(stack any) any { return inspector{stack.(*Stack)} },
})

// inspector implements inside.Inspector.
type inspector struct{ s *Stack }

var _ inside.Inspector[*Conn] = inspector{}

func (i inspector) MemoryInUse() int { return i.s.driver.MemoryInUse() }

func (i inspector) Ending() int { return i.s.driver.Ending() }

func (i inspector) Groups() (list []inside.Group) {
	for _, g := range i.s.driver.Groups() {
		list = append(list, g)
	}
	return list
}

func (i inspector) SetLimits(links, conns int) { i.s.cfg.MaxLinks, i.s.cfg.MaxConns = links, conns }

func (inspector) GroupOf(c *Conn) inside.Group { return c.d.Group() }

func (inspector) View(c *Conn, f func(*linkgroup.Conn)) { c.d.View(f) }

func (inspector) Readable(c *Conn) (n int, err error) {
	n, err = c.d.In.Available()
	return n, sysError("read", err)
}

func (inspector) Writable(c *Conn) (n int, err error) {
	n, err = c.d.Out.Available()
	return n, sysError("write", err)
}

func (inspector) Woken(c *Conn) bool {
	in, out := c.d.In.Woken(), c.d.Out.Woken()
	return in || out
}
