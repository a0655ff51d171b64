// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// lastDelete returns the last DELETE LINK that was sent.
func (r *rig) lastDelete() wire.DeleteLink {
	r.t.Helper()
	r.take()
	for i := len(r.acts) - 1; i >= 0; i-- {
		if r.acts[i].Kind != ActSend {
			continue
		}
		if m, err := wire.ParseDeleteLink(r.acts[i].Message()); err == nil {
			return m
		}
	}
	r.t.Fatal("no DELETE LINK was sent")
	return wire.DeleteLink{}
}

// third returns a server with two links that has sent ADD LINK for a third one.
func third(t *testing.T) (r *rig, l2, l3 *Link) {
	t.Helper()
	r = newRig(t, smc.Server, func(c *Config) {
		noTest(c)
		c.MaxLinks = 3
		c.Devices = append(c.Devices, device(smc.Server, 1), device(smc.Server, 2))
	})
	r.most = 3
	l2 = r.two(nil)
	if l3 = r.g.llc.ex.link; r.g.llc.ex.step != waitAddReply {
		t.Fatal("no third link is being added")
	}
	r.acts = nil
	return r, l2, l3
}

// reject has the client reject the link that is being added.
func (r *rig) reject() {
	r.t.Helper()
	ex := r.g.llc.ex
	r.recv(ex.via, wire.AddLink{Reply: true, Rejected: true, Reason: wire.AddLinkNoAlternatePath, LinkNum: ex.link.id})
}

// TestDeleteLinkSaidTwice: a link that is to be deleted already is deleted once, in the way and
// for the reason that were said first.
func TestDeleteLinkSaidTwice(t *testing.T) {
	local := func(reason wire.DeleteLinkReason) func(*rig, *Link) {
		return func(r *rig, l *Link) { r.g.DeleteLink(r.s.now, l, reason) }
	}
	client := func(m wire.DeleteLink) func(*rig, *Link) {
		return func(r *rig, l *Link) { m.LinkNum = l.id; r.recv(r.link, m) }
	}
	first := wire.DeleteLink{Orderly: true, Reason: wire.DeleteLinkOperator}
	for name, do := range map[string][2]func(*rig, *Link){
		"by the operator":                        {local(wire.DeleteLinkOperator), local(wire.DeleteLinkProgram)},
		"by the client":                          {client(first), client(wire.DeleteLink{Orderly: true, Reason: wire.DeleteLinkProgram})},
		"by the client, for a lost link":         {client(first), client(wire.DeleteLink{Reason: wire.DeleteLinkLostPath})},
		"by the operator and then by the client": {local(wire.DeleteLinkOperator), client(wire.DeleteLink{Orderly: true, Reason: wire.DeleteLinkProgram})},
	} {
		r, l2, _ := third(t)
		do[0](r, l2)
		do[1](r, l2)
		r.expect("") // it waits for the end of ADD LINK
		if !l2.qpOpen || l2.state != smc.LinkActive {
			t.Errorf("%s: the link is %s, its queue pair is open: %v", name, l2.state, l2.qpOpen)
		}
		r.reject()
		if m := r.lastDelete(); m.LinkNum != 2 || !m.Orderly || m.Reason != wire.DeleteLinkOperator {
			t.Errorf("%s: %+v", name, m)
		}
		r.expect("delete-link(2)")
		r.recv(r.link, wire.DeleteLink{Reply: true, Orderly: true, LinkNum: 2})
		r.done()
		r.expect("")
		if r.active() != 1 {
			t.Errorf("%s: %d links", name, r.active())
		}
	}
}

// TestDeleteLinkNotActive: a link that is not active cannot be deleted by the operator: it is
// being added or deleted. Its device stays what it was.
func TestDeleteLinkNotActive(t *testing.T) {
	r, _, l3 := third(t)
	r.g.DeleteLink(r.s.now, l3, wire.DeleteLinkOperator)
	r.expect("")
	r.reject()
	r.expect("")
	if d := r.g.Devices(); !d[2].Up {
		t.Error("the device of the link that is being added is down")
	}
}

