// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// qpLog notes what becomes of queue pairs, and may fail to make one ready.
type qpLog struct {
	*host
	calls []string
	fail  int // number of a link that does not get ready
}

func (e *qpLog) note(format string, args ...any) {
	// A message that is queued goes out before what is called after it.
	for _, a := range e.g.actions.list {
		if a.Kind == ActSend {
			e.calls = append(e.calls, describe(a.Message()))
		}
	}
	e.host.acts = e.g.TakeActions(e.host.acts)
	e.calls = append(e.calls, fmt.Sprintf(format, args...))
}

func (e *qpLog) NewQP(l *Link, d Device) (Endpoint, error) {
	e.note("INIT")
	return e.host.NewQP(l, d)
}

func (e *qpLog) ConnectQP(l *Link, peer Endpoint, mtu smc.MTU) error {
	e.note("RTR to %#x, MTU %d", uint32(peer.QPN), mtu)
	return e.host.ConnectQP(l, peer, mtu)
}

func (e *qpLog) ReadyQP(l *Link) error {
	if e.fail != 0 && e.fail == int(l.id) {
		return errAny
	}
	e.note("RTS")
	return e.host.ReadyQP(l)
}

// TestQueuePairStates: the server's queue pair is in INIT until CONFIRM is there
// and in RTS before CONFIRM LINK goes over it; the client's is in RTR when CONFIRM
// goes out and in RTS before the reply (RFC 7609, sections 3.5.1.2 to 3.5.1.5).
// The path MTU is the smaller of both (appendix A.2.3).
func TestQueuePairStates(t *testing.T) {
	for _, tt := range []struct {
		role     smc.Role
		own, mtu smc.MTU
		want     string
	}{
		{smc.Server, 5, 3, "INIT, ACCEPT, RTR to 0x900, MTU 3, RTS, confirm-link, then"},
		{smc.Server, 2, 3, "INIT, ACCEPT, RTR to 0x900, MTU 2, RTS, confirm-link, then"},
		{smc.Client, 3, 4, "INIT, RTR to 0x900, MTU 3, CONFIRM, RTS, re:confirm-link, then"},
		{smc.Client, 4, 1, "INIT, RTR to 0x900, MTU 1, CONFIRM, RTS, re:confirm-link, then"},
	} {
		r := newRig(t, tt.role, func(c *Config) { noTest(c); c.Devices[0].MTU = tt.own })
		e := &qpLog{host: r.h}
		r.g.env = e
		if _, err := r.g.FirstLink(r.s.now); err != nil {
			t.Fatal(err)
		}
		if _, err := r.g.NewConn(r.s.now, 0, 4096); err != nil {
			t.Fatal(err)
		}
		if tt.role == smc.Server {
			e.note("ACCEPT") // the driver sends it now
		}
		peer := peerEnd
		peer.MTU = tt.mtu
		if err := r.g.ConnectFirst(r.s.now, ConnParams{Link: peer}); err != nil {
			t.Fatal(err)
		}
		if tt.role == smc.Client {
			e.note("CONFIRM")
			r.recv(r.g.links.list[0], r.confirmLink(false, r.g.links.list[0]))
			for _, a := range r.acts {
				if a.Kind == ActSend {
					e.calls = append(e.calls, describe(a.Message()))
				}
			}
		}
		e.note("then")
		if got := strings.Join(e.calls, ", "); got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.role, got, tt.want)
		}
	}
}

// TestNoDataBeforeSecondLink: no data flows until the second link was set up or
// tried (RFC 7609, section 3.5.1.6).
func TestNoDataBeforeSecondLink(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, noTest)
		r.begin()
		srv := role == smc.Server
		r.recv(r.link, r.confirmLink(srv, r.link))
		if err := r.c.Attach(r.s.now, peerRMB); err != nil {
			t.Fatal(err)
		}
		r.send(100)
		r.done()
		if got := r.sent(); strings.Contains(got, "cdc") || len(r.first) != 0 {
			t.Errorf("%s: sent %s before a second link was tried, outcome %v", role, got, r.first)
		}
		r.recv(r.link, wire.AddLink{Reply: srv, Rejected: srv, Reason: wire.AddLinkNoAlternatePath, LinkNum: 2, MAC: peerEnd.MAC, GID: peerEnd.GID, QPN: 0x901, MTU: 3})
		if got := r.sent(); !strings.HasSuffix(got, "cdc") || len(r.first) != 1 {
			t.Errorf("%s: sent %s after it was, outcome %v", role, got, r.first)
		}
	}
}

