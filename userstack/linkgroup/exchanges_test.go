// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestNudgeUntilAllDeleted: while one of several lost links is not deleted, the server is still
// made to send what it holds back.
func TestNudgeUntilAllDeleted(t *testing.T) {
	r := manyLinks(t, 3, nil)
	r.g.LinkFailed(r.s.now, r.link, errAny)
	r.g.LinkFailed(r.s.now, r.g.links.byID(11), errAny)
	nudges := func() bool {
		r.done()
		r.acts = nil
		for range 20 {
			r.wait(100 * time.Millisecond)
			r.done()
		}
		return strings.Contains(r.sent(), "cdc+R")
	}
	for _, tt := range []struct {
		deleted uint8
		want    bool
	}{{11, true}, {1, false}} {
		r.recv(r.g.links.byID(12), wire.DeleteLink{LinkNum: tt.deleted, Reason: wire.DeleteLinkLostPath})
		if got := nudges(); got != tt.want {
			t.Errorf("link %d is deleted: nudges %v, want %v", tt.deleted, got, tt.want)
		}
	}
}

// confirm completes the addition of a server's link that waits for the reply to ADD LINK.
func (r *rig) confirm(l *Link, port byte) {
	r.t.Helper()
	via := r.g.llc.ex.via
	r.recv(via, wire.AddLink{Reply: true, LinkNum: l.id, MAC: smc.MAC{5: port}, GID: smc.GID{15: port}, QPN: 0x700 + smc.QPN(port), MTU: 3})
	m := wire.AddLinkCont{Reply: true, LinkNum: l.id, Left: 1}
	m.Pairs[0] = wire.RKeyPair{RefRKey: r.g.peerRMBs.list[0].at[via.slot].RKey, New: smc.RToken{RKey: 0xDDDD, Addr: 9}}
	r.recv(via, m)
	r.recv(l, r.confirmLink(true, l))
	if l.state != smc.LinkActive {
		r.t.Fatalf("link %d is %s", l.id, l.state)
	}
}

// TestPauseAfterSuccess: the pauses between attempts to add a link grow while they fail, and
// begin from the first one after a link was added (RFC 7609, appendix C.8).
func TestPauseAfterSuccess(t *testing.T) {
	r, _, l3 := third(t)
	r.g.adding.tries, r.g.adding.hopeful = 4, true
	r.confirm(l3, 7)
	if r.g.adding.tries != 0 || r.g.adding.hopeful {
		t.Errorf("%d failed attempts, hopeful %v", r.g.adding.tries, r.g.adding.hopeful)
	}
}

// TestCarrierTimeout: a link over which the peer does not answer is deleted as a lost path.
func TestCarrierTimeout(t *testing.T) {
	r, _, _ := third(t)
	via := r.g.llc.ex.via
	r.done()
	r.wait(r.g.cfg.Timers.LLC)
	if m := r.lastDelete(); m.LinkNum != via.id || m.Reason != wire.DeleteLinkLostPath || m.Orderly {
		t.Errorf("%+v, want a deletion of link %d", m, via.id)
	}
}

// TestAddLinkDuringAddLink: a client takes part in one exchange at a time (RFC 7609, section
// 3.5.5.3).
func TestAddLinkDuringAddLink(t *testing.T) {
	r := manyLinks(t, 1, nil)
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.g.DeviceUp(r.s.now, device(smc.Client, 2))
	r.done()
	r.acts = nil
	add := func(id byte) {
		r.recv(r.link, wire.AddLink{LinkNum: id, MAC: smc.MAC{5: id}, GID: smc.GID{15: id}, QPN: smc.QPN(id), MTU: 3})
	}
	add(11)
	r.expect("re:add-link")
	add(12)
	if r.expect(""); r.g.links.byID(12) != nil || r.g.llc.ex.link.id != 11 {
		t.Errorf("link %d is being added", r.g.llc.ex.link.id)
	}
}

