// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestDoubt: a group that is in doubt takes no connections until its peer has
// answered TEST LINK, and ends if it does not.
func TestDoubt(t *testing.T) {
	for _, answers := range []bool{true, false} {
		r := newRig(t, smc.Server, noTest)
		r.open()
		r.take()
		if !r.g.CanAccept() {
			t.Fatal("the group takes no connections")
		}
		r.g.Doubt(r.s.now)
		r.expect("test-link")
		if r.g.CanAccept() {
			t.Error("a group in doubt takes connections")
		}
		r.g.Doubt(r.s.now) // said twice, asked once
		r.expect("")
		if answers {
			r.recv(r.link, wire.TestLink{Reply: true, UserData: r.link.testData})
			if !r.g.CanAccept() {
				t.Error("the peer has answered, and the group takes no connections")
			}
			r.wait(time.Minute)
			if r.g.phase == phaseDead {
				t.Error("the group has ended")
			}
			continue
		}
		r.wait(time.Minute)
		if r.g.phase != phaseDead {
			t.Error("the peer does not answer, and the group goes on")
		}
	}
}

// TestPortOfHost: a PROPOSAL finds a link group by the port of the peer and by the address
// of the peer's TCP connection. Another host that names the peer's port finds nothing.
func TestPortOfHost(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	for _, tt := range []struct {
		host netip.Addr
		gid  smc.GID
		mac  smc.MAC
		want bool
	}{
		{peerHost, peerEnd.GID, peerEnd.MAC, true},
		{netip.MustParseAddr("10.0.0.8"), peerEnd.GID, peerEnd.MAC, false},
		{netip.MustParseAddr("fe80::9"), peerEnd.GID, peerEnd.MAC, false},
		{netip.Addr{}, peerEnd.GID, peerEnd.MAC, false},
		{peerHost, smc.GID{}, peerEnd.MAC, false},
		{peerHost, peerEnd.GID, smc.MAC{}, false},
	} {
		if got := r.g.HasPort(tt.host, tt.gid, tt.mac); got != tt.want {
			t.Errorf("host %s, GID %s, MAC %s: %v, want %v", tt.host, tt.gid, tt.mac, got, tt.want)
		}
	}
}

// TestRKeyNotTold: CLC names no RMB on a subsequent contact that was not told by
// CONFIRM RKEY, nor one that ADD LINK CONTINUATION gave without its address.
func TestRKeyNotTold(t *testing.T) {
	for _, role := range []smc.Role{smc.Client, smc.Server} {
		r := newRig(t, role, noTest)
		r.open()
		r.take()
		c, err := r.g.NewConn(r.s.now, 0, 65536)
		if err != nil {
			t.Fatal(err)
		}
		told := smc.RToken{RKey: 0xCCCC, Addr: 0x20000}
		p := peerRMB
		p.Index, p.Token, p.RKey, p.VAddr = 1, 9, told.RKey, told.Addr
		known := len(r.g.peerRMBs.list)
		attach := func(p ConnParams, want error) {
			t.Helper()
			if err := c.Attach(r.s.now, p); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", role, err, want)
			}
		}
		attach(p, ErrUnknownRKey)
		r.g.peerRMBs.add(r.link, told, true)
		attach(p, ErrUnknownRKey)
		r.recv(r.link, wire.ConfirmRKey{This: told})
		wrong := p
		wrong.VAddr++
		attach(wrong, ErrUnknownRKey)
		wrong = p
		wrong.Link.QPN = 0
		attach(wrong, ErrNoLink)
		if n := len(r.g.peerRMBs.list); n != known+1 || r.g.phase == phaseDead {
			t.Errorf("%s: %d RMBs of the peer are known, were %d; dead %v", role, n, known, r.g.phase == phaseDead)
		}
		attach(p, nil)
	}
}

// TestFirstRMB: the RMB that the first contact names is known from then on. A
// second connection in it may come before the first is attached, and after ADD
// LINK CONTINUATION, which names RMBs without their addresses.
func TestFirstRMB(t *testing.T) {
	for _, role := range []smc.Role{smc.Client, smc.Server} {
		r := newRig(t, role, noTest)
		r.begin()
		r.g.peerRMBs.add(r.link, smc.RToken{RKey: peerRMB.RKey}, true)
		r.recv(r.link, r.confirmLink(role == smc.Server, r.link))
		if role == smc.Server {
			r.recv(r.link, wire.AddLink{Reply: true, Rejected: true, Reason: 1, LinkNum: 2})
		} else {
			r.recv(r.link, wire.AddLink{LinkNum: 2, MAC: peerEnd.MAC, GID: peerEnd.GID, QPN: 0x901, MTU: 3})
		}
		r.done()
		c, err := r.g.NewConn(r.s.now, 0, 65536)
		if err != nil {
			t.Fatal(err)
		}
		second := peerRMB
		second.Index, second.Token = 3, 0x7778
		if err := c.Attach(r.s.now, second); err != nil {
			t.Errorf("%s: the second connection: %v", role, err)
		}
		if err := r.c.Attach(r.s.now, peerRMB); err != nil {
			t.Errorf("%s: the first connection: %v", role, err)
		}
	}
}

// TestDoubtLater: the time for the answer begins when the doubt is said, and only active links
// are tested.
func TestDoubtLater(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
	l2 := r.two(nil)
	r.g.LinkFailed(r.s.now, l2, errAny)
	r.done()
	r.recv(r.link, wire.DeleteLink{Reply: true, LinkNum: 2})
	r.g.adding.newDevice()
	r.g.Tick(r.s.now)
	r.expect("delete-link(2) add-link")
	l3 := r.g.llc.ex.link
	r.wait(10 * time.Second) // no event
	r.g.Doubt(r.s.now)
	if l3.testing || !l3.qpOpen {
		t.Errorf("the link that is being added is tested: %v", l3.testing)
	}
	r.expect("test-link")
	if at, ok := r.g.Deadline(); !ok || at.Sub(r.s.now) != 2*time.Second {
		t.Errorf("deadline in %v", at.Sub(r.s.now))
	}
}
