// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestMaxLinksNegotiated: the lower value counts, a client that gives none
// accepts the server's, and less than 2 is 2 (RFC 7609, section 2.2.2).
func TestMaxLinksNegotiated(t *testing.T) {
	for _, tt := range []struct {
		role      smc.Role
		own       int
		peer      uint8
		want      int
		announced uint8 // in our CONFIRM LINK
	}{
		{smc.Server, 8, 8, 8, 8}, {smc.Server, 8, 3, 3, 8}, {smc.Server, 8, 0, 8, 8}, {smc.Server, 2, 8, 2, 2}, {smc.Server, 8, 1, 2, 8},
		{smc.Server, 99, 8, 8, 8}, {smc.Server, 0, 8, 2, 2},
		{smc.Client, 8, 8, 8, 8}, {smc.Client, 8, 3, 3, 3}, {smc.Client, 3, 8, 3, 3}, {smc.Client, 8, 2, 2, 2},
	} {
		r := newRig(t, tt.role, links(tt.own))
		r.begin()
		m := r.confirmLink(tt.role == smc.Server, r.link)
		m.MaxLinks = tt.peer
		var sent wire.ConfirmLink
		look := func() {
			for _, a := range r.acts {
				if a.Kind == ActSend {
					if c, err := wire.ParseConfirmLink(a.Message()); err == nil {
						sent = c
					}
				}
			}
		}
		r.take()
		look()
		r.recv(r.link, m)
		look()
		if got := r.g.MaxLinks(); got != tt.want || sent.MaxLinks != tt.announced {
			t.Errorf("%s of %d links, peer of %d: %d, announced %d; want %d, %d", tt.role, tt.own, tt.peer, got, sent.MaxLinks, tt.want, tt.announced)
		}
	}
}

// TestRMBInUseDeleted: a peer that deletes an RMB has ended its connections:
// nothing is written to it any more (RFC 7609, sections 3.5.5.2.2 and 4.4.2).
func TestRMBInUseDeleted(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.send(100)
	r.done()
	r.acts = nil
	r.recv(r.link, wire.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{peerRMB.RKey}})
	produce(r.c, r.s.now, 100)
	r.expect("re:delete-rkey(1)")
	if len(r.close) != 1 || !errors.Is(r.close[0], conn.ErrReset) {
		t.Errorf("connection ended with %v", r.close)
	}
	for _, a := range r.acts {
		if a.Kind == ActWrite {
			t.Error("a write to an RMB that is gone")
		}
	}
}