// TestNoTimerForAsymmetric: a server whose second link is asymmetric has no device for another
// one, and does not try again until it learns of one.
func TestNoTimerForAsymmetric(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.two(nil)
	if got := r.g.Type(); got != smc.GroupAsymmetricLocal {
		t.Fatalf("type %s", got)
	}
	r.g.adding.wanted = true
	r.g.Tick(r.s.now)
	if r.take(); !r.g.timers[timerAdd].IsZero() || r.g.adding.wanted {
		t.Errorf("a timer is set: %v, wanted %v", r.g.timers[timerAdd], r.g.adding.wanted)
	}
}

// TestRequestAtLimit: a server whose group cannot grow says so.
func TestRequestAtLimit(t *testing.T) {
	r := newRig(t, smc.Server, linux)
	r.openV2()
	r.g.links.max = 1
	r.recv(r.link, v2(wire.ReqAddLink{GIDs: []smc.GID{{1}}}))
	r.expect("re:request-add-link")
}

// TestProfiles has the columns of the table of profile.
func TestProfiles(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  Config
		want profile
	}{
		"version 1": {Config{Version: wire.Version1}, profile{
			layout: wire.LLCV1, leastLinks: 2, rkeysPerDelete: 8, slowLLC: true, pauses: true, abruptDelete: true, holdsBack: true,
			conns: conn.Peer{LosesCursor: true},
		}},
		"version 2": {Config{Version: wire.Version2, PeerOS: smc.OSZOS, PeerRelease: wire.ReleaseV21}, profile{
			layout: wire.LLCLayoutFor(wire.Version2, smc.OSZOS), extended: true, portByGID: true, leastLinks: 1, rkeysPerDelete: 9,
		}},
		"Linux": {Config{Version: wire.Version2, PeerOS: smc.OSLinux}, profile{
			layout: wire.LLCLayoutFor(wire.Version2, smc.OSLinux), extended: true, portByGID: true, leastLinks: 1, rkeysPerDelete: 9,
			slowLLC: true, pauses: true, lateDelete: true, rkeyFirst: true, abruptDelete: true, holdsBack: true, conns: conn.Peer{LosesCursor: true},
		}},
		"Linux, release 1, of this module": {Config{Version: wire.Version2, PeerOS: smc.OSLinux, PeerRelease: wire.ReleaseV21, PeerOurs: true}, profile{
			layout: wire.LLCLayoutFor(wire.Version2, smc.OSLinux), extended: true, portByGID: true, leastLinks: 1, rkeysPerDelete: 9,
			slowLLC: true, lateDelete: true, rkeyFirst: true, abruptDelete: true, holdsBack: true, otherSubnets: true,
			conns: conn.Peer{LosesCursor: true, StopsAtUrgent: true},
		}},
	} {
		if got := newProfile(&tt.cfg); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
	r := newRig(t, smc.Server, func(c *Config) { c.Version = wire.Version2 })
	if r.g.SetPeer(smc.PeerID{9}, smc.OSLinux, wire.ReleaseV21, true); !r.g.links.otherSubnets || r.g.PeerID() != (smc.PeerID{9}) || !r.g.connCfg.Peer.StopsAtUrgent {
		t.Errorf("other subnets %v, peer %v, %+v", r.g.links.otherSubnets, r.g.PeerID(), r.g.connCfg.Peer)
	}
}

// TestDeletedAsLost: a client closes the queue pair of a link that the server deletes as a lost
// path, also if the server calls that orderly: nothing could be confirmed on it.
func TestDeletedAsLost(t *testing.T) {
	for reason, open := range map[wire.DeleteLinkReason]bool{wire.DeleteLinkLostPath: false, wire.DeleteLinkOperator: true} {
		r := manyLinks(t, 2, nil)
		r.send(10) // not delivered, so that the answer waits
		r.recv(r.g.links.byID(11), wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: reason})
		if r.link.qpOpen != open {
			t.Errorf("%s: the queue pair is open: %v", reason, r.link.qpOpen)
		}
	}
}

