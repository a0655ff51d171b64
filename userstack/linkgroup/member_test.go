// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestConnParamsCheck: values of ACCEPT and CONFIRM that are out of range are found (RFC 7609,
// appendix C.6).
func TestConnParamsCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*ConnParams)
		ok   bool
	}{
		"good":               {func(*ConnParams) {}, true},
		"largest":            {func(p *ConnParams) { p.SizeCode, p.Link.QPN, p.Link.PSN, p.Link.MTU = 15, 0xffffff, 0xffffff, 5 }, true},
		"index 0":            {func(p *ConnParams) { p.Index = 0 }, false},
		"alert token 0":      {func(p *ConnParams) { p.Token = 0 }, false},
		"size code":          {func(p *ConnParams) { p.SizeCode = 16 }, false},
		"queue pair 0":       {func(p *ConnParams) { p.Link.QPN = 0 }, false},
		"queue pair too big": {func(p *ConnParams) { p.Link.QPN = 1 << 24 }, false},
		"PSN too big":        {func(p *ConnParams) { p.Link.PSN = 1 << 24 }, false},
		"MTU 0":              {func(p *ConnParams) { p.Link.MTU = 0 }, false},
		"MTU 6":              {func(p *ConnParams) { p.Link.MTU = 6 }, false},
	} {
		p := peerRMB
		tt.edit(&p)
		if err := p.Check(); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrInvalidParams) {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(name, "queue pair") || strings.Contains(name, "PSN") || strings.Contains(name, "MTU") {
			continue // Attach names a link by its queue pair
		}
		r := newRig(t, smc.Server, noTest)
		r.open()
		c := r.newConn()
		r.recv(r.link, wire.ConfirmRKey{This: smc.RToken{RKey: newKey, Addr: 0x70000}})
		p.Link, p.RKey, p.VAddr = peerEnd, newKey, 0x70000
		if p.Token != 0 {
			p.Token = 0x8888
		}
		if err := c.Attach(r.s.now, p); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrInvalidParams) {
			t.Errorf("%s: Attach: %v", name, err)
		}
	}
}

// TestNoSendBuffer: a connection needs a send buffer and an RMBE of a size that exists.
func TestNoSendBuffer(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	for _, tt := range []struct {
		code smc.SizeCode
		buf  int
	}{{0, 0}, {0, -1}, {16, 4096}} {
		if _, err := r.g.NewConn(r.s.now, tt.code, tt.buf); !errors.Is(err, ErrInvalidParams) {
			t.Errorf("size code %d, send buffer of %d bytes: %v", tt.code, tt.buf, err)
		}
	}
}

// TestRefuseFlood: the message that tells the peer of a refused connection counts as one of those
// that a peer does not accept.
func TestRefuseFlood(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	c := r.newConn()
	for len(r.link.llcq) < maxLLCQueue {
		r.recv(r.link, wire.TestLink{})
	}
	if len(r.dead) != 0 || r.g.phase != phaseOpen {
		t.Fatalf("dead %v", r.dead)
	}
	p := peerRMB
	p.Token++
	c.Refuse(r.s.now, p)
	if r.g.phase != phaseDying {
		t.Error("the peer accepts no replies, and the group goes on")
	}
}

// TestFloodOfEachLink: one link after the other fails if the peer accepts no replies on it.
func TestFloodOfEachLink(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
	l2 := r.two(nil)
	for range 200 {
		r.recv(r.link, wire.TestLink{})
	}
	if r.link.state == smc.LinkActive || l2.state != smc.LinkActive || len(r.dead) != 0 {
		t.Errorf("links %s and %s, dead %v", r.link.state, l2.state, r.dead)
	}
	if len(r.link.llcq) != 0 {
		t.Errorf("%d answers wait on a link that has failed", len(r.link.llcq))
	}
	for range 200 {
		r.recv(l2, wire.TestLink{})
	}
	if r.g.phase != phaseDying {
		t.Error("the group goes on")
	}
}

// TestQueueOfConnections: a connection that ends, or whose RMB the peer gives up, while it waits
// for room on its link does not wait any more. A message that is sent says whether the peer is
// full.
func TestQueueOfConnections(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"deleted RMB": func(r *rig) {
			r.recv(r.link, wire.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{peerRMB.RKey}})
		},
		"discarded": func(r *rig) { r.c.Cancel(r.s.now) },
	} {
		r := newRig(t, smc.Server, noTest)
		r.open()
		for r.link.used < len(r.link.sq) {
			r.recv(r.link, wire.TestLink{})
		}
		if r.send(10); r.link.waitHead != r.c {
			t.Fatalf("%s: the connection does not wait", name)
		}
		if end(r); r.link.waitHead != nil || r.c.waitOn != nil {
			t.Errorf("%s: the connection still waits", name)
		}
		r.done()
		if err := r.g.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.send(10)
	for _, a := range r.acts {
		if a.PeerFull {
			t.Error("the peer is full after 10 bytes")
		}
	}
	for i, a := range r.g.actions.list[:cap(r.g.actions.list)] {
		if a.Link != nil || a.Conn != nil || a.Chunk != nil {
			t.Errorf("action %d is taken and refers to others: %+v", i, a)
		}
	}
}

