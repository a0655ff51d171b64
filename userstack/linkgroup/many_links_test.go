// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// newKey is the RKey of the peer's new RMB in these tests.
const newKey = 0xCCCC

// manyLinks returns a client with n links, of numbers 1 and 11 and more. Each ends at ports
// of its own.
func manyLinks(t *testing.T, n int, edit func(*Config)) *rig {
	t.Helper()
	r := newRig(t, smc.Client, func(c *Config) {
		noTest(c)
		c.MaxLinks = MaxLinks
		if edit != nil {
			edit(c)
		}
	})
	r.most = MaxLinks
	r.open()
	for i := 1; i < n; i++ {
		r.addLink(i)
	}
	r.acts = nil
	return r
}

// addLink has the server add a link to the client's device i.
func (r *rig) addLink(i int) {
	r.t.Helper()
	id := uint8(10 + i)
	r.g.DeviceUp(r.s.now, device(smc.Client, i))
	r.done()
	r.recv(r.link, wire.AddLink{LinkNum: id, MAC: smc.MAC{5: id}, GID: smc.GID{15: id}, QPN: smc.QPN(id), MTU: 3})
	r.recv(r.link, wire.AddLinkCont{LinkNum: id, Left: 1, Pairs: [2]wire.RKeyPair{{
		RefRKey: peerRMB.RKey, New: smc.RToken{RKey: smc.RKey(0xB000 + int(id)), Addr: 9},
	}}})
	l := r.g.links.byID(id)
	if l == nil {
		r.t.Fatalf("no link %d", id)
	}
	r.recv(l, r.confirmLink(false, l))
	r.done()
	if l.state != smc.LinkActive {
		r.t.Fatalf("link %d is %s", id, l.state)
	}
}

// tokenOn is the peer's new RMB on a link.
func tokenOn(id uint8) wire.LinkRToken {
	return wire.LinkRToken{LinkNum: id, RToken: smc.RToken{RKey: newKey + smc.RKey(id), Addr: 0x7000}}
}

// active returns how many links are active.
func (r *rig) active() int {
	n := 0
	for _, l := range r.g.links.list {
		if l.state == smc.LinkActive {
			n++
		}
	}
	return n
}

