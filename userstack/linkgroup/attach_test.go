// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"slices"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// scripted is an Env with the first of its random numbers.
type scripted struct {
	*host
	next []uint32
}

func (e *scripted) Random() uint32 {
	if len(e.next) == 0 {
		return e.host.Random()
	}
	n := e.next[0]
	e.next = e.next[1:]
	return n
}

// TestTokenOfAnother: a random number that is zero or the alert token of another connection is
// no alert token.
func TestTokenOfAnother(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.g.env = &scripted{host: r.h, next: []uint32{0, r.c.Token(), 0, 0x1234}}
	if c := r.newConn(); c.Token() != 0x1234 {
		t.Errorf("token %#x", c.Token())
	}
	if r.g.Conns() != 2 {
		t.Errorf("%d connections", r.g.Conns())
	}
}

// TestNoConnectionWithoutLink: while no link is active, a group takes no connections.
func TestNoConnectionWithoutLink(t *testing.T) {
	r := manyLinks(t, 1, nil)
	next := r.unconfirmed(r.link, 20)
	r.g.LinkFailed(r.s.now, r.link, errAny)
	if _, err := r.g.NewConn(r.s.now, 0, 100); !errors.Is(err, ErrNoLink) || r.g.CanAccept() || r.g.HasPort(peerHost, peerEnd.GID, peerEnd.MAC) {
		t.Errorf("NewConn: %v, CanAccept %v", err, r.g.CanAccept())
	}
	if r.g.HasLink(peerEnd.GID, peerEnd.MAC, peerEnd.QPN) {
		t.Error("the link that has failed can be used")
	}
	if got := r.g.Type(); got != smc.GroupNone {
		t.Errorf("type %s", got)
	}
	r.recv(next, r.confirmLink(false, next))
	if c := r.newConn(); c.Link() != next {
		t.Errorf("the connection is on link %d", c.Link().ID())
	}
}

// TestAttachCanceled: a connection that was given up cannot be attached.
func TestAttachCanceled(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	c := r.newConn()
	c.Cancel(r.s.now)
	p := peerRMB
	p.Index, p.Token = 3, 9
	if err := c.Attach(r.s.now, p); !errors.Is(err, ErrSequence) {
		t.Errorf("Attach: %v", err)
	}
	if err := r.g.Check(); err != nil {
		t.Error(err)
	}
}

// TestLocalLink: CONFIRM of a client names the link that ACCEPT named, also when the client
// writes over another link. A server names the link that it writes over (RFC 7609, section 2.3).
func TestLocalLink(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(role, 1)) })
		l2 := r.two(nil)
		c := r.newConn()
		p := peerRMB
		p.Index, p.Token = 3, 9
		if err := c.Attach(r.s.now, p); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*Link{l2, r.link} {
			if l != c.Link() {
				c.move(l)
			}
			named := r.link
			if role == smc.Server {
				named = l
			}
			if got := c.Local(); got.Link != named.Local() || got.RKey != c.rmb.at[named.slot].RKey {
				t.Errorf("%s: on link %d: %+v, want link %d", role, l.ID(), got, named.ID())
			}
		}
	}
}

// TestRefuse: a connection that could not be attached is refused with a message to the alert
// token of the peer, which says that the connection was reset. If that token is another
// connection's, or the connection is open, or there is no link, nothing is sent.
func TestRefuse(t *testing.T) {
	p := peerRMB
	p.Token = 9
	for _, tt := range []struct {
		name string
		do   func(r *rig, c *Conn, p *ConnParams)
		over uint8 // link; 0: nothing is sent
	}{
		{"over its link", func(*rig, *Conn, *ConnParams) {}, 1},
		{"over another link, its own has failed", func(r *rig, _ *Conn, _ *ConnParams) { r.g.LinkFailed(r.s.now, r.link, errAny) }, 2},
		{"over another link, its own is being deleted", func(r *rig, _ *Conn, _ *ConnParams) {
			r.g.DeleteLink(r.s.now, r.link, wire.DeleteLinkOperator)
		}, 2},
		{"no token", func(_ *rig, _ *Conn, p *ConnParams) { p.Token = 0 }, 0},
		{"the token of another connection", func(_ *rig, _ *Conn, p *ConnParams) { p.Token = peerRMB.Token }, 0},
		{"a canceled connection", func(r *rig, c *Conn, _ *ConnParams) { c.Cancel(r.s.now) }, 0},
		{"an open connection", func(r *rig, c *Conn, p *ConnParams) {
			at := *p
			at.Index, at.Token = 3, 10
			if err := c.Attach(r.s.now, at); err != nil {
				r.t.Fatal(err)
			}
		}, 0},
		{"the group has ended", func(r *rig, _ *Conn, _ *ConnParams) { r.g.Terminate(r.s.now, wire.DeleteLinkProgram) }, 0},
	} {
		r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
		r.two(nil)
		c, peer := r.newConn(), p
		c.setLink(r.link)
		tt.do(r, c, &peer)
		r.take()
		r.acts = nil
		c.Refuse(r.s.now, peer)
		r.take()
		over := uint8(0)
		for _, a := range r.acts {
			if a.Kind == ActSend {
				over = a.Link.ID()
				m, err := wire.ParseCDC(a.Message())
				if want := (wire.CDC{Seq: 1, Token: 9, State: wire.ConnAbnormalClose}); err != nil || m != want || len(a.Message()) != MsgLen {
					t.Errorf("%s: %+v, %v", tt.name, m, err)
				}
			}
		}
		if over != tt.over {
			t.Errorf("%s: over link %d, want %d: %v", tt.name, over, tt.over, r.kinds())
		}
	}
}

