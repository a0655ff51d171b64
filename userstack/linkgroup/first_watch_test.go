// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestFirstSendWatch: how long a first contact waits for the acknowledgement of its messages. The
// time begins with the oldest message that is not acknowledged, and again whenever something is
// acknowledged. A message that is sent after all others were acknowledged is watched, too.
func TestFirstSendWatch(t *testing.T) {
	limit := DefaultTimers(smc.Server).FirstSend
	for _, tt := range []struct {
		name  string
		acked time.Duration // CONFIRM LINK, after it was sent; 0: never
		reply time.Duration // to CONFIRM LINK, so that ADD LINK is sent
		fails time.Duration // after CONFIRM LINK was sent
	}{
		{"nothing is acknowledged", 0, limit / 2, limit},
		{"ADD LINK is not", 200 * time.Millisecond, 300 * time.Millisecond, 200*time.Millisecond + limit},
		{"ADD LINK is not, and is sent late", 200 * time.Millisecond, limit + 50*time.Millisecond, 2*limit + 50*time.Millisecond},
	} {
		r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
		r.begin()
		start := r.s.now
		if tt.acked > 0 {
			r.wait(tt.acked)
			r.done()
		}
		r.wait(tt.reply - r.s.now.Sub(start))
		r.recv(r.link, r.confirmLink(true, r.link))
		r.wait(tt.fails + firstGrace - time.Millisecond - r.s.now.Sub(start))
		if len(r.first) != 0 {
			t.Errorf("%s: first contact %v after %v", tt.name, r.first, r.s.now.Sub(start))
			continue
		}
		r.wait(time.Millisecond)
		if len(r.first) != 1 || !errors.Is(r.first[0], ErrSilent) || errors.Is(r.first[0], ErrNoFallback) {
			t.Errorf("%s: first contact %v", tt.name, r.first)
		}
	}
}

// TestConfirmLinkAgain: CONFIRM LINK on the first link counts once. What comes later on this
// link is ignored, whatever it says.
func TestConfirmLinkAgain(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		for _, wrong := range []bool{false, true} {
			r := newRig(t, role, noTest)
			r.open()
			m := r.confirmLink(role == smc.Server, r.link)
			m.LinkUserID++
			if wrong {
				m.QPN++
			}
			uid := r.link.PeerUID()
			r.recv(r.link, m)
			r.expect("")
			if len(r.dead) != 0 || len(r.first) != 1 || r.g.phase != phaseOpen || r.link.PeerUID() != uid {
				t.Errorf("%s: dead %v, first contact %v, phase %d, peer's link user ID %#x", role, r.dead, r.first, r.g.phase, r.link.PeerUID())
			}
		}
	}
}

// TestIdleFromTheStart: a group whose connection ended before the group was open is kept for
// the time Idle from then on, and not less.
func TestIdleFromTheStart(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) {
		noTest(c)
		c.Timers.Idle, c.Timers.FirstAnswer = time.Second, time.Minute
	})
	r.begin()
	r.done()
	r.c.Cancel(r.s.now)
	r.wait(3 * time.Second)
	if len(r.dead) != 0 {
		t.Fatalf("the group ended in the first contact: %v", r.dead)
	}
	r.recv(r.link, r.confirmLink(true, r.link))
	r.recv(r.link, wire.AddLink{Reply: true, Rejected: true, Reason: 1, LinkNum: 2})
	r.done()
	r.wait(999 * time.Millisecond)
	if len(r.first) != 1 || r.first[0] != nil || len(r.dead) != 0 {
		t.Fatalf("first contact %v, dead %v", r.first, r.dead)
	}
	r.acts = nil
	r.wait(time.Millisecond)
	r.expect("delete-link-all")
	r.done()
	if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrIdle) {
		t.Errorf("dead %v", r.dead)
	}
}

// TestIdleForEver: without the time Idle, a group without connections is kept.
func TestIdleForEver(t *testing.T) {
	for _, early := range []bool{true, false} {
		r := newRig(t, smc.Server, func(c *Config) {
			noTest(c)
			c.Timers.Idle, c.Timers.AddLinkRetry, c.Timers.RMBIdle = 0, 0, 1000*time.Hour
		})
		if early {
			r.begin()
			r.c.Cancel(r.s.now)
			r.recv(r.link, r.confirmLink(true, r.link))
			r.recv(r.link, wire.AddLink{Reply: true, Rejected: true, Reason: 1, LinkNum: 2})
			r.done()
			r.acts = nil
		} else {
			r.open()
			r.newConn().Cancel(r.s.now)
			r.recv(r.link, wire.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{peerRMB.RKey}})
			r.done()
			r.acts = nil
		}
		r.wait(24 * time.Hour)
		if r.g.Conns() != 0 || len(r.dead) != 0 || r.g.phase != phaseOpen {
			t.Errorf("early %v: %d connections, dead %v", early, r.g.Conns(), r.dead)
		}
	}
}

