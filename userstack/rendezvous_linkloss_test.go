// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"io"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/driver"
	"smcr/userstack/linkgroup"
	"smcr/userstack/wire"
)

// linkTo returns the link of a group with this queue pair at one of its ends.
func linkTo(g *driver.Group, qpn smc.QPN) (found *linkgroup.Link) {
	g.View(func(core *linkgroup.Group) {
		for _, l := range core.Links() {
			if l.Local().QPN == qpn || l.Peer().QPN == qpn {
				found = l
			}
		}
	})
	return found
}

// loseLink sets a device of one host down until a link is removed on both sides, and up
// again, so that TCP over it continues.
func (b *bed) loseLink(who string, l *linkgroup.Link) {
	b.t.Helper()
	h, _ := b.side(who)
	dev := l.Dev().Name[len("sim-"):]
	h.SetPort(dev, false)
	time.Sleep(time.Second)
	if c, s := b.links(b.client), b.links(b.server); c != 1 || s != 1 {
		b.t.Errorf("%d and %d links with %s down", c, s, dev)
	}
	h.SetPort(dev, true)
	time.Sleep(time.Second)
}

// TestLinkLostBeforeConfirm: the link in CONFIRM is removed while CONFIRM is on its way.
// The client has already moved its connection, with the data of its program, to the other
// link. The server uses that link too.
func TestLinkLostBeforeConfirm(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{devices: 2})
				c, s := b.connect()
				time.Sleep(time.Second)
				u := b.unconfirmed(t)
				c2 := u.client
				m := <-u.confirm
				if _, err := c2.Write([]byte("early ")); err != nil {
					t.Fatal(err)
				}
				g := map[string]*driver.Group{"client": c.group(), "server": s.group()}[who]
				named := linkTo(g, m.QPN)
				for range 3 {
					b.loseLink(who, named)
				}
				if _, err := c2.Write([]byte("and late")); err != nil {
					t.Fatal(err)
				}
				scripted{t, u.far}.send(m)
				x := <-u.server
				if x.err != nil {
					t.Fatal(x.err)
				}
				got := make([]byte, len("early and late"))
				if _, err := io.ReadFull(x.c, got); err != nil || string(got) != "early and late" {
					t.Errorf("read %q, %v", got, err)
				}
				b.exchange(x.c, c2, pattern(1, 100000))
				b.exchange(c2, x.c, pattern(2, 100000))
				b.exchange(c, s, pattern(3, 1000))
				b.finish(c2, x.c)
				b.finish(c, s)
				u.near.Close()
				u.far.Close()
			})
		})
	}
}

// TestLinkLostBeforeAccept: the link in ACCEPT is removed while ACCEPT is on its way. The
// client declines, but does not report that it has no link group, which would end the
// group.
func TestLinkLostBeforeAccept(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{devices: 2})
				c, s := b.connect()
				time.Sleep(time.Second)
				ct, near := b.tcp()
				far, st := b.tcp()
				server := ended(t, b.server.Server, st)
				client := ended(t, b.client.Client, ct)
				cl, sv := scripted{t, near}, scripted{t, far}
				sv.send(as[wire.Proposal](cl))
				a := as[wire.Accept](sv)
				g := map[string]*driver.Group{"client": c.group(), "server": s.group()}[who]
				b.loseLink(who, linkTo(g, a.QPN))
				cl.send(a)
				d := as[wire.Decline](cl)
				if d.Diagnosis != smc.DiagNoActiveLink || d.OutOfSync {
					t.Errorf("declined with %+v", d)
				}
				sv.send(d)
				var err *DeclineError
				if e := <-client; !errors.As(e, &err) {
					t.Errorf("client: %v", e)
				}
				if e := <-server; !errors.As(e, &err) {
					t.Errorf("server: %v", e)
				}
				b.exchange(c, s, pattern(1, 1000))
				for _, tc := range []TCPConn{ct, near, far, st} {
					tc.Close()
				}
				b.finish(c, s)
			})
		})
	}
}
