// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestLastLinkUnanswered: a peer that does not answer ADD LINK or DELETE LINK over the
// last link costs nothing as long as it answers TEST LINK.
func TestLastLinkUnanswered(t *testing.T) {
	for _, word := range []string{"add-link", "add-link-continuation(1)", "delete-link("} {
		for _, alive := range []bool{true, false} {
			s := started(t, 2, 2, noTest)
			g, h := s.group(smc.Server), s.hosts[smc.Server]
			lost := 0
			s.block = func(from *host, _ *Link, msg []byte) bool {
				what := describe(msg)
				if from == h && strings.HasPrefix(what, word) && !strings.Contains(what, "add-link-continuation(1)") == (word != "add-link-continuation(1)") {
					lost++
					return true
				}
				return !alive && what == "re:test-link"
			}
			g.LinkFailed(s.now, g.links.list[0], errAny)
			h.drain()
			s.runUntilIdle()
			g.adding.newDevice()
			g.Tick(s.now)
			h.drain()
			s.pass(time.Minute)
			if h.gone == alive {
				t.Errorf("%s: the client answers TEST LINK: %v; the server's group ended: %v, %v", word, alive, h.gone, h.deadE)
			}
			if alive && (lost < 2 || g.Conns() != 1) {
				t.Errorf("%s: asked %d times, %d connections", word, lost, g.Conns())
			}
			s.block = nil
			if alive {
				s.pass(time.Minute)
				if got := s.types(); got != "SYM/SYM" {
					t.Errorf("%s: in the end: %s", word, got)
				}
			}
			s.finish()
		}
	}
}

// TestPauseAfterDeletion: the server does not send ADD LINK as long as Linux may still end
// the deletion of a link. In version 2, other peers need no pause.
func TestPauseAfterDeletion(t *testing.T) {
	for _, tt := range []struct {
		name string
		peer func(*Config)
		want time.Duration
	}{
		{"version 1", func(*Config) {}, time.Second},
		{"version 2, Linux", linux, time.Second},
		{"version 2", func(c *Config) { c.Version = wire.Version2 }, 0},
	} {
		s := started(t, 2, 2, func(c *Config) {
			noTest(c)
			tt.peer(c)
			c.Timers.AddLinkPause = time.Second
		})
		h := s.hosts[smc.Server]
		var deleted, asked time.Time
		s.tap = func(from *host, _ *Link, msg []byte) {
			switch describe(msg) {
			case "re:delete-link(1)":
				deleted = s.now
			case "add-link":
				asked = s.now
			}
		}
		h.g.LinkFailed(s.now, h.g.links.list[0], errAny)
		h.g.adding.newDevice()
		h.drain()
		s.pass(10 * time.Second)
		if got := s.types(); got != "SYM/SYM" {
			t.Errorf("%s: %s", tt.name, got)
		}
		if d := asked.Sub(deleted); d < tt.want || d > tt.want+time.Millisecond {
			t.Errorf("%s: ADD LINK %v after the reply to DELETE LINK, want %v", tt.name, d, tt.want)
		}
		s.finish()
	}
}

// TestPauseAfterAddition: a device that comes up while another link is added waits, as long as Linux may still end that
// exchange, and so does the deletion of the link that is surplus then. A peer of this module needs no pauses.
func TestPauseAfterAddition(t *testing.T) {
	for _, tt := range []struct {
		name        string
		peer        func(*Config)
		add, delete time.Duration
	}{
		{"version 1", func(*Config) {}, time.Second, time.Second / 4},
		{"version 2, Linux", linux, time.Second, time.Second / 4},
		{"version 2, of this module", func(c *Config) { linux(c); c.PeerOurs = true }, 0, 0},
		{"version 2", func(c *Config) { c.Version = wire.Version2 }, 0, 0},
	} {
		s := started(t, 2, 2, func(c *Config) {
			noTest(c)
			tt.peer(c)
			c.Timers.AddLinkPause, c.Timers.DeleteLinkPause = time.Second, time.Second/4
		})
		h, back := s.hosts[smc.Server], device(smc.Server, 0)
		h.g.DeviceDown(s.now, back.ID)
		up := false
		var ended, again time.Time // of the exchanges
		var asked, deleted time.Time
		s.tap = func(_ *host, _ *Link, msg []byte) {
			switch what := describe(msg); {
			case what == "re:add-link" && !up:
				up = true
				h.g.DeviceUp(s.now, back)
			case what == "re:confirm-link" && asked.IsZero():
				ended = s.now
			case what == "re:confirm-link":
				again = s.now
			case what == "add-link" && up:
				asked = s.now
			case strings.HasPrefix(what, "delete-link(") && up:
				deleted = s.now
			}
		}
		h.drain()
		s.pass(30 * time.Second)
		if got := s.types(); got != "SYM/SYM" || len(h.g.links.list) != 2 {
			t.Errorf("%s: %s, %d links", tt.name, got, len(h.g.links.list))
		}
		if d := asked.Sub(ended); d < tt.add || d > tt.add+time.Millisecond {
			t.Errorf("%s: ADD LINK %v after the exchange before, want %v", tt.name, d, tt.add)
		}
		if d := deleted.Sub(again); d < tt.delete || d > tt.delete+time.Millisecond {
			t.Errorf("%s: DELETE LINK %v after the exchange before, want %v", tt.name, d, tt.delete)
		}
		s.finish()
	}
}