// TestReplyDeliveredOverItself: a client whose answer to DELETE LINK went over the deleted link
// itself goes on with what had to wait, as soon as the answer is delivered.
func TestReplyDeliveredOverItself(t *testing.T) {
	r := manyLinks(t, 2, oneRMB)
	r.c.setLink(r.g.links.byID(11))
	r.recv(r.link, wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator})
	r.expect("re:delete-link(1)")
	r.newConn()
	r.expect("")
	r.done()
	r.expect("confirm-rkey(0)")
}

// TestPlanOfOtherLink: a connection that is to move to one link still does if another one fails.
// One that moves at once because its own link has failed has no plan any more.
func TestPlanOfOtherLink(t *testing.T) {
	r := manyLinks(t, 3, nil)
	l2, l3 := r.g.links.byID(11), r.g.links.byID(12)
	r.send(10)
	r.c.planMove(l3)
	r.g.LinkFailed(r.s.now, l2, errAny)
	if r.c.target() != l3 {
		t.Errorf("the connection goes to link %d", r.c.target().ID())
	}
	r.g.LinkFailed(r.s.now, r.link, errAny)
	if r.c.Link() != l3 || r.c.planned != nil {
		t.Errorf("the connection is on link %d, planned %v", r.c.Link().ID(), r.c.planned)
	}
}

// TestBadMessageOfDeletedLink: a link that is being deleted fails at once if the peer violates
// the protocol on it. What still comes from a link that has failed means nothing.
func TestBadMessageOfDeletedLink(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
	l2 := r.two(nil)
	bad := append(bytesOf{wire.CDCType, 43}, make([]byte, 42)...)
	r.g.LinkFailed(r.s.now, l2, errAny)
	r.expect("delete-link(2)")
	if r.recv(l2, bad); len(r.dead) != 0 || r.active() != 1 {
		t.Errorf("a message of a link that has failed: dead %v, %d links", r.dead, r.active())
	}
	r.expect("")
}

// TestManySlots: a group has no more links at one time than it can tell RTokens for.
func TestManySlots(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	for len(r.g.links.list) < maxSlots {
		if _, err := r.g.change.create(device(smc.Server, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.g.change.create(device(smc.Server, 0)); !errors.Is(err, ErrFull) || len(r.g.links.list) != maxSlots {
		t.Errorf("%v, %d links", err, len(r.g.links.list))
	}
}

// TestPathDied: a group that ends because nothing comes from the peer says so, unless all its
// connections had begun to end.
func TestPathDied(t *testing.T) {
	for _, ending := range []bool{false, true} {
		r := newRig(t, smc.Server, nil)
		r.open()
		if ending {
			r.c.CloseWrite(r.s.now)
			r.done()
		}
		r.wait(time.Minute)
		if len(r.dead) != 1 || errors.Is(r.dead[0], ErrPathDied) == ending || !errors.Is(r.dead[0], ErrTimeout) {
			t.Errorf("ending %v: dead %v", ending, r.dead)
		}
	}
}

// TestAllowSilence: the times for an answer become longer, and not shorter.
func TestAllowSilence(t *testing.T) {
	timers, was := DefaultTimers(smc.Server), DefaultTimers(smc.Server)
	timers.AllowSilence(time.Millisecond)
	if timers != was {
		t.Errorf("%+v, want %+v", timers, was)
	}
	timers.AllowSilence(time.Hour)
	for _, d := range []*time.Duration{&was.TestLinkAnswer, &was.TestLinkBusy, &was.LLC, &was.ConfirmLink, &was.RKey, &was.DeleteLink} {
		*d = time.Hour
	}
	if timers != was {
		t.Errorf("%+v, want %+v", timers, was)
	}
}

// TestLinkIsNotThereYet: a link that is being added cannot be named by CLC before it is
// confirmed (RFC 7609, section 3.5.2.2).
func TestLinkIsNotThereYet(t *testing.T) {
	r := manyLinks(t, 1, nil)
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.done()
	l := r.unconfirmed(r.link, 11)
	if r.g.HasLink(l.peer.GID, l.peer.MAC, l.peer.QPN) {
		t.Error("the link counts before it is confirmed")
	}
	r.recv(l, r.confirmLink(false, l))
	if !r.g.HasLink(l.peer.GID, l.peer.MAC, l.peer.QPN) {
		t.Error("the link does not count")
	}
}