// TestLastLinkDeletedByClient: a client that deletes the only link deletes all links, in the
// same way: a lost path is no orderly end (RFC 7609, sections 3.5.4 and 3.5.5.1.4).
func TestLastLinkDeletedByClient(t *testing.T) {
	for _, m := range []wire.DeleteLink{
		{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator},
		{LinkNum: 1, Reason: wire.DeleteLinkLostPath},
		{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkLostPath},
		{LinkNum: 1, Reason: wire.DeleteLinkProtocolViolation},
	} {
		r := newRig(t, smc.Server, noTest)
		r.open()
		r.recv(r.link, m)
		orderly := m.Reason == wire.DeleteLinkOperator
		if got := r.lastDelete(); !got.All || got.Orderly != orderly || got.Reason != m.Reason {
			t.Errorf("after %+v: %+v", m, got)
		}
		r.expect("delete-link-all")
		r.done()
		if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrTerminated) {
			t.Errorf("after %+v: dead %v", m, r.dead)
		}
	}
}

// TestDeleteLinkMovesConnections: a client moves its connections as soon as it is told to
// delete their link, and not only when its answer has been delivered (RFC 7609, section
// 3.5.5.1.3).
func TestDeleteLinkMovesConnections(t *testing.T) {
	for _, orderly := range []bool{true, false} {
		r := manyLinks(t, 2, nil)
		l2 := r.g.links.byID(11)
		r.recv(l2, wire.DeleteLink{LinkNum: 1, Orderly: orderly, Reason: wire.DeleteLinkOperator})
		if r.c.Link() != l2 {
			t.Errorf("orderly %v: the connection is on link %d", orderly, r.c.Link().ID())
		}
		if m := r.lastDelete(); !m.Reply || m.Orderly != orderly || m.Reason != wire.DeleteLinkOperator {
			t.Errorf("orderly %v: answer %+v", orderly, m)
		}
		r.expect("cdc+F re:delete-link(1)")
		if r.link.qpOpen != orderly {
			t.Errorf("orderly %v: the queue pair is open: %v", orderly, r.link.qpOpen)
		}
	}
}

// TestDeleteLinkOverItself: the answer to DELETE LINK goes over the link of the request, also
// if that is the link that is deleted. Its queue pair is open until the answer is delivered.
func TestDeleteLinkOverItself(t *testing.T) {
	for _, orderly := range []bool{true, false} {
		r := manyLinks(t, 2, nil)
		r.c.setLink(r.g.links.byID(11))
		r.recv(r.link, wire.DeleteLink{LinkNum: 1, Orderly: orderly, Reason: wire.DeleteLinkLostPath})
		var over *Link
		for _, a := range r.acts {
			if a.Kind == ActSend && describe(a.Message()) == "re:delete-link(1)" {
				over = a.Link
			}
		}
		if over != r.link || !r.link.qpOpen {
			t.Errorf("orderly %v: the answer goes over %v, and the queue pair is open: %v", orderly, over, r.link.qpOpen)
		}
		r.done()
		if r.link.qpOpen || r.active() != 1 {
			t.Errorf("orderly %v: the queue pair is open: %v, %d links", orderly, r.link.qpOpen, r.active())
		}
	}
}

// TestNothingNewOverDeletedLink: a connection whose messages are outstanding on a link that is
// deleted sends nothing new over it. It goes on over another link when they are delivered.
func TestNothingNewOverDeletedLink(t *testing.T) {
	r := manyLinks(t, 2, nil)
	r.send(10)
	r.expect("cdc")
	l2 := r.g.links.byID(11)
	r.recv(l2, wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator})
	r.send(3000) // more than is held back while a message is outstanding
	if n, over := r.written(); n != 0 {
		t.Errorf("%d bytes were written over %v", n, over)
	}
	r.expect("")
	r.g.Sent(r.s.now, r.link, r.tok[r.link])
	delete(r.tok, r.link)
	if n, over := r.written(); n != 3000 || over[0] != l2 {
		t.Errorf("%d bytes were written over %v", n, over)
	}
}