// TestCheckOfConnection: what is wrong with a connection is wrong with its group.
func TestCheckOfConnection(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.openEye()
	if err := r.g.Check(); err != nil {
		t.Fatal(err)
	}
	r.c.element()[0]++
	if err := r.g.Check(); !errors.Is(err, conn.ErrInvariant) {
		t.Errorf("%v, want %v", err, conn.ErrInvariant)
	}
}

// TestRequestWithoutLink: a client that waits for CONFIRM LINK and has no other link asks for the
// deletion of those that have failed when the link is confirmed.
func TestRequestWithoutLink(t *testing.T) {
	r := manyLinks(t, 2, func(c *Config) { c.Timers.DeleteLink = time.Second })
	r.g.DeviceUp(r.s.now, device(smc.Client, 2))
	r.done()
	l := r.unconfirmed(r.link, 12)
	r.g.LinkFailed(r.s.now, r.g.links.byID(11), errAny)
	r.g.LinkFailed(r.s.now, r.link, errAny)
	r.acts = nil
	r.wait(3 * time.Second)
	r.expect("")
	r.recv(l, r.confirmLink(false, l))
	if got := r.sent(); len(r.dead) != 0 || !strings.Contains(got, "delete-link(11)") || !strings.Contains(got, "delete-link(1)") {
		t.Errorf("dead %v, sent %q", r.dead, got)
	}
}

// TestUnannouncedRMB: an RMB that the peer never learned of is freed when no connection has used
// it for a while, but not while CONFIRM RKEY is under way for it.
func TestUnannouncedRMB(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); oneRMB(c); c.Timers.RMBIdle = time.Second })
	r.open()
	under, next := r.newConn(), r.newConn()
	r.expect("confirm-rkey(0)")
	reply := under.reply(r.link)
	under.Cancel(r.s.now)
	next.Cancel(r.s.now)
	if n := len(r.g.rmbs.list); n != 3 || r.g.timers[timerRKeyWait].IsZero() {
		t.Fatalf("%d RMBs", n)
	}
	r.wait(time.Second)
	if n := len(r.g.rmbs.list); n != 2 || len(r.h.rmbs) != 2 {
		t.Errorf("%d RMBs are left, want that of the first connection and the one that is being announced", n)
	}
	r.recv(r.link, reply)
	if !r.g.timers[timerRKeyWait].IsZero() {
		t.Error("nobody waits, and a timer runs")
	}
	r.wait(time.Second)
	r.expect("delete-rkey(1)")
	r.recv(r.link, reply) // once more: it is an answer to nothing now
	if len(r.dead) != 0 || r.g.rkeys.own.kind != rkDelete {
		t.Errorf("dead %v, exchange %d", r.dead, r.g.rkeys.own.kind)
	}
	r.recv(r.link, wire.DeleteRKey{Reply: true, Count: 1, RKeys: [8]smc.RKey{reply.This.RKey}})
	if len(r.h.rmbs) != 1 {
		t.Errorf("%d RMBs", len(r.h.rmbs))
	}
}

// TestNotWatchedLater: only a first contact waits for the acknowledgement of each message.
func TestNotWatchedLater(t *testing.T) {
	r, _, l3 := third(t)
	r.confirm(l3, 7)
	if !r.g.timers[timerFirstSend].IsZero() {
		t.Error("a message of an open group is watched")
	}
}

// TestFailedAddition: a link whose addition fails is not used any more.
func TestFailedAddition(t *testing.T) {
	r, _, l3 := third(t)
	r.recv(r.g.llc.ex.via, wire.AddLink{Reply: true, LinkNum: l3.id, MAC: smc.MAC{5: 7}, GID: smc.GID{15: 7}, QPN: 0, MTU: 3})
	if l3.state != smc.LinkInactive || l3.qpOpen {
		t.Errorf("the link is %s, its queue pair is open: %v", l3.state, l3.qpOpen)
	}
}