// TestDeleteRKeyNegative: a negative answer to our own DELETE RKEY is as good as
// a positive one: the memory is freed (RFC 7609, appendix A.3.7).
func TestDeleteRKeyNegative(t *testing.T) {
	var log strings.Builder
	r := newRig(t, smc.Client, func(c *Config) {
		noTest(c)
		c.RMBEsPerRMB = 1
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	r.open()
	c, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	r.expect("confirm-rkey(0)")
	r.recv(r.link, wire.ConfirmRKey{Reply: true, This: c.rmb.at[0].RToken})
	key := c.rmb.at[0].RKey
	c.Cancel(r.s.now)
	r.wait(61 * time.Second)
	r.expect("delete-rkey(1)")
	n := len(r.h.rmbs)
	log.Reset()
	r.recv(r.link, wire.DeleteRKey{Reply: true, Negative: true, Count: 1, ErrorMask: 0x80, RKeys: [8]smc.RKey{key}})
	if len(r.h.rmbs) != n-1 {
		t.Errorf("%d RMBs, had %d", len(r.h.rmbs), n)
	}
	if !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("log: %q", log.String())
	}
	if len(r.g.Links()) != 1 || len(r.dead) != 0 {
		t.Errorf("the link group: %d links, ended %v", len(r.g.Links()), r.dead)
	}
}

// TestRMBLimit: the 256th RMB of a link group is for another one (RFC 7609,
// section 2.1).
func TestRMBLimit(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
	r.open()
	for len(r.g.rmbs.list) < 255 {
		if _, err := r.g.rmbs.allocate(uint32(len(r.g.rmbs.list)), smc.SizeCode(len(r.g.rmbs.list)%3)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.g.NewConn(r.s.now, 3, 100); !errors.Is(err, ErrFull) {
		t.Errorf("connection of one more RMB: %v", err)
	}
}

// TestNoRMBExchangeDuringLinkExchange: RKeys do not change while links do (RFC
// 7609, section 3.5.5.3).
func TestNoRMBExchangeDuringLinkExchange(t *testing.T) {
	for _, role := range []smc.Role{smc.Client, smc.Server} {
		r := newRig(t, role, func(c *Config) {
			noTest(c)
			c.RMBEsPerRMB = 1
			c.Devices = append(c.Devices, device(role, 1))
		})
		l2 := r.two(nil)
		if role == smc.Client {
			// The reply to DELETE LINK waits for the completion of what was sent.
			r.c.move(l2)
			produce(r.c, r.s.now, 10)
			r.take()
			r.recv(r.link, wire.DeleteLink{LinkNum: 2, Orderly: true, Reason: wire.DeleteLinkOperator})
		} else {
			r.g.DeleteLink(r.s.now, l2, wire.DeleteLinkOperator)
			r.done()
		}
		r.acts = nil
		if _, err := r.g.NewConn(r.s.now, 0, 100); err != nil {
			t.Fatal(err)
		}
		if got := r.sent(); strings.Contains(got, "rkey") {
			t.Errorf("%s: sent %s during DELETE LINK", role, got)
		}
		if role == smc.Server {
			r.recv(r.link, wire.DeleteLink{Reply: true, LinkNum: 2, Orderly: true, Reason: wire.DeleteLinkOperator})
		}
		r.done()
		r.done()
		if got := r.sent(); !strings.Contains(got, "confirm-rkey(0)") {
			t.Errorf("%s: sent %s after DELETE LINK", role, got)
		}
	}
}

// TestBothSidesMove: both peers move connections at once, from and to whichever
// link, under traffic, and no byte is lost (RFC 7609, section 4.6).
func TestBothSidesMove(t *testing.T) {
	for seed := range uint64(30) {
		s := newSim(t, seed)
		n := 2 + int(seed%3)
		s.addHost(smc.Server, n, links(n))
		s.addHost(smc.Client, n, links(n))
		srv, cli := s.connectFirst(0, 4096)
		srv.manual, cli.manual = true, true
		if seed%2 == 1 {
			s.maxDelay = 50 * time.Microsecond
		}
		s.run(5*time.Millisecond, func() bool { return false })
		apps := s.busy(3)
		// One link stays; of the others each side loses its own at its time.
		for i, h := range s.hosts {
			for id := 1; id < n; id++ {
				if id%2 == i%2 || seed%5 == 0 {
					s.after(time.Duration(s.rng.Int64N(int64(3*time.Millisecond))), func() {
						if l := h.g.links.byID(uint8(id)); l != nil && !h.gone {
							h.g.LinkFailed(s.now, l, errAny)
							h.drain()
						}
					})
				}
			}
		}
		s.run(10*time.Millisecond, func() bool { return false })
		s.quiet(*apps)
		s.agree()
		s.finish()
	}
}

// TestDeleteRKeyMany: up to eight RMBs go in one DELETE RKEY (RFC 7609, appendix
// A.3.7), and those that the peer does not know are named by the error mask.
func TestDeleteRKeyMany(t *testing.T) {
	s := started(t, 2, 2, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1; c.Timers.RMBIdle = time.Hour })
	for range 11 {
		s.hosts[smc.Server].newIdleRMB()
		s.runUntilIdle()
	}
	s.trace = nil
	for _, r := range s.group(smc.Server).rmbs.list {
		s.group(smc.Server).rkeys.retire(r)
	}
	s.group(smc.Server).Tick(s.now)
	s.hosts[smc.Server].drain()
	s.runUntilIdle()
	got := strings.Join(s.trace, " ")
	for _, want := range []string{":delete-rkey(8)", "c1:re:delete-rkey(8)", ":delete-rkey(3)"} {
		if !strings.Contains(strings.ReplaceAll(got, "c2:", "c1:"), want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if n := len(s.group(smc.Client).peerRMBs.list); n != 1 || len(s.hosts[smc.Server].rmbs) != 1 {
		t.Errorf("the client knows %d RMBs of %d", n, len(s.hosts[smc.Server].rmbs))
	}
	s.agree()
	s.finish()
}
