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

// TestConfirmRKey: a new RMB is told for all links, before the connection
// may go on (RFC 7609, section 3.5.5.2.1), and deleted when it is not used.
func TestConfirmRKey(t *testing.T) {
	s := started(t, 2, 2, func(c *Config) { noTest(c); c.RMBEsPerRMB = 2 })
	s.trace = nil
	var apps []*app
	for range 2 {
		s.connect(0, 100, func(a, b *app) {
			a.manual, b.manual = true, true
			apps = append(apps, a, b)
		})
	}
	s.runUntilIdle()
	// The first RMB has room for one more, the third connection needs
	// another.
	s.flow("s1:confirm-rkey(1) c1:re:confirm-rkey(1) c1:confirm-rkey(1) s1:re:confirm-rkey(1)")
	for _, h := range s.hosts {
		for _, rt := range h.g.peerRMBs.list {
			for _, l := range h.g.Links() {
				if at := rt.at[l.slot]; !at.ok || at.noAddr {
					t.Errorf("%s: RToken is missing on link %d", h.role, l.id)
				}
			}
		}
	}
	// The connections send nothing and end.
	for _, p := range apps {
		p.manual = false
		p.wake()
	}
	s.run(time.Second, func() bool { return s.group(smc.Server).Conns() == 1 && s.group(smc.Client).Conns() == 1 })
	s.trace = nil
	s.pass(61 * time.Second)
	if got := strings.Join(s.trace, " "); strings.Count(got, ":delete-rkey(1)") != 4 || strings.Count(got, "re:delete-rkey(1)") != 2 {
		t.Errorf("flow %s", got)
	}
	for _, h := range s.hosts {
		if len(h.rmbs) != 1 || len(h.g.peerRMBs.list) != 1 {
			t.Errorf("%s: %d RMBs, knows %d", h.role, len(h.rmbs), len(h.g.peerRMBs.list))
		}
	}
	s.finish()
}

// TestConfirmRKeyMany: with more than three links there are continuations.
func TestConfirmRKeyMany(t *testing.T) {
	s := started(t, 6, 6, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1; c.MaxLinks = 6 })
	s.runUntilIdle()
	if n := len(s.group(smc.Server).Links()); n != 6 {
		t.Fatalf("%d links", n)
	}
	s.trace = nil
	s.connect(0, 100, nil)
	s.runUntilIdle()
	var via byte
	if len(s.trace) > 0 {
		via = s.trace[0][1]
	}
	want := "sX:confirm-rkey(5) cX:re:confirm-rkey(5) sX:confirm-rkey-continuation(3) cX:re:confirm-rkey-continuation(3)"
	got := strings.Join(s.trace[:min(4, len(s.trace))], " ")
	if got != strings.ReplaceAll(want, "X", string(via)) {
		t.Errorf("flow %s", got)
	}
	for _, rt := range s.group(smc.Client).peerRMBs.list {
		for _, l := range s.group(smc.Client).Links() {
			if !rt.at[l.slot].ok {
				t.Errorf("RToken is missing on link %d", l.id)
			}
		}
	}
	s.finish()
}

// TestContinuationRefused: after a negative reply to a CONFIRM RKEY CONTINUATION the whole
// exchange begins again (RFC 7609, appendices A.3.5 and A.3.6).
func TestContinuationRefused(t *testing.T) {
	s := started(t, 6, 6, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1; c.MaxLinks = 6 })
	s.runUntilIdle()
	server, refused := s.hosts[smc.Server], false
	s.block = func(from *host, l *Link, msg []byte) bool {
		if refused || from == server || describe(msg) != "re:confirm-rkey-continuation(3)" {
			return false
		}
		refused = true
		m, err := wire.ParseConfirmRKeyCont(msg)
		if err != nil {
			t.Fatal(err)
		}
		m.Negative = true
		b, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		server.g.Received(s.now, server.g.links.byID(l.id), b)
		server.drain()
		return true
	}
	s.trace = nil
	s.connect(0, 100, nil)
	s.pass(time.Minute)
	n := 0
	for _, w := range s.trace {
		if w[0] == 's' && w[2:] == ":confirm-rkey(5)" {
			n++
		}
	}
	if !refused || n != 2 {
		t.Errorf("refused: %v, announced %d times, flow %s", refused, n, strings.Join(s.trace, " "))
	}
	s.finish()
}

