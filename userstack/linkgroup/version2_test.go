// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// linux makes a group one of version 2 with a Linux peer.
func linux(c *Config) { c.Version, c.PeerOS = wire.Version2, smc.OSLinux }

// layoutOf returns the layout of the last message.
func (r *rig) layoutOf() wire.LLCLayout {
	r.t.Helper()
	r.take()
	h, err := wire.ParseLLCHeader(r.last)
	if err != nil {
		r.t.Fatal(err)
	}
	return h.Layout
}

// v2 makes a message of the peer one of version 2.
func v2(m wire.LLC) bytesOf {
	b, err := wire.AppendLLC(nil, wire.LLCV2Little, m)
	if err != nil {
		panic(err)
	}
	return b
}

type bytesOf []byte

func (b bytesOf) AppendBinary(to []byte) ([]byte, error) { return append(to, b...), nil }

// openV2 runs the first contact of version 2 with a peer of one device.
func (r *rig) openV2() {
	r.t.Helper()
	r.begin()
	if r.g.cfg.Role == smc.Server {
		r.expect("confirm-link")
		r.recv(r.link, v2(r.confirmLink(true, r.link)))
		r.expect("add-link")
		r.recv(r.link, v2(wire.AddLink{Reply: true, Rejected: true, LinkNum: 2}))
	} else {
		r.recv(r.link, v2(r.confirmLink(false, r.link)))
		r.expect("re:confirm-link")
		r.recv(r.link, v2(wire.AddLink{
			LinkNum: 2, MAC: peerEnd.MAC, GID: peerEnd.GID, QPN: 0x901, MTU: 3,
			Ext: &wire.AddLinkExt{Pairs: []wire.RKeyPair{{RefRKey: 0xAAAA, New: smc.RToken{RKey: 1, Addr: 2}}}},
		}))
		r.expect("re:add-link-rejected0")
		if len(r.last) != MsgLen {
			r.t.Errorf("ADD LINK rejected with %d bytes", len(r.last))
		}
	}
	r.done()
	if err := errors.Join(r.first...); err != nil || len(r.first) != 1 {
		r.t.Fatalf("first contact: %d outcomes, %v", len(r.first), err)
	}
	if err := r.c.Attach(r.s.now, peerRMB); err != nil {
		r.t.Fatal(err)
	}
	r.acts = nil
}

// TestFirstContactV2 has the flow that kernels show: ADD LINK is sent at once
// and rejected at once.
func TestFirstContactV2(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		newRig(t, role, linux).openV2()
	}
}

// TestOneLinkAgreed: with one link no ADD LINK is sent or waited for.
func TestOneLinkAgreed(t *testing.T) {
	one := func(c *Config) { linux(c); c.MaxLinks = 1 }
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, one)
		r.begin()
		r.recv(r.link, v2(r.confirmLink(role == smc.Server, r.link)))
		if got := r.sent(); strings.Contains(got, "add-link") {
			t.Errorf("%s: sent %s", role, got)
		}
		if len(r.first) != 1 || r.first[0] != nil {
			t.Errorf("%s: first contact %v", role, r.first)
		}
		r.done()
		r.wait(10 * time.Second)
		if got := r.sent(); got != "" {
			t.Errorf("%s: sent %s", role, got)
		}
	}
}

// TestLayout: the byte order of the peer's messages is ours.
func TestLayout(t *testing.T) {
	r := newRig(t, smc.Server, linux)
	r.openV2()
	for _, l := range []wire.LLCLayout{wire.LLCV2, wire.LLCV2Little} {
		r.recv(r.link, wire.TestLink{Layout: l})
		if got := r.layoutOf(); got != l {
			t.Errorf("answer to %s in %s", l, got)
		}
	}
	z := newRig(t, smc.Server, func(c *Config) { c.Version = wire.Version2 })
	z.begin()
	if got := z.layoutOf(); got != wire.LLCV2 {
		t.Errorf("CONFIRM LINK to an unknown system in %s", got)
	}
	z = newRig(t, smc.Server, func(c *Config) { c.Version = wire.Version2 })
	z.g.SetPeer(smc.PeerID{1}, smc.OSLinux, wire.ReleaseV21, false)
	z.begin()
	if got := z.layoutOf(); got != wire.LLCV2Little || z.g.PeerID() != (smc.PeerID{1}) {
		t.Errorf("CONFIRM LINK to Linux %s in %s", z.g.PeerID(), got)
	}
}

