// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"testing"
	"time"

	"smcr/userstack/conn"
	"smcr/userstack/linkgroup"
)

// TestPanicInGroup plants a panic at each place where a link group can panic. The panic
// ends only this group, with all its connections, and is counted once. The resources of
// the group are released, which the bed checks. The next connection uses a new group.
func TestPanicInGroup(t *testing.T) {
	bad := func() { panic("planted") }
	for name, plant := range map[string]func(d *side, c *end){
		"event":  func(_ *side, c *end) { c.g.do(func(time.Time) { bad() }) },
		"core":   func(_ *side, c *end) { c.g.do(func(now time.Time) { c.core.Consumed(now, 1<<30) }) },
		"action": func(_ *side, c *end) { c.g.mu.Lock(); c.g.exec.later = append(c.g.exec.later, bad); c.g.unlock() },
		"completion": func(_ *side, c *end) {
			c.g.mu.Lock()
			c.g.leftover = append(c.g.leftover, leftover{nil, nil}) // this link does not exist
			c.g.pollWanted.Store(true)
			c.g.unlock()
		},
		"listing": func(d *side, _ *end) { d.each(func(*Group) { bad() }) },
		"action of the core": func(_ *side, c *end) {
			c.g.mu.Lock()
			// By the goroutine that carries out actions: there is one at a time.
			c.g.exec.later = append(c.g.exec.later, func() {
				c.g.execute([]linkgroup.Action{{Kind: linkgroup.ActWrite}}) // an action without a link
			})
			c.g.unlock()
		},
	} {
		for _, who := range []string{"client", "server"} {
			t.Run(name+"/"+who, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					b := newBed(t, nil)
					c1, s1 := b.connect()
					c2, s2 := b.connect()
					if c1.g != c2.g || s1.g != s2.g {
						t.Fatal("two link groups")
					}
					b.exchange(c1, s1, pattern(1, 100_000))
					d, x, y := b.client, c1, c2
					if who == "server" {
						d, x, y = b.server, s1, s2
					}
					read := make(chan error, 1)
					go func() {
						_, err := y.Read(make([]byte, 1))
						read <- err
					}()
					time.Sleep(settled)
					plant(d, x)
					if err := <-read; !errors.Is(err, conn.ErrReset) {
						t.Errorf("a reader got %v", err)
					}
					for _, c := range []*end{c1, c2, s1, s2} {
						if err := b.ended(c); err == nil {
							t.Error("a connection of the group ended in order")
						}
						if _, err := c.Write([]byte("x")); err == nil {
							t.Error("a write succeeds")
						}
						_, _ = c.In.Urgent()
						_ = c.In.AtMark()
						c.In.SetUrgentInline(true)
						c.SetCork(true)
						c.End.CloseWrite()
						c.End.Close()
					}
					if n := d.stats.Snapshot().Panics; n != 1 {
						t.Errorf("%d panics counted", n)
					}
					if len(d.Groups()) > 0 {
						t.Error("the link group is listed")
					}
					time.Sleep(settled) // until the other side has no link group either
					b.finish(b.connect())
				})
			})
		}
	}
}
