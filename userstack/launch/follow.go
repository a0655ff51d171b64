// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// carried follows a connection that the service carries until it ends.
func (c *conn) carried() {
	c.s.quiet.count()
	defer c.s.quiet.count()
	defer c.drop()
	defer c.closeOwn()
	if c.detours != nil {
		defer close(c.detours.over)
	}
	defer c.trial.lasts()()
	told := false // why the connection was reset
	for {
		if c.here {
			c.relayed()
			return
		}
		select {
		case ev, ok := <-c.cc.Events():
			if !ok {
				if c.sessionEnded() {
					continue
				}
				c.s.sockets.retire(c)
				return
			}
			switch ev.Kind {
			case broker.EventReady:
				c.closeOwn()
				c.ready(ev)
			case broker.EventBroken:
				c.closeOwn()
				c.s.stats.broken()
				if why := broker.ResetReason(ev.Text); why != "" {
					c.s.stats.reset(why)
					told = true
				}
				c.reset(ev.Errno)
				c.drop()
				if err := c.cc.BrokenDone(); err != nil {
					c.s.log.Debug("broken connection", "err", err)
				}
			case broker.EventDropUrgent:
				c.dropUrgent()
				if err := c.cc.UrgentDropped(); err != nil {
					c.s.log.Debug("urgent data", "conn", c.cc.ID(), "err", err)
				}
			case broker.EventClosed:
				if c.takeBack() {
					c.s.endCopies.give()
					continue
				}
				c.closed(ev.Errno)
				c.trial.end(ev.Carried)
				c.s.stats.ended()
				if why := broker.ResetReason(ev.Text); why != "" && !told {
					c.s.stats.reset(why)
				}
				if ev.Text != "" {
					c.s.log.Debug("connection ended", "conn", c.cc.ID(), "remote", c.remote, "why", ev.Text)
				}
			}
		case d := <-c.detours.requests():
			c.detour(d)
		case <-c.s.ctx.Done():
			c.countLast()
			return
		}
	}
}

// ready counts an accepted connection. The attempt counts the others.
func (c *conn) ready(ev broker.Event) {
	if c.unready {
		c.unready = false
		c.s.countReady(ev)
	}
}

// lastTime limits the wait for messages that the service sent before the
// program ended.
const lastTime = time.Second

// countLast counts a connection of a program that has already ended, if the
// service sent EventReady in time. To find out, it asks the service for an
// option: events that the service sent before arrive before the answer.
func (c *conn) countLast() {
	if !c.unready {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.s.ctx), lastTime)
	defer cancel()
	if _, err := c.cc.GetOption(ctx, 0, unix.SOL_SOCKET, unix.SO_TYPE, 4); err != nil {
		c.s.log.Debug("last word on a connection", "conn", c.cc.ID(), "err", err)
	}
	for {
		select {
		case ev, ok := <-c.cc.Events():
			if !ok {
				return
			}
			if ev.Kind == broker.EventReady {
				c.ready(ev)
			}
		default:
			return
		}
	}
}

func (s *supervisor) countReady(ev broker.Event) {
	if ev.Mode == broker.ModeTCP {
		s.stats.tcp(ev.Text)
		return
	}
	s.stats.mode(ev.Mode)
}
