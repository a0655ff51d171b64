// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestContinuationDirection: requests of ADD LINK CONTINUATION come from the server and replies
// from the client. What comes the other way is ignored (RFC 7609, appendix A.3.3).
func TestContinuationDirection(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(role, 1)) })
		r.begin()
		srv := role == smc.Server
		r.recv(r.link, r.confirmLink(srv, r.link))
		r.recv(r.link, wire.AddLink{Reply: srv, MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
		r.done()
		r.acts = nil
		m := wire.AddLinkCont{Reply: !srv, LinkNum: 2, Left: 1, Pairs: [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}}}
		r.recv(r.link, m)
		r.expect("")
		l2 := r.g.links.byID(2)
		if r.g.peerRMBs.find(l2, 0xBBBB) != nil || r.g.llc.ex.step != waitAddCont {
			t.Errorf("%s: the RToken is known, or the exchange goes on", role)
		}
		m.Reply = srv
		r.recv(r.link, m)
		if r.g.peerRMBs.find(l2, 0xBBBB) == nil || r.g.llc.ex.step != waitConfirm {
			t.Errorf("%s: the RToken is not known, or the exchange does not go on", role)
		}
		r.acts = nil
		m.Pairs[0].New.RKey = 0xCCCC
		r.recv(r.link, m) // all RTokens were told
		r.expect("")
		if r.g.peerRMBs.find(l2, 0xCCCC) != nil || len(r.dead) != 0 {
			t.Errorf("%s: a continuation after the last one counts; dead %v", role, r.dead)
		}
	}
}

// know has n more RMBs that the peer knows.
func (r *rig) know(n int) {
	r.t.Helper()
	for range n {
		m, err := r.g.rmbs.allocate(0, 0)
		if err != nil {
			r.t.Fatal(err)
		}
		m.state = rmbKnown
	}
}

// TestContinuationTime: each ADD LINK CONTINUATION has its own time for the answer.
func TestContinuationTime(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		srv := role == smc.Server
		r := newRig(t, role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(role, 1)) })
		r.begin()
		r.know(4)
		r.recv(r.link, r.confirmLink(srv, r.link))
		r.done()
		most := DefaultTimers(role).ConfirmFirst
		step := most - time.Millisecond
		r.wait(step / 2)
		r.recv(r.link, wire.AddLink{Reply: srv, MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
		r.done()
		for _, left := range []uint8{1, 0} {
			r.wait(step)
			m := wire.AddLinkCont{Reply: srv, LinkNum: 2, Left: left}
			m.Pairs[0] = wire.RKeyPair{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}
			r.recv(r.link, m)
			r.done()
		}
		r.wait(step)
		if len(r.dead) != 0 {
			t.Errorf("%s: dead %v", role, r.dead)
		}
		r.wait(time.Millisecond)
		if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrTimeout) {
			t.Errorf("%s: dead %v", role, r.dead)
		}
	}
}

// TestContinuationAfterLast: a peer that has told all its RTokens cannot have some left (RFC
// 7609, appendices A.3.3 and C.7.1).
func TestContinuationAfterLast(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		for _, left := range []uint8{0, 1} {
			srv := role == smc.Server
			r := newRig(t, role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(role, 1)) })
			r.begin()
			r.know(4)
			r.recv(r.link, r.confirmLink(srv, r.link))
			r.recv(r.link, wire.AddLink{Reply: srv, MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
			m := wire.AddLinkCont{Reply: srv, LinkNum: 2, Left: 1}
			m.Pairs[0] = wire.RKeyPair{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}
			r.recv(r.link, m)
			m.Left = left
			r.recv(r.link, m)
			if bad := len(r.dead) == 1 && errors.Is(r.dead[0], ErrProtocol); bad != (left > 0) {
				t.Errorf("%s, %d left: dead %v", role, left, r.dead)
			}
		}
	}
}

// TestContinuationOfTooManyRMBs: a peer cannot have more RMBs than a message can count.
func TestContinuationOfTooManyRMBs(t *testing.T) {
	r := manyLinks(t, 2, nil)
	r.g.DeviceUp(r.s.now, device(smc.Client, 2))
	for i := range maxRMBs - 1 {
		r.g.peerRMBs.add(r.link, smc.RToken{RKey: smc.RKey(0x10000 + i), Addr: 1}, false)
	}
	r.done()
	r.acts = nil
	r.recv(r.link, wire.AddLink{LinkNum: 20, MAC: smc.MAC{5: 20}, GID: smc.GID{15: 20}, QPN: 20, MTU: 3})
	r.recv(r.link, wire.AddLinkCont{LinkNum: 20, Left: 1, Pairs: [2]wire.RKeyPair{{RefRKey: 1, New: smc.RToken{RKey: 2, Addr: 3}}}})
	if r.link.qpOpen || r.active() != 1 || len(r.g.peerRMBs.list) != maxRMBs {
		t.Errorf("the link is %s, %d links work, %d RMBs", r.link.state, r.active(), len(r.g.peerRMBs.list))
	}
}