// TestVersionsDoNotMix: a message of another version ends the group.
func TestVersionsDoNotMix(t *testing.T) {
	for _, m := range []wire.LLC{wire.TestLink{}, wire.ConfirmRKeyCont{}, wire.DeleteRKey{}, wire.AddLinkCont{}} {
		r := newRig(t, smc.Server, linux)
		r.openV2()
		r.recv(r.link, m)
		if got := r.sent(); !strings.HasSuffix(got, "delete-link-all") {
			t.Errorf("%s of version 1: sent %q", m.LLCType(), got)
		}
	}
	for _, m := range []wire.LLC{wire.TestLink{}, wire.ReqAddLink{}, wire.DeleteRKeyV2{}} {
		r := newRig(t, smc.Server, nil)
		r.open()
		r.recv(r.link, v2(m))
		if got := r.sent(); !strings.HasSuffix(got, "delete-link-all") {
			t.Errorf("%s of version 2: sent %q", m.LLCType(), got)
		}
	}
}

// TestDeleteRKeyV2 has both directions.
func TestDeleteRKeyV2(t *testing.T) {
	r := newRig(t, smc.Client, func(c *Config) { linux(c); noTest(c) })
	r.openV2()
	r.recv(r.link, v2(wire.ConfirmRKey{This: smc.RToken{RKey: 0xB0, Addr: 1}}))
	r.expect("re:confirm-rkey(0)")
	r.recv(r.link, v2(wire.DeleteRKeyV2{RKeys: []smc.RKey{0xB0, 0xB1, 0xB2}}))
	m, err := wire.ParseDeleteRKeyV2(r.last)
	if err != nil || !m.Reply || !m.Negative || m.Count != 3 || m.Invalid != 2 {
		t.Errorf("reply %+v, %v", m, err)
	}
	r.recv(r.link, v2(wire.DeleteRKeyV2{RKeys: []smc.RKey{0xAAAA}}))
	if m, err = wire.ParseDeleteRKeyV2(r.last); err != nil || m.Negative || m.Count != 1 || m.Invalid != 0 {
		t.Errorf("reply %+v, %v", m, err)
	}
	// The connection that wrote there is over, and so is its own RMB after a
	// while.
	if len(r.close) != 1 || !errors.Is(r.close[0], conn.ErrReset) {
		t.Errorf("connection closed: %v", r.close)
	}
	r.c.Release()
	r.done()
	key := r.g.rmbs.list[0].at[r.link.slot].RKey
	r.wait(DefaultTimers(smc.Client).RMBIdle + DefaultTimers(smc.Client).AbortWait)
	found := false
	for _, a := range r.acts {
		if m, err := wire.ParseDeleteRKeyV2(a.Message()); a.Kind == ActSend && err == nil && !m.Reply {
			found = len(m.RKeys) == 1 && m.RKeys[0] == key
		}
	}
	if !found {
		t.Errorf("no DELETE RKEY: %s", r.sent())
	}
}

// TestRequestAddLink: the client tells a device by REQUEST ADD LINK; a server
// that has no use for it says so.
func TestRequestAddLink(t *testing.T) {
	c := newRig(t, smc.Client, linux)
	c.openV2()
	c.g.DeviceUp(c.s.now, device(smc.Client, 1))
	c.take()
	m, err := wire.ParseReqAddLink(c.last)
	if err != nil || m.Reply || len(m.GIDs) != 1 || m.GIDs[0] != device(smc.Client, 1).GID {
		t.Errorf("%+v, %v", m, err)
	}
	s := newRig(t, smc.Server, linux)
	s.openV2()
	s.recv(s.link, v2(wire.ReqAddLink{GIDs: []smc.GID{{1}}}))
	s.expect("add-link")
	s.recv(s.link, v2(wire.ReqAddLink{GIDs: []smc.GID{{1}}})) // while that is under way
	s.expect("re:request-add-link")
}