// TestRefusedLinkIsFreed: the server frees everything of a link that the client
// refuses or does not answer for (RFC 7609, section 3.5.1.6.2).
func TestRefusedLinkIsFreed(t *testing.T) {
	for _, unanswered := range []bool{false, true} {
		r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
		l2 := r.two(nil)
		if unanswered {
			// A third link, later, and no answer to it.
			r.g.links.devices = append(r.g.links.devices, device(smc.Server, 2))
			r.g.links.max, r.g.adding.wanted = 3, true
			r.g.Tick(r.s.now)
		} else {
			r = newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
			r.begin()
			r.recv(r.link, r.confirmLink(true, r.link))
			l2 = nil
		}
		r.take()
		added := r.g.links.list[len(r.g.links.list)-1]
		if added == r.link || added == l2 || added.state != smc.LinkActivating {
			t.Fatal("no link is being added")
		}
		q := added.Data.(*qp)
		if unanswered {
			r.wait(30 * time.Second)
		} else {
			r.recv(r.link, wire.AddLink{Reply: true, Rejected: true, Reason: wire.AddLinkNoAlternatePath, LinkNum: added.id})
		}
		r.done()
		if added.State() != smc.LinkInactive {
			t.Errorf("unanswered %v: the link is %s", unanswered, added.State())
		}
		if q.state != 3 || !unanswered && (len(q.mr) != 0 || slices.Contains(r.g.links.list, added)) {
			t.Errorf("unanswered %v: queue pair in state %d, %d registrations", unanswered, q.state, len(q.mr))
		}
	}
}

// TestPointOfNoReturnSecondLink: when CONFIRM LINK of the second link is there the
// client cannot fall back any more, whatever it knows about its ADD LINK reply
// (RFC 7609, appendix C.3).
func TestPointOfNoReturnSecondLink(t *testing.T) {
	for name, edit := range map[string]func(e *qpLog, m *wire.ConfirmLink){
		"queue pair does not get ready": func(e *qpLog, _ *wire.ConfirmLink) { e.fail = 2 },
		"wrong values":                  func(_ *qpLog, m *wire.ConfirmLink) { m.QPN++ },
	} {
		r := newRig(t, smc.Client, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Client, 1)) })
		e := &qpLog{host: r.h}
		r.g.env = e
		r.begin()
		r.recv(r.link, r.confirmLink(false, r.link))
		r.recv(r.link, wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
		r.recv(r.link, wire.AddLinkCont{LinkNum: 2, Left: 1, Pairs: [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 5}}}})
		l2 := r.g.links.byID(2)
		m := r.confirmLink(false, l2)
		edit(e, &m)
		r.recv(l2, m)
		r.g.LinkFailed(r.s.now, r.link, errAny)
		r.take()
		if len(r.first) != 1 || !errors.Is(r.first[0], ErrNoFallback) {
			t.Errorf("%s: outcome %v", name, r.first)
		}
	}
}

// TestClientWaitsForDeleteLink: a client that misses CONFIRM LINK of the second
// link asks for its deletion, and data waits until the server has deleted it and
// the reply is on its way (RFC 7609, appendix C.7.1).
func TestClientWaitsForDeleteLink(t *testing.T) {
	r := newRig(t, smc.Client, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Client, 1)) })
	r.two(func(*Link) {
		r.wait(DefaultTimers(smc.Client).ConfirmLink + time.Second)
		r.expect("delete-link(2)")
	})
	if len(r.first) != 0 {
		t.Fatalf("open before the server has deleted the link: %v", r.first)
	}
	r.recv(r.link, wire.DeleteLink{LinkNum: 2, Reason: wire.DeleteLinkLostPath})
	r.expect("re:delete-link(2)")
	if len(r.first) != 1 || r.first[0] != nil {
		t.Errorf("outcome %v", r.first)
	}
}

// TestLinkKeptUntilReply: neither side gives up its resources of a link that is
// deleted in order before the other knows: the server when it has the reply, the
// client when its reply is delivered (RFC 7609, section 3.5.5.1.3).
func TestLinkKeptUntilReply(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(role, 1)) })
		l2 := r.two(nil)
		q := l2.Data.(*qp)
		want := func(what string, kept bool) {
			t.Helper()
			if got := q.state == 2 && len(q.mr) == 1 && slices.Contains(r.g.links.list, l2); got != kept {
				t.Errorf("%s, %s: kept %v (queue pair in state %d, %d RMBs)", role, what, got, q.state, len(q.mr))
			}
		}
		if role == smc.Server {
			r.g.DeleteLink(r.s.now, l2, wire.DeleteLinkOperator)
			r.done()
			r.expect("delete-link(2)")
			want("DELETE LINK is delivered", true)
			r.recv(r.link, wire.DeleteLink{Reply: true, Orderly: true, LinkNum: 2, Reason: wire.DeleteLinkOperator})
		} else {
			r.recv(r.link, wire.DeleteLink{Orderly: true, LinkNum: 2, Reason: wire.DeleteLinkOperator})
			r.expect("re:delete-link(2)")
			want("the reply is sent", true)
			r.done()
		}
		want("in the end", false)
		if len(q.mr) != 0 || q.state != 3 {
			t.Errorf("%s: queue pair in state %d, %d RMBs in the end", role, q.state, len(q.mr))
		}
	}
}