// TestMoveWhileWaiting: a connection that waits for room in the send queue of a link, and that
// moves because the link is deleted, goes on over another link at once.
func TestMoveWhileWaiting(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) {
		noTest(c)
		c.SendQueue = 1
		c.Devices = append(c.Devices, device(smc.Server, 1))
	})
	l2 := r.two(nil)
	for r.link.room() > 0 {
		r.recv(r.link, wire.TestLink{}) // the answers take requests
	}
	r.acts = nil
	r.send(10)
	if n, _ := r.written(); n != 0 || r.link.waitHead != r.c {
		t.Fatalf("%d bytes were written, and the connection does not wait", n)
	}
	r.g.DeleteLink(r.s.now, r.link, wire.DeleteLinkOperator)
	r.take()
	delete(r.tok, r.link) // nothing is completed on link 1
	r.done()
	if n, over := r.written(); n != 10 || over[0] != l2 || r.link.waitHead != nil {
		t.Errorf("%d bytes were written over %v", n, over)
	}
}

// TestQueueOfMessages: LLC messages that wait for room in the send queue go out in their order,
// as many as there is room for.
func TestQueueOfMessages(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.SendQueue = 1 })
	r.open()
	var want, got []byte
	for i := range byte(minSendQueue + 5) {
		r.recv(r.link, wire.TestLink{UserData: [16]byte{i}})
		want = append(want, i)
	}
	look := func() {
		t.Helper()
		r.take()
		for _, a := range r.acts {
			if m, err := wire.ParseTestLink(a.Message()); err == nil {
				got = append(got, m.UserData[0])
			}
		}
		r.acts = nil
		if err := r.g.Check(); err != nil {
			t.Error(err)
		}
	}
	look()
	if len(got) != minSendQueue {
		t.Errorf("%d messages were posted on a queue of %d", len(got), minSendQueue)
	}
	oldest := r.link.sq[r.link.sqHead].token
	for i := range 3 {
		r.g.Sent(r.s.now, r.link, oldest+uint64(i))
		look()
		if len(got) != minSendQueue+i+1 {
			t.Errorf("%d messages were posted after %d were completed", len(got), i+1)
		}
	}
	r.done()
	look()
	if !slices.Equal(got, want) {
		t.Errorf("posted %v, want %v", got, want)
	}
}

// TestTurnsWithinTheQueue: a connection that waited for room and has more to send than one
// message takes gets its next turn behind the others, and not only when its message has been
// delivered.
func TestTurnsWithinTheQueue(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Autocork = -1 })
	r.open()
	var conns []*Conn
	for i := range 2 {
		c, err := r.g.NewConn(r.s.now, 5, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		p := peerRMB
		p.Index, p.Token, p.SizeCode, p.RKey = uint8(i+1), uint32(i+9), 5, 0xCCCC
		r.recv(r.link, wire.ConfirmRKey{This: smc.RToken{RKey: p.RKey, Addr: p.VAddr}})
		if err := c.Attach(r.s.now, p); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	r.done()
	for r.link.room() > 0 {
		r.recv(r.link, wire.TestLink{})
	}
	for _, c := range conns {
		produce(c, r.s.now, 512<<10) // four messages
	}
	r.take()
	r.acts = nil
	r.g.Sent(r.s.now, r.link, r.tok[r.link])
	r.take()
	var order []int
	for _, a := range r.acts {
		if a.Kind == ActSend && wire.IsCDC(a.Message()) {
			order = append(order, slices.Index(conns, a.Conn))
		}
	}
	if !slices.Equal(order, []int{0, 1, 0, 1}) {
		t.Errorf("messages of connections %v, want two of each in turn", order)
	}
}