// TestPeerContinuations: a CONFIRM RKEY for more than three links goes on with
// continuations, each of which says how many links are left (RFC 7609, appendices A.3.5 and
// A.3.6). One that does not continue what came before is refused, and teaches nothing. A
// link for which no RToken comes fails, because no connection could move to it (appendix
// C.7.1).
func TestPeerContinuations(t *testing.T) {
	type step struct {
		cont wire.ConfirmRKeyCont
		via  uint8 // link; 0: the one of CONFIRM RKEY
		want string
	}
	cont := func(left int, ids ...uint8) wire.ConfirmRKeyCont {
		m := wire.ConfirmRKeyCont{Left: uint8(left)}
		for i, id := range ids {
			m.Other[i] = tokenOn(id)
		}
		return m
	}
	for _, tt := range []struct {
		name   string
		others int
		steps  []step
		wait   time.Duration
		known  []uint8 // links on which the RMB is known
		active int     // links that work
	}{
		{name: "all", others: 4, steps: []step{{cont: cont(2, 13, 14), want: "re:confirm-rkey-continuation(2)"}},
			wait: time.Minute, known: []uint8{1, 11, 12, 13, 14}, active: 5},
		{name: "one is left out", others: 3, steps: []step{{cont: cont(1, 13), want: "re:confirm-rkey-continuation(1) delete-link(14)"}},
			known: []uint8{1, 11, 12, 13}, active: 4},
		{name: "left counts wrong", others: 4, steps: []step{
			{cont: cont(1, 13), want: "re:confirm-rkey-continuation(1)-negative"},
			{cont: cont(3, 13, 14), want: "re:confirm-rkey-continuation(3)-negative"},
			{cont: cont(2, 13, 14), want: "re:confirm-rkey-continuation(2)"},
		}, known: []uint8{1, 11, 12, 13, 14}, active: 5},
		{name: "over another link", others: 4, steps: []step{{cont: cont(2, 13, 14), via: 11, want: "re:confirm-rkey-continuation(2)-negative"}},
			known: []uint8{1, 11, 12}, active: 5},
		{name: "after the last", others: 4, steps: []step{
			{cont: cont(2, 13, 14), want: "re:confirm-rkey-continuation(2)"},
			{cont: cont(2, 13, 14), want: "re:confirm-rkey-continuation(2)-negative"},
		}, known: []uint8{1, 11, 12, 13, 14}, active: 5},
		{name: "link without number, and one that is gone", others: 7, steps: []step{
			{cont: cont(5, 0, 99, 98), want: "re:confirm-rkey-continuation(5)"},
			{cont: cont(2, 13, 14), want: "re:confirm-rkey-continuation(2)"},
		}, known: []uint8{1, 11, 12, 13, 14}, active: 5},
		{name: "not yet too late", others: 4, wait: 1999 * time.Millisecond, known: []uint8{1, 11, 12}, active: 5},
		{name: "none comes", others: 4, wait: 2 * time.Second, known: []uint8{1, 11, 12}, active: 3},
		{name: "the second is late", others: 6, steps: []step{{cont: cont(4, 13, 99, 98), want: "re:confirm-rkey-continuation(4)"}},
			wait: 2 * time.Second, known: []uint8{1, 11, 12, 13}, active: 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := manyLinks(t, 5, nil)
			r.recv(r.link, wire.ConfirmRKey{
				Others: uint8(tt.others), This: tokenOn(1).RToken, Other: [2]wire.LinkRToken{tokenOn(11), tokenOn(12)},
			})
			if got := describe(r.last); got[:len("re:confirm-rkey")] != "re:confirm-rkey" {
				t.Fatalf("answer %s", got)
			}
			r.acts = nil
			for _, s := range tt.steps {
				via := r.link
				if s.via != 0 {
					via = r.g.links.byID(s.via)
				}
				r.recv(via, s.cont)
				r.expect(s.want)
			}
			r.wait(tt.wait)
			if got := r.active(); got != tt.active {
				t.Errorf("%d links work, want %d", got, tt.active)
			}
			rmb := r.g.peerRMBs.find(r.link, newKey+1)
			if rmb == nil {
				t.Fatal("the RMB is not known")
			}
			known := map[uint8]bool{}
			for _, id := range tt.known {
				known[id] = true
			}
			for _, l := range r.g.links.list {
				if l.state != smc.LinkActive {
					continue
				}
				if at := rmb.at[l.slot]; at.ok != known[l.id] || at.ok && (at.noAddr || at.RToken != tokenOn(l.id).RToken) {
					t.Errorf("on link %d: %+v, want known: %v", l.id, at, known[l.id])
				}
			}
		})
	}
}

// TestContinuationDuringLinkExchange: while links change, CONFIRM RKEY is refused so that the
// peer begins again (RFC 7609, section 3.5.5.3.1), and so is a continuation.
func TestContinuationDuringLinkExchange(t *testing.T) {
	r := manyLinks(t, 5, nil)
	r.recv(r.link, wire.ConfirmRKey{Others: 4, This: tokenOn(1).RToken, Other: [2]wire.LinkRToken{tokenOn(11), tokenOn(12)}})
	r.g.DeviceUp(r.s.now, device(smc.Client, 6))
	r.done()
	r.acts = nil
	r.recv(r.link, wire.AddLink{LinkNum: 20, MAC: smc.MAC{5: 20}, GID: smc.GID{15: 20}, QPN: 20, MTU: 3})
	r.expect("re:add-link")
	r.recv(r.link, wire.ConfirmRKeyCont{Left: 2, Other: [3]wire.LinkRToken{tokenOn(13), tokenOn(14)}})
	r.expect("re:confirm-rkey-continuation(2)-negative")
	r.recv(r.link, wire.ConfirmRKey{This: smc.RToken{RKey: 0xDDDD, Addr: 1}})
	r.expect("re:confirm-rkey(0)-negative-retry")
	if r.g.peerRMBs.find(r.link, 0xDDDD) != nil {
		t.Error("an RMB is known that was refused")
	}
}