// TestConfirmRKeyMeetsAddLink: a CONFIRM RKEY that a client sent before it received
// our ADD LINK is refused, as RFC 7609, section 3.5.5.3.1, has it; but not that of
// a Linux client, which would take the connection to TCP. Its answer to ADD LINK
// tells the RMB too.
func TestConfirmRKeyMeetsAddLink(t *testing.T) {
	for _, os := range []smc.OS{smc.OSLinux, smc.OSZOS} {
		s := newRig(t, smc.Server, func(c *Config) { c.Version, c.PeerOS = wire.Version2, os })
		s.openV2()
		s.recv(s.link, v2(wire.ReqAddLink{GIDs: []smc.GID{{1}}}))
		s.expect("add-link")
		s.recv(s.link, v2(wire.ConfirmRKey{This: smc.RToken{RKey: 0xBBBB, Addr: 0x1000}}))
		s.take()
		m, err := wire.ParseConfirmRKey(s.last)
		if linux := os == smc.OSLinux; err != nil || !m.Reply || m.Negative == linux || m.Retry == linux {
			t.Errorf("system %d: %+v, %v", os, m, err)
		}
		if os != smc.OSLinux {
			continue
		}
		s.recv(s.link, v2(wire.AddLink{
			Reply: true, LinkNum: s.g.llc.ex.link.id, MAC: peerEnd.MAC, GID: smc.GID{1}, QPN: 0x902, PSN: 1, MTU: 3,
			Ext: &wire.AddLinkExt{Pairs: []wire.RKeyPair{
				{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 3, Addr: 4}},
				{RefRKey: 0xBBBB, New: smc.RToken{RKey: 5, Addr: 6}},
			}},
		}))
		if got := s.sent(); !strings.HasSuffix(got, " confirm-link") {
			t.Errorf("sent %q", got)
		}
	}
}

// TestAddLinkV2 joins two groups with two devices each and many RMBs, so that
// ADD LINK is longer than other messages.
func TestAddLinkV2(t *testing.T) {
	s := newSim(t, 1)
	edit := func(c *Config) { noTest(c); linux(c); c.RMBEsPerRMB = 1 }
	s.addHost(smc.Server, 2, edit)
	s.addHost(smc.Client, 2, edit)
	s.record()
	longest := 0
	tap := s.tap
	s.tap = func(from *host, l *Link, msg []byte) {
		longest = max(longest, len(msg))
		tap(from, l, msg)
	}
	a, b := s.connectFirst(0, 4096)
	a.manual, b.manual = true, true
	s.flow("s1:confirm-link c1:re:confirm-link s1:add-link c1:re:add-link s2:confirm-link c2:re:confirm-link")
	if got := s.types(); got != "SYM/SYM" {
		t.Errorf("types %s", got)
	}
	for range 20 {
		s.connect(0, 4096, func(a, b *app) { a.manual, b.manual = true, true })
		s.runUntilIdle()
	}
	// A link is lost and added again with all RMBs.
	srv := s.group(smc.Server)
	srv.DeviceDown(s.now, 1)
	s.hosts[smc.Server].drain()
	s.runUntilIdle()
	if got := s.types(); got != "SINGLE/SINGLE" {
		t.Errorf("types %s", got)
	}
	longest = 0
	srv.DeviceUp(s.now, device(smc.Server, 1))
	s.hosts[smc.Server].drain()
	s.runUntilIdle()
	if got := s.types(); got != "SYM/SYM" {
		t.Errorf("types %s", got)
	}
	if want := 72 + 21*16; longest != want {
		t.Errorf("longest message has %d bytes, want %d", longest, want)
	}
	s.finish()
}

// TestAddLinkExt: ADD LINK of version 2 says whether a router is on the way, and
// names the peer's GID.
func TestAddLinkExt(t *testing.T) {
	for _, routed := range []bool{false, true} {
		r := newRig(t, smc.Server, func(c *Config) { linux(c); c.Routed = routed })
		r.begin()
		r.expect("confirm-link")
		r.recv(r.link, v2(r.confirmLink(true, r.link)))
		r.expect("add-link")
		m, err := wire.ParseAddLink(r.last)
		if err != nil || m.Ext == nil || m.Ext.Direct == routed || m.Ext.TargetGID != peerEnd.GID {
			t.Errorf("routed %t: %+v, %+v, %v", routed, m, m.Ext, err)
		}
	}
}