// TestPlannedLinkGone: a connection that cannot move as planned has no plan any more.
func TestPlannedLinkGone(t *testing.T) {
	r, c, l2 := planned(t)
	l2.state = smc.LinkInactive
	r.wait(time.Second)
	if c.Link() != r.link || c.planned != nil {
		t.Errorf("the connection is on link %d, planned %v", c.Link().ID(), c.planned)
	}
}

// TestCancelLater: what a connection leaves is idle from the time at which it is canceled.
func TestCancelLater(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); oneRMB(c) })
	r.open()
	c := r.newConn()
	r.s.now = r.s.now.Add(5 * time.Second)
	c.Cancel(r.s.now)
	if want := r.s.now.Add(r.g.cfg.Timers.RMBIdle); !c.rmb.idleAt.Equal(want) {
		t.Errorf("the RMB is idle until %s, want %s", c.rmb.idleAt, want)
	}
}

// TestUrgentIsTold: a program is told of urgent data in a way of its own.
func TestUrgentIsTold(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.give(1, wire.ProdUrgentPending|wire.ProdUrgentPresent)
	if got := r.kinds(); !slices.Contains(got, "wake-urgent") {
		t.Errorf("actions %v", got)
	}
}

// TestDeleteRKeyPositive: a positive answer to DELETE RKEY is nothing to warn of.
func TestDeleteRKeyPositive(t *testing.T) {
	var log strings.Builder
	r := newRig(t, smc.Server, func(c *Config) {
		noTest(c)
		oneRMB(c)
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	r.open()
	c := r.newConn()
	reply := c.reply(r.link)
	r.recv(r.link, reply)
	c.Cancel(r.s.now)
	r.done()
	r.acts = nil
	r.wait(61 * time.Second)
	r.expect("delete-rkey(1)")
	log.Reset()
	known := len(r.link.Data.(*qp).mr)
	r.recv(r.link, wire.DeleteRKey{Reply: true, Count: 1, RKeys: [8]smc.RKey{reply.This.RKey}})
	if n := len(r.link.Data.(*qp).mr); n != known-1 {
		t.Errorf("%d registrations on the link, were %d", n, known)
	}
	if len(r.h.rmbs) != 1 || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("%d RMBs, log %q", len(r.h.rmbs), log.String())
	}
}

// TestRKeyOverOtherLink: the answer to an RKey exchange comes over the link of the request. If
// none comes, that link is deleted as a lost path.
func TestRKeyOverOtherLink(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) {
		noTest(c)
		oneRMB(c)
		c.Devices = append(c.Devices, device(smc.Server, 1))
	})
	r.two(nil)
	c := r.newConn()
	via := r.g.rkeys.own.via
	r.recv(via, c.reply(via))
	c.Cancel(r.s.now)
	r.done()
	r.wait(61 * time.Second)
	via = r.g.rkeys.own.via
	if r.g.rkeys.own.kind != rkDelete {
		t.Fatalf("exchange %d", r.g.rkeys.own.kind)
	}
	answer := wire.DeleteRKey{Reply: true, Count: 1, RKeys: [8]smc.RKey{c.rmb.at[via.slot].RKey}}
	for _, l := range r.g.Links() {
		if l != via {
			r.recv(l, answer)
		}
	}
	if r.g.rkeys.own.kind != rkDelete || len(r.h.rmbs) != 2 {
		t.Errorf("exchange %d, %d RMBs after an answer over another link", r.g.rkeys.own.kind, len(r.h.rmbs))
	}
	r.wait(r.g.cfg.Timers.RKey)
	if m := r.lastDelete(); m.LinkNum != via.id || m.Reason != wire.DeleteLinkLostPath {
		t.Errorf("%+v, want a deletion of link %d", m, via.id)
	}
}