// TestClientDeletionWaits: what a client does when the server does not delete a link that has
// failed (RFC 7609, section 3.5.5.1.4 and appendix C.7.1). The link over which it asked
// counts as failed too, and it asks over another one. But Linux may take minutes: so a server
// that may be Linux is asked again, and TEST LINK shows whether the link works.
func TestClientDeletionWaits(t *testing.T) {
	fail := func(r *rig, id uint8) {
		r.g.LinkFailed(r.s.now, r.g.links.byID(id), errAny)
		r.done()
	}
	t.Run("other links", func(t *testing.T) {
		r := manyLinks(t, 3, nil)
		fail(r, 12)
		r.expect("delete-link(12)")
		r.wait(11999 * time.Millisecond)
		r.expect("")
		r.wait(time.Millisecond)
		if r.active() != 1 {
			t.Errorf("%d links work, want 1: the server did not answer over the other one", r.active())
		}
		r.expect("delete-link(12) delete-link(11)") // all over the last one, or those that did not get it
	})
	t.Run("last link", func(t *testing.T) {
		r := manyLinks(t, 2, nil)
		fail(r, 11)
		r.expect("delete-link(11)")
		r.wait(12 * time.Second)
		r.expect("test-link delete-link(11)")
		if r.active() != 1 || len(r.dead) != 0 {
			t.Errorf("%d links work, dead %v: the server may be a slow Linux", r.active(), r.dead)
		}
		r.wait(2 * time.Second)
		if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrTimeout) {
			t.Errorf("dead %v: TEST LINK was not answered", r.dead)
		}
	})
}

// TestClientReplies: a client that is told to delete a link in order answers when all it has
// sent over the link is completed, and at the latest after half of the time that the server
// waits (RFC 7609, section 3.5.5.1.3). The link is gone when the answer has been delivered,
// and at the latest when the server does not wait any more.
func TestClientReplies(t *testing.T) {
	setup := func(t *testing.T) (*rig, *Link) {
		r := manyLinks(t, 2, nil)
		r.send(10) // over link 1, not completed
		r.expect("cdc")
		other := r.g.links.byID(11)
		r.recv(other, wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator})
		r.expect("")
		return r, other
	}
	t.Run("completed", func(t *testing.T) {
		r, _ := setup(t)
		r.g.Sent(r.s.now, r.link, r.tok[r.link])
		delete(r.tok, r.link)
		r.take()
		reply, err := wire.ParseDeleteLink(r.last)
		r.expect("cdc+F re:delete-link(1)")
		if err != nil || !reply.Orderly || reply.Reason != wire.DeleteLinkOperator {
			t.Errorf("%+v, %v: want what the request says", reply, err)
		}
		if r.g.links.byID(1) == nil {
			t.Error("link 1 is gone before the answer has been delivered")
		}
		r.done()
		if r.g.links.byID(1) != nil || r.c.Link() != r.g.links.byID(11) {
			t.Errorf("link 1 is there, or the connection is on link %d", r.c.Link().ID())
		}
	})
	t.Run("not completed", func(t *testing.T) {
		r, other := setup(t)
		r.wait(999 * time.Millisecond)
		r.expect("")
		r.wait(time.Millisecond)
		r.expect("re:delete-link(1)")
		r.wait(1999 * time.Millisecond)
		if r.g.links.byID(1) == nil {
			t.Error("link 1 is gone before the time is over")
		}
		r.wait(time.Millisecond)
		if r.g.links.byID(1) != nil {
			t.Error("the answer has not been delivered in time, and link 1 is still there")
		}
		r.expect("cdc+F cdc+R") // what was sent over link 1 once more, and where is the peer?
		if r.active() != 1 || len(r.dead) != 0 || r.c.Link() != other {
			t.Errorf("%d links work, dead %v, the connection is on link %d", r.active(), r.dead, r.c.Link().ID())
		}
	})
}

