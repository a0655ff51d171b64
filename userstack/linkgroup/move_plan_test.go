// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// planned returns a client with two connections on link 1, of which one is going to move to
// link 11, which has just been added.
func planned(t *testing.T) (r *rig, moving *Conn, l2 *Link) {
	t.Helper()
	r = manyLinks(t, 1, nil)
	c := r.newConn()
	p := peerRMB
	p.Index, p.Token = 3, 9
	if err := c.Attach(r.s.now, p); err != nil {
		t.Fatal(err)
	}
	r.addLink(1)
	r.acts = nil
	l2 = r.g.links.byID(11)
	for _, x := range []*Conn{r.c, c} {
		if x.target() == l2 && x.Link() == r.link {
			moving = x
		}
	}
	if moving == nil {
		t.Fatal("no connection is going to move")
	}
	return r, moving, l2
}

// TestPlannedMoveLinkLost: a connection whose next link fails stays where it is, and can be
// moved again when another link is added (RFC 7609, section 2.3).
func TestPlannedMoveLinkLost(t *testing.T) {
	r, c, l2 := planned(t)
	r.g.LinkFailed(r.s.now, l2, errAny)
	r.expect("delete-link(11)")
	produce(c, r.s.now, 10)
	if _, over := r.written(); !slices.Equal(over, []*Link{r.link}) {
		t.Errorf("written over %v", over)
	}
	r.done()
	r.wait(50 * time.Millisecond)
	if c.Link() != r.link || c.target() != r.link {
		t.Errorf("the connection is on link %d, and goes to link %d", c.Link().ID(), c.target().ID())
	}
	r.addLink(2)
	r.wait(50 * time.Millisecond)
	if got := []int{r.link.ConnCount(), r.g.links.byID(12).ConnCount()}; !slices.Equal(got, []int{1, 1}) {
		t.Errorf("connections on links: %v", got)
	}
}

// TestPlannedMoveLinkDeleted: a connection does not move to a link whose deletion has begun
// since.
func TestPlannedMoveLinkDeleted(t *testing.T) {
	r, c, l2 := planned(t)
	r.recv(l2, wire.DeleteLink{LinkNum: 11, Orderly: true, Reason: wire.DeleteLinkOperator})
	r.expect("re:delete-link(11)")
	r.wait(50 * time.Millisecond)
	if c.Link() != r.link {
		t.Errorf("the connection is on link %d", c.Link().ID())
	}
	produce(c, r.s.now, 10)
	if _, over := r.written(); !slices.Equal(over, []*Link{r.link}) {
		t.Errorf("written over %v", over)
	}
}

// TestFailoverCount: the connections count that left a link which did not work any more, and
// not those that left one which is deleted in order.
func TestFailoverCount(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(r *rig, l2 *Link)
		want uint64
	}{
		"failed":  {func(r *rig, _ *Link) { r.g.LinkFailed(r.s.now, r.link, errAny) }, 1},
		"device":  {func(r *rig, _ *Link) { r.g.DeviceDown(r.s.now, r.link.Dev().ID) }, 1},
		"deleted": {func(r *rig, _ *Link) { r.g.DeleteLink(r.s.now, r.link, wire.DeleteLinkOperator) }, 0},
		"planned": {func(r *rig, l2 *Link) { r.c.planMove(l2); r.wait(50 * time.Millisecond) }, 0},
	} {
		r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
		l2 := r.two(nil)
		tt.do(r, l2)
		r.take()
		if r.c.Link() != l2 {
			t.Fatalf("%s: the connection is on link %d", name, r.c.Link().ID())
		}
		if got := TakeFailovers(r.g); got != tt.want {
			t.Errorf("%s: %d failovers, want %d", name, got, tt.want)
		}
		if got := TakeFailovers(r.g); got != 0 {
			t.Errorf("%s: %d failovers again", name, got)
		}
	}
}

// TestRequestOverLostLink: a client has asked the server to delete a link. The link over which
// it asked is lost, and the next link lacks CONFIRM LINK. The client asks again over that.
func TestRequestOverLostLink(t *testing.T) {
	r := manyLinks(t, 2, nil)
	r.g.LinkFailed(r.s.now, r.g.links.byID(11), errAny)
	r.expect("delete-link(11)")
	next := r.unconfirmed(r.link, 20)
	r.acts = nil
	r.g.LinkFailed(r.s.now, r.link, errAny)
	r.expect("")
	r.recv(next, r.confirmLink(false, next))
	r.expect("re:confirm-link cdc+F delete-link(1) delete-link(11)")
}