// TestConfirmRKeyAnswers: the replies to our request.
func TestConfirmRKeyAnswers(t *testing.T) {
	setup := func() (*rig, *Conn, wire.ConfirmRKey) {
		r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
		r.open()
		c, err := r.g.NewConn(r.s.now, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		r.expect("confirm-rkey(0)")
		return r, c, wire.ConfirmRKey{Reply: true, This: c.rmb.at[0].RToken}
	}
	ready := func(r *rig) (n int, err error) {
		r.take()
		for _, a := range r.acts {
			if a.Kind == ActConnReady {
				n, err = n+1, a.Err
			}
		}
		return n, err
	}

	r, _, m := setup()
	r.recv(r.link, m)
	if n, err := ready(r); n != 1 || err != nil {
		t.Errorf("positive: %d, %v", n, err)
	}

	r, _, m = setup()
	m.Negative = true
	r.recv(r.link, m)
	if n, err := ready(r); n != 1 || !errors.Is(err, ErrRejected) {
		t.Errorf("negative: %d, %v", n, err)
	}

	r, _, m = setup()
	m.Negative, m.Retry = true, true
	r.recv(r.link, m)
	if n, _ := ready(r); n != 0 {
		t.Error("negative with retry: not waiting")
	}
	r.wait(time.Second)
	r.expect("confirm-rkey(0)")
	m.Negative, m.Retry = false, false
	r.recv(r.link, m)
	if n, err := ready(r); n != 1 || err != nil {
		t.Errorf("second try: %d, %v", n, err)
	}

	// For ever refused.
	r, _, m = setup()
	m.Negative, m.Retry = true, true
	for range 600 {
		r.recv(r.link, m)
		r.wait(51 * time.Millisecond)
		r.done()
	}
	if n, err := ready(r); n != 1 || !errors.Is(err, ErrTimeout) {
		t.Errorf("for ever refused: %d, %v", n, err)
	}

	// A late answer: Linux may wait 10 s for room in its send queue.
	r, _, m = setup()
	r.wait(10 * time.Second)
	if n, err := ready(r); n != 0 || len(r.dead) != 0 {
		t.Errorf("a late answer, before it: %d, %v, dead %v", n, err, r.dead)
	}
	r.recv(r.link, m)
	if n, err := ready(r); n != 1 || err != nil || len(r.dead) != 0 {
		t.Errorf("a late answer: %d, %v, dead %v", n, err, r.dead)
	}

	// No answer: the link is lost, and with it the group.
	r, _, _ = setup()
	r.wait(13 * time.Second)
	if n, err := ready(r); n != 1 || err == nil || len(r.dead) != 1 || !errors.Is(r.dead[0], ErrTimeout) {
		t.Errorf("no answer: %d, %v, dead %v", n, err, r.dead)
	}
}

// TestRKeyRequests: the peer's RMBs.
func TestRKeyRequests(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	key := func(k smc.RKey) wire.ConfirmRKey { return wire.ConfirmRKey{This: smc.RToken{RKey: k, Addr: 7}} }
	r.recv(r.link, key(1))
	r.expect("re:confirm-rkey(0)")
	r.recv(r.link, key(1)) // again is fine
	r.expect("re:confirm-rkey(0)")
	if len(r.g.peerRMBs.list) != 2 {
		t.Errorf("%d RMBs", len(r.g.peerRMBs.list))
	}
	m := wire.DeleteRKey{Count: 3}
	m.RKeys = [8]smc.RKey{5, 1, 6}
	r.recv(r.link, m)
	r.expect("re:delete-rkey(3)-negativea0")
	if len(r.g.peerRMBs.list) != 1 {
		t.Errorf("%d RMBs", len(r.g.peerRMBs.list))
	}
	for k := range smc.RKey(300) {
		r.recv(r.link, key(1000+k))
		r.done()
	}
	if len(r.g.peerRMBs.list) != maxRMBs {
		t.Errorf("%d RMBs", len(r.g.peerRMBs.list))
	}
	r.sent()
	r.recv(r.link, key(1))
	r.expect("re:confirm-rkey(0)-negative")
	// Links that do not exist are skipped, and a continuation that nothing
	// came before is refused.
	m2 := key(1000)
	m2.Others = 1
	m2.Other[0].LinkNum = 77
	r.recv(r.link, m2)
	r.expect("re:confirm-rkey(1)")
	r.recv(r.link, wire.ConfirmRKeyCont{Left: 1})
	r.expect("re:confirm-rkey-continuation(1)-negative")
	if len(r.dead) != 0 {
		t.Errorf("dead: %v", r.dead)
	}
}

// TestConfirmRKeyNewLink: the peer agrees to a CONFIRM RKEY that it received before it
// added a link. It does not know the RMB on that link, so the RMB is announced once more
// before the connection goes on (RFC 7609, sections 3.5.5.2.1 and 3.5.5.3.1).
func TestConfirmRKeyNewLink(t *testing.T) {
	r := newRig(t, smc.Client, func(c *Config) {
		noTest(c)
		c.RMBEsPerRMB = 1
	})
	r.open()
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.done()
	r.acts = nil
	c, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	r.expect("confirm-rkey(0)")
	reply := wire.ConfirmRKey{Reply: true, This: c.rmb.at[r.link.slot].RToken}

	r.recv(r.link, wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 3, MTU: 3})
	pairs := [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}}
	r.recv(r.link, wire.AddLinkCont{LinkNum: 3, Left: 1, Pairs: pairs})
	added := r.g.links.byID(3)
	r.recv(added, r.confirmLink(false, added))
	r.expect("re:add-link re:add-link-continuation(1) re:confirm-link")
	if added.state != smc.LinkActive {
		t.Fatalf("the new link is %s", added.state)
	}

	ready := func() (n int) {
		r.take()
		for _, a := range r.acts {
			if a.Kind == ActConnReady {
				n++
			}
		}
		return n
	}
	r.recv(r.link, reply)
	if n := ready(); n != 0 {
		t.Error("the connection goes on, and the peer does not know its RMB on the new link")
	}
	again, err := wire.ParseConfirmRKey(r.last)
	if err != nil {
		t.Fatal(err)
	}
	r.expect("confirm-rkey(1)")
	if o := again.Other[0]; o.LinkNum != 3 || o.RToken != c.rmb.at[added.slot].RToken {
		t.Errorf("announced for link %d, %v", o.LinkNum, o.RToken)
	}
	again.Reply = true
	r.recv(r.link, again)
	if n := ready(); n != 1 {
		t.Errorf("%d connections go on after the second answer, want 1", n)
	}
}