// TestFirstRMBNotNamed: the RMB of the first connection may become known by its CLC message
// when the connection is attached, if the first contact named no element.
func TestFirstRMBNotNamed(t *testing.T) {
	begin := func(role smc.Role) *rig {
		r := newRig(t, role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(role, 1)) })
		if _, err := r.g.FirstLink(r.s.now); err != nil {
			t.Fatal(err)
		}
		r.link = r.g.links.list[0]
		var err error
		if r.c, err = r.g.NewConn(r.s.now, 0, 4096); err != nil {
			t.Fatal(err)
		}
		if err := r.g.ConnectFirst(r.s.now, ConnParams{Link: peerEnd}); err != nil {
			t.Fatal(err)
		}
		if n := len(r.g.peerRMBs.list); n != 0 {
			t.Errorf("%s: %d RMBs of the peer are known", role, n)
		}
		r.recv(r.link, r.confirmLink(role == smc.Server, r.link))
		return r
	}
	second := func(r *rig, pairs ...wire.RKeyPair) {
		srv := r.g.cfg.Role == smc.Server
		r.recv(r.link, wire.AddLink{Reply: srv, MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
		m := wire.AddLinkCont{Reply: srv, LinkNum: 2, Left: uint8(len(pairs))}
		copy(m.Pairs[:], pairs)
		r.recv(r.link, m)
		l2 := r.g.links.byID(2)
		r.recv(l2, r.confirmLink(srv, l2))
		r.done()
		if len(r.first) != 1 || r.first[0] != nil {
			t.Fatalf("first contact %v", r.first)
		}
		r.acts = nil
	}
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		writes := func(r *rig, l *Link) {
			t.Helper()
			r.send(10)
			for _, a := range r.acts {
				if at := peerRMB.VAddr + 16<<10; a.Kind == ActWrite && (a.Link != l || a.RKey != peerRMB.RKey || a.RemoteAddr != at) {
					t.Errorf("%s: write to %s at %#x over link %d, want %s at %#x", role, a.RKey, a.RemoteAddr, a.Link.id, peerRMB.RKey, at)
				}
			}
			if got := r.sent(); got != "cdc" {
				t.Errorf("%s: sent %q", role, got)
			}
		}
		// One link: CLC alone names the RMB, before or after the group is open.
		for _, early := range []bool{true, false} {
			r := begin(role)
			if early {
				if err := r.c.Attach(r.s.now, peerRMB); err != nil {
					t.Errorf("%s: %v", role, err)
				}
			}
			if role == smc.Server {
				r.recv(r.link, wire.AddLink{Reply: true, Rejected: true, Reason: 1, LinkNum: 2})
			} else {
				r.recv(r.link, wire.AddLink{LinkNum: 2, MAC: peerEnd.MAC, GID: peerEnd.GID, QPN: 0x901, MTU: 9})
			}
			r.done()
			if !early {
				if err := r.c.Attach(r.s.now, peerRMB); err != nil {
					t.Errorf("%s: %v", role, err)
				}
			}
			r.acts = nil
			writes(r, r.link)
		}
		// Two links: ADD LINK CONTINUATION names it by its RKey, and CLC by its address.
		r := begin(role)
		second(r, wire.RKeyPair{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}})
		if err := r.c.Attach(r.s.now, peerRMB); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		writes(r, r.link)
		// Two links: an RMB that is not known on both is of no use.
		r = begin(role)
		second(r)
		if err := r.c.Attach(r.s.now, peerRMB); !errors.Is(err, ErrUnknownRKey) || len(r.g.peerRMBs.list) != 0 {
			t.Errorf("%s: Attach: %v, %d RMBs of the peer", role, err, len(r.g.peerRMBs.list))
		}
	}
}

// TestLaterAddressCounts: the address that the peer has told by CONFIRM RKEY is newer than that
// of its first CLC message.
func TestLaterAddressCounts(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.begin()
	r.recv(r.link, r.confirmLink(true, r.link))
	r.recv(r.link, wire.AddLink{Reply: true, Rejected: true, Reason: 1, LinkNum: 2})
	r.recv(r.link, wire.ConfirmRKey{This: smc.RToken{RKey: peerRMB.RKey, Addr: 0x50000}})
	r.done()
	if err := r.c.Attach(r.s.now, peerRMB); err != nil {
		t.Fatal(err)
	}
	r.acts = nil
	r.send(10)
	for _, a := range r.acts {
		if a.Kind == ActWrite && a.RemoteAddr != 0x50000+16<<10 {
			t.Errorf("write at %#x", a.RemoteAddr)
		}
	}
	r.expect("cdc")
}