// TestRequestOverDeletedLink: the same, when the link over which the client asked has been
// deleted in order.
func TestRequestOverDeletedLink(t *testing.T) {
	r := manyLinks(t, 3, nil)
	r.g.LinkFailed(r.s.now, r.g.links.byID(12), errAny)
	var via *Link
	for _, a := range r.g.actions.list {
		via = a.Link
	}
	if r.expect("delete-link(12)"); via == nil {
		t.Fatal("no link")
	}
	r.done()
	other := r.g.links.best(via)
	r.recv(other, wire.DeleteLink{LinkNum: via.ID(), Orderly: true, Reason: wire.DeleteLinkOperator})
	r.done()
	if r.g.links.byID(via.ID()) != nil {
		t.Fatalf("link %d is still there", via.ID())
	}
	r.acts = nil
	next := r.unconfirmed(other, 20)
	r.recv(next, r.confirmLink(false, next))
	r.expect("re:add-link re:add-link-continuation(1) re:confirm-link delete-link(12)")
}

// TestTCPEndedAcknowledged: a connection whose TCP connection has ended waits for the time
// TCPGrace from the last sign of the peer's adapter, and no longer (RFC 7609, section 4.8).
func TestTCPEndedAcknowledged(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Timers.TestLinkAnswer = time.Minute })
	r.open()
	r.send(10)
	r.acts = nil
	r.c.TCPClosed(r.s.now, false)
	r.wait(time.Second)
	r.done() // TEST LINK and the data are acknowledged, and no message comes
	r.acts = nil
	grace := DefaultTimers(smc.Server).TCPGrace
	r.wait(grace - time.Millisecond)
	if r.c.State() != smc.StateActive {
		t.Errorf("state %s before the time is over", r.c.State())
	}
	r.wait(time.Millisecond)
	if r.c.State() != smc.StatePeerAbortWait {
		t.Errorf("state %s when the time is over", r.c.State())
	}
}

// TestTCPEndedOtherLink: a connection whose TCP connection has ended, and whose link is silent,
// waits if another link shows that the peer's stack lives. A link that has failed does not count.
func TestTCPEndedOtherLink(t *testing.T) {
	for _, works := range []bool{true, false} {
		r := newRig(t, smc.Server, func(c *Config) {
			noTest(c)
			c.Timers.TestLinkAnswer, c.Timers.LLC, c.Timers.RKey = time.Minute, time.Minute, time.Minute
			c.Devices = append(c.Devices, device(smc.Server, 1))
		})
		l2 := r.two(nil)
		r.c.TCPClosed(r.s.now, false)
		r.wait(1500 * time.Millisecond)
		r.recv(l2, wire.TestLink{})
		if !works {
			r.g.LinkFailed(r.s.now, l2, errAny)
		}
		r.wait(time.Second)
		if waits := r.c.State() == smc.StateActive; waits != works {
			t.Errorf("the other link works: %v; the connection is %s", works, r.c.State())
		}
	}
}

// TestTraffic: a connection counts once for the link that it writes over, and twice for the one
// that the peer sends over.
func TestTraffic(t *testing.T) {
	r := manyLinks(t, 3, nil)
	l2, l3 := r.g.links.byID(11), r.g.links.byID(12)
	r.recv(l2, r.cdc())
	for l, want := range map[*Link]int{r.link: 1, l2: 2, l3: 0, nil: 0} {
		if got := r.g.adding.traffic(l); got != want {
			t.Errorf("link %v: %d, want %d", l, got, want)
		}
	}
}

// TestRebalanceWithoutDeletedLink: connections on a link that is being deleted leave it anyway.
// They do not count when the others are spread over the links that stay.
func TestRebalanceWithoutDeletedLink(t *testing.T) {
	r := manyLinks(t, 2, nil)
	l2 := r.g.links.byID(11)
	env := &scripted{host: r.h}
	r.g.env = env
	attach := func(token uint32, on *Link) *Conn {
		env.next = []uint32{token}
		c := r.newConn()
		c.setLink(on)
		p := peerRMB
		p.Index, p.Token = uint8(token+2), token
		if c.rmb.state == rmbNew {
			r.recv(r.g.rkeys.own.via, c.reply(r.g.rkeys.own.via))
		}
		if err := c.Attach(r.s.now, p); err != nil {
			t.Fatal(err)
		}
		return c
	}
	var leaving []*Conn
	for i := range uint32(6) {
		leaving = append(leaving, attach(i+1, r.link)) // the first ones in the order of tokens
	}
	r.c.setLink(l2)
	attach(100, l2)
	r.done()
	for _, c := range leaving {
		produce(c, r.s.now, 10)
	}
	r.take()
	r.recv(l2, wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator})
	next := r.unconfirmed(l2, 20)
	r.recv(next, r.confirmLink(false, next))
	for _, c := range leaving {
		if c.target() != r.link {
			t.Errorf("connection %d is to move to link %d", c.Token(), c.target().ID())
		}
	}
	delete(r.tok, r.link) // nothing is completed on link 1
	r.done()
	r.wait(50 * time.Millisecond)
	if got := []int{r.link.ConnCount(), l2.ConnCount(), next.ConnCount()}; !slices.Equal(got, []int{6, 1, 1}) {
		t.Errorf("connections on links: %v", got)
	}
}
