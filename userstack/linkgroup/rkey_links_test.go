// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// ready returns how many connections may go on since the last look, and the last error.
func (r *rig) ready() (n int, err error) {
	r.take()
	for _, a := range r.acts {
		if a.Kind == ActConnReady {
			n, err = n+1, a.Err
		}
	}
	return n, err
}

// newConn begins a connection.
func (r *rig) newConn() *Conn {
	r.t.Helper()
	c, err := r.g.NewConn(r.s.now, 0, 4096)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// oneRMB gives each connection an RMB of its own.
func oneRMB(c *Config) { c.RMBEsPerRMB = 1 }

// reply is the positive answer to the CONFIRM RKEY of a connection's RMB over l.
func (c *Conn) reply(l *Link) wire.ConfirmRKey {
	return wire.ConfirmRKey{Reply: true, This: c.rmb.at[l.slot].RToken}
}

// TestConfirmRKeyOfLostLink: CONFIRM RKEY names no link that has failed and is not deleted yet,
// and the RMB is not registered for it.
func TestConfirmRKeyOfLostLink(t *testing.T) {
	r := manyLinks(t, 2, oneRMB)
	l2 := r.g.links.byID(11)
	r.g.LinkFailed(r.s.now, l2, errAny)
	r.expect("delete-link(11)")
	n := len(l2.Data.(*qp).mr)
	r.newConn()
	r.expect("confirm-rkey(0)")
	if got := len(l2.Data.(*qp).mr); got != n {
		t.Errorf("%d registrations for the link that has failed, had %d", got, n)
	}
}

// TestNewRMBDuringDeletion: a new RMB is not registered for a link that is being deleted, even
// if its queue pair is still open.
func TestNewRMBDuringDeletion(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); oneRMB(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
	l2 := r.two(nil)
	r.g.DeleteLink(r.s.now, l2, wire.DeleteLinkOperator)
	r.expect("delete-link(2)")
	n := len(l2.Data.(*qp).mr)
	c := r.newConn()
	if got := len(l2.Data.(*qp).mr); got != n || c.rmb.at[l2.slot].ok || !l2.qpOpen {
		t.Errorf("%d registrations for the link that is being deleted, had %d", got, n)
	}
	r.recv(r.link, wire.DeleteLink{Reply: true, Orderly: true, LinkNum: 2})
	r.expect("confirm-rkey(0)")
}

// TestRegistrationFails: if an RMB cannot be registered for a link that was added since, its
// connection learns that, and the exchange for the next RMB begins at once.
func TestRegistrationFails(t *testing.T) {
	r := manyLinks(t, 1, oneRMB)
	c1 := r.newConn()
	c2 := r.newConn()
	r.expect("confirm-rkey(0)")
	no := c1.reply(r.link)
	no.Negative, no.Retry = true, true
	r.recv(r.link, no)
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.done()
	r.acts = nil
	next := r.unconfirmed(r.link, 20)
	r.expect("re:add-link re:add-link-continuation(1)")
	r.g.rmbs.env = &failing{host: r.h, call: "RegisterRMB", once: true}
	r.recv(next, r.confirmLink(false, next))
	if n, err := r.ready(); n != 1 || !errors.Is(err, errAny) || c1.stage != stageReady || c2.stage != stageWaiting {
		t.Errorf("%d connections go on, %v", n, err)
	}
	r.expect("re:confirm-link confirm-rkey(1)")
	r.recv(r.g.rkeys.own.via, c2.reply(r.g.rkeys.own.via))
	if n, err := r.ready(); n != 1 || err != nil || c2.stage != stageReady {
		t.Errorf("%d connections go on, %v", n, err)
	}
}

// TestWaitOfEachRMB: the time in which an exchange must begin counts for each RMB, also if that
// of another one has ended.
func TestWaitOfEachRMB(t *testing.T) {
	r := manyLinks(t, 1, oneRMB)
	c1, c2 := r.newConn(), r.newConn()
	r.expect("confirm-rkey(0)")
	r.recv(r.link, c1.reply(r.link))
	if n, err := r.ready(); n != 1 || err != nil {
		t.Fatalf("%d connections go on, %v", n, err)
	}
	r.expect("confirm-rkey(0)")
	start := r.s.now
	no := c2.reply(r.link)
	no.Negative, no.Retry = true, true
	for r.s.now.Sub(start) < DefaultTimers(smc.Client).LLCStart-100*time.Millisecond {
		r.recv(r.link, no)
		r.done()
		r.wait(50 * time.Millisecond)
	}
	if n, _ := r.ready(); n != 0 {
		t.Errorf("%d connections go on after %v", n, r.s.now.Sub(start))
	}
	r.wait(200 * time.Millisecond)
	if n, err := r.ready(); n != 1 || !errors.Is(err, ErrTimeout) || c2.stage != stageReady {
		t.Errorf("%d connections go on, %v", n, err)
	}
}

// TestCanceledWhileWaiting: no CONFIRM RKEY is sent for a connection that was given up while it
// waited for the end of another exchange.
func TestCanceledWhileWaiting(t *testing.T) {
	r := manyLinks(t, 1, oneRMB)
	c1, c2, c3 := r.newConn(), r.newConn(), r.newConn()
	r.expect("confirm-rkey(0)")
	c2.Cancel(r.s.now)
	r.recv(r.link, c1.reply(r.link))
	r.take()
	m, err := wire.ParseConfirmRKey(r.last)
	if err != nil || m.This != c3.reply(r.link).This {
		t.Errorf("%+v, %v: want the RMB of the third connection", m, err)
	}
	r.expect("confirm-rkey(0)")
	r.recv(r.link, c3.reply(r.link))
	r.expect("")
}

// TestConfirmReplyOfAnotherRMB: an answer to CONFIRM RKEY that names another RMB is none.
func TestConfirmReplyOfAnotherRMB(t *testing.T) {
	r := manyLinks(t, 1, oneRMB)
	c := r.newConn()
	r.expect("confirm-rkey(0)")
	m := c.reply(r.link)
	m.This.RKey++
	r.recv(r.link, m)
	if n, _ := r.ready(); n != 0 || c.rmb.state != rmbNew {
		t.Error("the connection goes on after the answer about another RMB")
	}
	r.recv(r.link, c.reply(r.link))
	if n, err := r.ready(); n != 1 || err != nil {
		t.Errorf("%d connections go on, %v", n, err)
	}
}

// TestContinuationReplyOverLinkOfRequest: the answer to CONFIRM RKEY CONTINUATION comes over
// the link of the request. One over another link is no answer.
func TestContinuationReplyOverLinkOfRequest(t *testing.T) {
	r := manyLinks(t, 5, oneRMB)
	c := r.newConn()
	r.expect("confirm-rkey(4)")
	via := r.g.rkeys.own.via
	other := r.g.links.best(via)
	r.recv(via, c.reply(via))
	r.expect("confirm-rkey-continuation(2)")
	m := wire.ConfirmRKeyCont{Reply: true, Left: 2}
	r.recv(other, m)
	if n, _ := r.ready(); n != 0 {
		t.Error("the connection goes on after an answer over another link")
	}
	r.recv(via, m)
	if n, err := r.ready(); n != 1 || err != nil {
		t.Errorf("%d connections go on, %v", n, err)
	}
}

// TestContinuationReplyDuringDelete: an answer to CONFIRM RKEY CONTINUATION is none to DELETE
// RKEY.
func TestContinuationReplyDuringDelete(t *testing.T) {
	r := manyLinks(t, 1, oneRMB)
	c := r.newConn()
	r.expect("confirm-rkey(0)")
	r.recv(r.link, c.reply(r.link))
	c.Cancel(r.s.now)
	r.wait(time.Minute)
	r.expect("delete-rkey(1)")
	n := len(r.h.rmbs)
	r.recv(r.link, wire.ConfirmRKeyCont{Reply: true})
	r.expect("")
	if len(r.h.rmbs) != n || r.g.rkeys.own.kind != rkDelete {
		t.Errorf("%d RMBs, had %d; exchange %d", len(r.h.rmbs), n, r.g.rkeys.own.kind)
	}
	r.recv(r.link, wire.DeleteRKey{Reply: true, Count: 1})
	if len(r.h.rmbs) != n-1 {
		t.Errorf("%d RMBs, had %d", len(r.h.rmbs), n)
	}
}

// TestContinuationsAfterFailure: the peer's CONFIRM RKEY goes on if a link fails that does not
// carry it. If its carrier fails, the peer begins again, and no link is blamed for the RTokens
// that do not come (RFC 7609, appendix C.7.1).
func TestContinuationsAfterFailure(t *testing.T) {
	for _, tt := range []struct {
		lost uint8
		want string
	}{
		{12, "re:confirm-rkey-continuation(2)"},
		{1, ""},
	} {
		r := manyLinks(t, 5, nil)
		r.recv(r.link, wire.ConfirmRKey{Others: 4, This: tokenOn(1).RToken, Other: [2]wire.LinkRToken{tokenOn(11), tokenOn(12)}})
		r.g.LinkFailed(r.s.now, r.g.links.byID(tt.lost), errAny)
		r.done()
		r.acts = nil
		r.recv(r.link, wire.ConfirmRKeyCont{Left: 2, Other: [3]wire.LinkRToken{tokenOn(13), tokenOn(14)}})
		r.expect(tt.want)
		r.wait(5 * time.Second)
		if r.active() != 4 {
			t.Errorf("link %d failed: %d links work, want 4", tt.lost, r.active())
		}
	}
}

// TestDeleteRKeyZero: an RKey of zero is that of no RMB, also on a link over which an RMB is
// not known yet.
func TestDeleteRKeyZero(t *testing.T) {
	r := manyLinks(t, 5, nil)
	r.recv(r.link, wire.ConfirmRKey{Others: 4, This: tokenOn(1).RToken, Other: [2]wire.LinkRToken{tokenOn(11), tokenOn(12)}})
	r.done()
	r.acts = nil
	r.recv(r.g.links.byID(14), wire.DeleteRKey{Count: 1})
	r.expect("re:delete-rkey(1)-negative80")
	if r.g.peerRMBs.find(r.link, tokenOn(1).RToken.RKey) == nil {
		t.Error("the RMB is not known any more")
	}
}

// TestDeleteRKeyManyV2: nine RMBs go in one DELETE RKEY of version 2, which is then as long as
// other messages.
func TestDeleteRKeyManyV2(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { linux(c); noTest(c); oneRMB(c) })
	r.openV2()
	r.know(10)
	for _, m := range r.g.rmbs.list {
		r.g.rkeys.retire(m)
	}
	for _, want := range []int{9, 1} {
		r.g.Tick(r.s.now)
		r.take()
		m, err := wire.ParseDeleteRKeyV2(r.last)
		if err != nil || len(m.RKeys) != want || len(r.last) != MsgLen {
			t.Fatalf("%d RKeys in %d bytes, %v; want %d RKeys in %d bytes", len(m.RKeys), len(r.last), err, want, MsgLen)
		}
		r.recv(r.link, v2(wire.DeleteRKeyV2{Reply: true, Count: uint8(want)}))
	}
	if len(r.h.rmbs) != 1 {
		t.Errorf("%d RMBs are left, want that of the connection", len(r.h.rmbs))
	}
}