// TestOutstandingWhenReplied: what is outstanding on a link when the client says that the link
// is deleted does not count as delivered any more. It is written again over another link.
func TestOutstandingWhenReplied(t *testing.T) {
	r := manyLinks(t, 2, nil)
	r.send(10)
	r.expect("cdc")
	r.recv(r.g.links.byID(11), wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator})
	r.wait(time.Second)
	r.expect("re:delete-link(1)")
	if r.link.qpOpen || r.c.Positions().Outstanding != 0 {
		t.Errorf("the queue pair is open: %v, %d messages outstanding", r.link.qpOpen, r.c.Positions().Outstanding)
	}
	r.done()
	if n, _ := r.written(); n != 10 {
		t.Errorf("%d bytes were written again", n)
	}
}

// TestDeletionDoesNotWaitForEver: a server sends DELETE LINK when what it has sent over the link
// is completed, and at the latest after half of the time for an answer. The link that carries
// the message is not to blame.
func TestDeletionDoesNotWaitForEver(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
	r.two(nil)
	r.send(10)
	r.expect("cdc")
	r.g.DeleteLink(r.s.now, r.link, wire.DeleteLinkOperator)
	r.wait(999 * time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("delete-link(1)")
	if r.active() != 1 || r.g.llc.ex.step != waitDeleteReply {
		t.Errorf("%d links work, the exchange is at step %d", r.active(), r.g.llc.ex.step)
	}
}

// TestDeletedLinkIsNotTested: no TEST LINK goes over a link that is being deleted.
func TestDeletedLinkIsNotTested(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) {
		c.Timers.TestLink = time.Second
		c.Devices = append(c.Devices, device(smc.Server, 1))
	})
	l2 := r.two(nil)
	r.g.DeleteLink(r.s.now, l2, wire.DeleteLinkOperator)
	r.expect("delete-link(2)")
	r.wait(1500 * time.Millisecond)
	r.expect("test-link")
	if l2.testing || !r.link.testing || !l2.qpOpen {
		t.Errorf("link 1 is tested: %v, link 2: %v", r.link.testing, l2.testing)
	}
}

// TestNewDeviceWithoutLink: a client whose only link is being deleted has no link over which
// it could report a new device.
func TestNewDeviceWithoutLink(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	r.recv(r.link, wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator})
	r.expect("re:delete-link(1)")
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.expect("")
	r.done()
	if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrNoLink) {
		t.Errorf("dead %v", r.dead)
	}
}

// TestGroupType: how redundant a group is, whatever the order of its links (RFC 7609, section
// 2.2.1).
func TestGroupType(t *testing.T) {
	type end struct{ dev, peer int }
	for _, tt := range []struct {
		links []end
		want  smc.GroupType
	}{
		{nil, smc.GroupNone},
		{[]end{{1, 1}}, smc.GroupSingle},
		{[]end{{1, 1}, {2, 2}}, smc.GroupSymmetric},
		{[]end{{1, 1}, {1, 2}}, smc.GroupAsymmetricLocal},
		{[]end{{1, 1}, {2, 1}}, smc.GroupAsymmetricPeer},
		{[]end{{1, 1}, {2, 2}, {2, 3}}, smc.GroupSymmetric},
		{[]end{{2, 2}, {2, 3}, {1, 1}}, smc.GroupSymmetric},
		{[]end{{1, 1}, {2, 2}, {3, 2}}, smc.GroupSymmetric},
		{[]end{{2, 2}, {3, 2}, {1, 1}}, smc.GroupSymmetric},
	} {
		r := newRig(t, smc.Server, noTest)
		for _, e := range tt.links {
			r.g.links.list = append(r.g.links.list, &Link{
				state: smc.LinkActive, dev: Device{ID: e.dev}, peer: Endpoint{GID: smc.GID{15: byte(e.peer)}, MAC: smc.MAC{5: byte(e.peer)}},
			})
		}
		if got := r.g.Type(); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.links, got, tt.want)
		}
		r.g.links.list = append(r.g.links.list, &Link{state: smc.LinkActivating, dev: Device{ID: 9}})
		if got := r.g.Type(); got != tt.want {
			t.Errorf("%v and a link that is being added: %s, want %s", tt.links, got, tt.want)
		}
	}
}