// TestContinuationLeavesOutRMB: a link over which the RMB of a connection is not known is of no
// use to the connection. It is not added (RFC 7609, appendix C.7.1).
func TestContinuationLeavesOutRMB(t *testing.T) {
	r := manyLinks(t, 1, nil)
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.done()
	r.acts = nil
	r.recv(r.link, wire.AddLink{LinkNum: 20, MAC: smc.MAC{5: 20}, GID: smc.GID{15: 20}, QPN: 20, MTU: 3})
	r.recv(r.link, wire.AddLinkCont{LinkNum: 20})
	if m := r.lastDelete(); m.LinkNum != 20 || m.Reason != wire.DeleteLinkProtocolViolation {
		t.Errorf("%+v", m)
	}
	r.expect("re:add-link re:add-link-continuation(1) delete-link(20)")
	if r.g.peerRMBs.find(r.link, peerRMB.RKey) != r.c.peerRMB || r.c.peerRMB == nil {
		t.Error("the RMB of the connection is not known any more")
	}
	// An RMB that no connection uses is forgotten.
	r = manyLinks(t, 1, nil)
	r.recv(r.link, wire.ConfirmRKey{This: smc.RToken{RKey: 0xDDDD, Addr: 1}})
	r.addLink(1)
	if r.g.peerRMBs.find(r.link, 0xDDDD) != nil {
		t.Error("an RMB is known that cannot be reached over all links")
	}
}

// TestAddLinkRejectedLater: a client that rejects a further link goes on as before.
func TestAddLinkRejectedLater(t *testing.T) {
	r := manyLinks(t, 2, nil)
	first := len(r.first)
	r.recv(r.link, wire.AddLink{LinkNum: 11, MAC: smc.MAC{5: 20}, GID: smc.GID{15: 20}, QPN: 20, MTU: 3})
	r.expect("re:add-link-rejected1")
	if len(r.first) != first {
		t.Errorf("the first contact has ended again: %v", r.first)
	}
}

// TestOneLinkStaysOne: a server that agreed on one link does nothing about a second one, even
// if a device comes up. It sets no timer either.
func TestOneLinkStaysOne(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { linux(c); noTest(c); c.MaxLinks = 1 })
	r.begin()
	r.recv(r.link, v2(r.confirmLink(true, r.link)))
	r.done()
	r.acts = nil
	r.g.DeviceUp(r.s.now, device(smc.Server, 1))
	r.expect("")
	if at, ok := r.g.Deadline(); ok {
		t.Errorf("a timer is set: %v", at.Sub(r.s.now))
	}
}

// TestReportedDeviceIsLogged: the log names the device that a client of version 2 reports.
func TestReportedDeviceIsLogged(t *testing.T) {
	var log strings.Builder
	r := newRig(t, smc.Server, func(c *Config) {
		linux(c)
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	r.openV2()
	gid := smc.GID{0: 0xfe, 1: 0x80, 15: 0x77}
	r.recv(r.link, v2(wire.ReqAddLink{GIDs: []smc.GID{gid}}))
	r.expect("add-link")
	if !strings.Contains(log.String(), "gid="+gid.String()) {
		t.Errorf("log: %q", log.String())
	}
}

// TestRejectionOfDeletedLinkNotLinux: a peer of version 2 that is not Linux has no reason to
// reject another link than the one that is being added. Such a message is ignored.
func TestRejectionOfDeletedLinkNotLinux(t *testing.T) {
	for _, tt := range []struct {
		os    smc.OS
		again bool
	}{{smc.OSLinux, true}, {smc.OSZOS, false}} {
		r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Version, c.PeerOS = wire.Version2, tt.os })
		r.openV2()
		r.recv(r.link, v2(wire.ReqAddLink{GIDs: []smc.GID{{1}}}))
		r.expect("add-link")
		r.recv(r.link, v2(wire.AddLink{Reply: true, Rejected: true, LinkNum: 2})) // that of the first contact
		if got := r.sent() == "add-link"; got != tt.again {
			t.Errorf("system %d: ADD LINK again: %v", tt.os, got)
		}
	}
}

// TestOfferOfIdleDevice: a client reports a device that is up and has no active link. One that
// is down is not reported. The device of a link that has failed is, before the link is gone.
func TestOfferOfIdleDevice(t *testing.T) {
	r := manyLinks(t, 1, nil)
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.g.DeviceDown(r.s.now, 1)
	r.done()
	r.acts = nil
	r.g.DeviceUp(r.s.now, device(smc.Client, 2))
	r.take()
	if m, err := wire.ParseAddLink(r.last); err != nil || m.GID != device(smc.Client, 2).GID {
		t.Errorf("the client reports %+v, %v", m, err)
	}
	r.expect("add-link")

	r = manyLinks(t, 2, nil)
	r.g.DeviceDown(r.s.now, 1)
	r.expect("delete-link(11)")
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.expect("add-link")
}