// TestDevices: what DeviceUp and DeviceDown say of devices.
func TestDevices(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	d := device(smc.Client, 0)
	d.MTU = 5
	d.Up = false // the event says that it is up
	r.g.DeviceUp(r.s.now, d)
	d.Up = true
	if got := r.g.Devices(); len(got) != 1 || got[0] != d {
		t.Errorf("devices %+v after an update, want %+v", got, d)
	}
	r.expect("") // it is not new
	d1 := device(smc.Client, 1)
	d1.Up = false
	r.g.DeviceUp(r.s.now, d1)
	r.expect("add-link") // the client reports it
	r.g.DeviceDown(r.s.now, 1)
	d1.MAC = smc.MAC{5: 77}
	r.g.DeviceUp(r.s.now, d1)
	d1.Up = true
	if got := r.g.Devices(); len(got) != 2 || got[1] != d1 {
		t.Errorf("devices %+v after the second came again, want %+v", got, d1)
	}
	m, err := wire.ParseAddLink(r.last)
	if err != nil {
		t.Fatal(err)
	}
	r.take()
	if m, err = wire.ParseAddLink(r.last); err != nil || m.MAC != d1.MAC || m.GID != d1.GID || m.QPN != 0 {
		t.Errorf("the client reports %+v, %v, want %+v", m, err, d1)
	}
}

// TestDeviceUpEarly: a device that comes up in the first contact is not reported: the server
// adds a second link by itself (RFC 7609, section 3.5.1.6), for which it can be used.
func TestDeviceUpEarly(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.begin()
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.recv(r.link, r.confirmLink(false, r.link))
	r.expect("re:confirm-link")
	r.recv(r.link, wire.AddLink{LinkNum: 2, MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, MTU: 3})
	r.expect("re:add-link")
	r.recv(r.link, wire.AddLinkCont{LinkNum: 2})
	l := r.g.links.byID(2)
	r.recv(l, r.confirmLink(false, l))
	r.done()
	r.expect("re:add-link-continuation(1) re:confirm-link")
	if l.Dev().ID != 1 || len(r.first) != 1 || r.first[0] != nil {
		t.Errorf("the link is on device %d, first contact %v", l.Dev().ID, r.first)
	}
}

// TestDeviceAfterEnd: devices of a group that has ended do nothing.
func TestDeviceAfterEnd(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.g.LinkFailed(r.s.now, r.link, errAny)
	if r.take(); len(r.dead) != 1 || !errors.Is(r.dead[0], conn.ErrReset) {
		t.Fatalf("dead %v", r.dead)
	}
	r.acts = nil
	r.g.DeviceUp(r.s.now, device(smc.Server, 1))
	r.g.DeviceDown(r.s.now, 0)
	if got := r.g.Devices(); len(got) != 1 || !got[0].Up {
		t.Errorf("devices %+v", got)
	}
	if acts := r.take(); len(acts) != 0 {
		t.Errorf("actions %v", r.kinds())
	}
}

// TestBadAddLink: a client rejects a link that cannot be: without a number or a queue pair,
// with the number of another link, or with an MTU that is not defined (RFC 7609, appendices
// A.3.2 and C.7.1). No queue pair is left of it.
func TestBadAddLink(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*wire.AddLink)
		want string
	}{
		"no number":      {func(m *wire.AddLink) { m.LinkNum = 0 }, "re:add-link-rejected1"},
		"number in use":  {func(m *wire.AddLink) { m.LinkNum = 11 }, "re:add-link-rejected1"},
		"no queue pair":  {func(m *wire.AddLink) { m.QPN = 0 }, "re:add-link-rejected1"},
		"reserved MTU":   {func(m *wire.AddLink) { m.MTU = 6 }, "re:add-link-rejected2"},
		"port of link 1": {func(m *wire.AddLink) { m.GID, m.MAC = peerEnd.GID, peerEnd.MAC }, "re:add-link-rejected1"},
		"good":           {func(*wire.AddLink) {}, "re:add-link"},
	} {
		r := manyLinks(t, 2, nil)
		r.g.DeviceUp(r.s.now, device(smc.Client, 2))
		r.done()
		r.acts = nil
		m := wire.AddLink{LinkNum: 20, MAC: smc.MAC{5: 20}, GID: smc.GID{15: 20}, QPN: 20, MTU: 3}
		tt.edit(&m)
		r.recv(r.link, m)
		if got := r.sent(); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if n := len(r.g.links.list); (n == 3) != (name == "good") {
			t.Errorf("%s: %d links", name, n)
		}
	}
}