// TestDeletedLinkAgain: the client's DELETE LINK for a link that has just gone is
// passed over, for one that never was answered (RFC 7609, appendix C.7.1).
func TestDeletedLinkAgain(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
	l2 := r.two(nil)
	r.g.DeleteLink(r.s.now, l2, wire.DeleteLinkOperator)
	r.done()
	r.recv(r.link, wire.DeleteLink{LinkNum: 2, Reason: wire.DeleteLinkLostPath}) // while it goes
	r.recv(r.link, wire.DeleteLink{Reply: true, Orderly: true, LinkNum: 2})
	r.recv(r.link, wire.DeleteLink{LinkNum: 2, Reason: wire.DeleteLinkLostPath}) // when it has gone
	r.expect("delete-link(2)")
	r.recv(r.link, wire.DeleteLink{LinkNum: 3, Reason: wire.DeleteLinkLostPath})
	r.expect("re:delete-link(3)-unknown")
	if len(r.dead) != 0 {
		t.Errorf("dead: %v", r.dead)
	}
}

// TestDeleteLinkForAllDelivered: the server cleans up when DELETE LINK for all links is
// delivered, not before; the message names no link (RFC 7609, section 3.5.4 and
// appendix A.3.4). The client cleans up at once.
func TestDeleteLinkForAllDelivered(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.g.Terminate(r.s.now, wire.DeleteLinkProgram)
	r.expect("delete-link-all")
	if m, err := wire.ParseDeleteLink(r.last); err != nil || m.LinkNum != 0 || !m.Orderly || m.Reply {
		t.Errorf("%+v, %v", m, err)
	}
	if len(r.dead) != 0 || len(r.s.qps) != 1 || len(r.close) != 1 {
		t.Errorf("before delivery: dead %v, %d queue pairs, connection closed %v", r.dead, len(r.s.qps), r.close)
	}
	r.done()
	if len(r.dead) != 1 || len(r.s.qps) != 0 {
		t.Errorf("after delivery: dead %v, %d queue pairs", r.dead, len(r.s.qps))
	}

	r = newRig(t, smc.Client, noTest)
	r.open()
	r.recv(r.link, wire.DeleteLink{All: true, Reason: wire.DeleteLinkProgram})
	if len(r.dead) != 1 || len(r.s.qps) != 0 || len(r.close) != 1 || !errors.Is(r.close[0], conn.ErrReset) {
		t.Errorf("client: dead %v, %d queue pairs, connection closed %v", r.dead, len(r.s.qps), r.close)
	}
}

// TestRKeyEcho: the replies to CONFIRM RKEY and DELETE RKEY echo what they answer
// (RFC 7609, appendices A.3.5 to A.3.7).
func TestRKeyEcho(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	for _, m := range []wire.LLC{
		wire.ConfirmRKey{Others: 1, This: smc.RToken{RKey: 7, Addr: 1 << 40}, Other: [2]wire.LinkRToken{{LinkNum: 9, RToken: smc.RToken{RKey: 8, Addr: 3}}}},
		wire.ConfirmRKey{Others: 3, This: smc.RToken{RKey: 70, Addr: 5}, Other: [2]wire.LinkRToken{{LinkNum: 9}, {LinkNum: 10}}},
		wire.ConfirmRKeyCont{Left: 1, Other: [3]wire.LinkRToken{{LinkNum: 11, RToken: smc.RToken{RKey: 71, Addr: 6}}}},
		wire.DeleteRKey{Count: 2, RKeys: [8]smc.RKey{7, 70}},
	} {
		want := mustLLC(t, m)
		r.recv(r.link, m)
		r.take()
		want[3] |= 0x80 // the reply flag
		if !bytes.Equal(r.last, want) {
			t.Errorf("%s: answered\n% x, want\n% x", m.LLCType(), r.last, want)
		}
	}
}

// TestConfirmRKeyLink: CONFIRM RKEY goes over the link that the first connection
// of the new RMB uses (RFC 7609, appendix A.3.5).
func TestConfirmRKeyLink(t *testing.T) {
	for first := range 2 {
		r := newRig(t, smc.Client, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1; c.Devices = append(c.Devices, device(smc.Client, 1)) })
		l2 := r.two(nil)
		links := []*Link{r.link, l2}
		r.c.setLink(links[1-first]) // so that the other one has less to do
		c, err := r.g.NewConn(r.s.now, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		r.take()
		a := r.acts[len(r.acts)-1]
		m, err := wire.ParseConfirmRKey(a.Message())
		if err != nil || a.Link != links[first] || c.link != a.Link {
			t.Fatalf("sent %+v over link %d, the connection is on link %d; %v", m, a.Link.id, c.link.id, err)
		}
		if m.This != c.rmb.at[a.Link.slot].RToken || m.Others != 1 || int(m.Other[0].LinkNum) != 2-first {
			t.Errorf("%+v", m)
		}
	}
}