// TestPauseAfterRejection is the same for an exchange that ends with a rejection.
func TestPauseAfterRejection(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) {
		noTest(c)
		c.Timers.AddLinkPause = time.Second
		c.Devices = append(c.Devices, device(smc.Server, 1))
	})
	l2 := r.two(nil)
	r.g.LinkFailed(r.s.now, r.link, errAny)
	r.done()
	r.g.adding.newDevice()
	r.recv(l2, wire.DeleteLink{Reply: true, LinkNum: 1})
	r.wait(time.Second)
	r.expect("cdc+F delete-link(1) add-link")
	r.recv(l2, wire.AddLink{Reply: true, Rejected: true, Reason: wire.AddLinkNoAlternatePath, LinkNum: r.g.llc.ex.link.id, MTU: 3})
	r.g.DeviceUp(r.s.now, device(smc.Server, 2))
	r.done()
	r.wait(999 * time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("add-link")
}

// TestRejectionMayPass: a client that rejects a link after a device has come up, on either side, is asked again soon and then
// more and more seldom. Otherwise it will report its next device.
func TestRejectionMayPass(t *testing.T) {
	for name, tt := range map[string]struct {
		up   func(r *rig)
		soon bool
	}{
		"server":  {func(r *rig) { r.g.DeviceUp(r.s.now, device(smc.Server, 1)) }, true},
		"client":  {func(r *rig) { r.recv(r.link, wire.AddLink{GID: smc.GID{1}, MAC: smc.MAC{1}}) }, true},
		"neither": {func(r *rig) { r.g.adding.wanted = true; r.g.Tick(r.s.now) }, false},
	} {
		r := newRig(t, smc.Server, noTest)
		r.open()
		r.acts = nil
		tt.up(r)
		r.expect("add-link")
		for _, wait := range []time.Duration{firstAddRetry, 2 * firstAddRetry, 4 * firstAddRetry} {
			r.reject()
			r.done()
			r.wait(wait - time.Millisecond)
			r.expect("")
			r.wait(time.Millisecond)
			if again := r.sent() == "add-link"; again != tt.soon {
				t.Errorf("%s: asked again after %v: %v", name, wait, again)
			}
			if !tt.soon {
				break
			}
		}
	}
}

// TestRejectionOfDeletedLink: a rejection of ADD LINK that names a deleted link, as Linux
// sends it while it still ends the deletion, makes the server ask again.
func TestRejectionOfDeletedLink(t *testing.T) {
	for _, tt := range []struct {
		num   uint8
		again bool
	}{{1, true}, {2, false}, {9, false}} {
		r := newRig(t, smc.Server, func(c *Config) {
			noTest(c)
			c.Timers.AddLinkPause = time.Second
			c.Devices = append(c.Devices, device(smc.Server, 1))
		})
		l2 := r.two(nil)
		r.g.LinkFailed(r.s.now, r.link, errAny)
		r.done()
		r.g.adding.newDevice()
		r.recv(l2, wire.DeleteLink{Reply: true, LinkNum: 1})
		r.wait(time.Second)
		r.expect("cdc+F delete-link(1) add-link")
		r.recv(l2, wire.AddLink{Reply: true, Rejected: true, Reason: wire.AddLinkNoAlternatePath, LinkNum: tt.num, MTU: 3})
		r.done()
		r.wait(999 * time.Millisecond)
		r.expect("")
		r.wait(time.Millisecond)
		if again := strings.Contains(r.sent(), "add-link"); again != tt.again {
			t.Errorf("link %d rejected: ADD LINK again: %v", tt.num, again)
		}
	}
}
