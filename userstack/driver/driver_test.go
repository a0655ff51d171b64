// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/linkgroup"
)

// TestCloseWhileWriteCopies: a driver that ends does not free send memory while a write
// copies into it.
func TestCloseWhileWriteCopies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		c, _ := b.connect()
		c.g.do(func(time.Time) { // like Write while it copies
			c.End.hold()
			c.g.mem.copying++
		})
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			b.close(b.client)
		}()
		<-c.Done()
		time.Sleep(time.Second)
		select {
		case <-closed:
			t.Error("closed with a send buffer in use")
		default:
		}
		c.g.do(func(time.Time) {
			c.g.mem.copying--
			c.End.release()
		})
		<-closed
	})
}

// TestNoGroupAfterTerminate: no link group begins after the driver has begun to end.
func TestNoGroupAfterTerminate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		lan, ports := b.lan(b.client, b.server)
		b.client.Terminate()
		_, err := b.client.NewGroup(GroupConfig{Role: smc.Client, PeerID: b.server.id, LocalPeerID: b.client.id, LAN: lan, Ports: ports})
		if !errors.Is(err, ErrClosed) || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
	})
}

// TestConns: a connection counts from Start until its end, even if the program never gets
// it.
func TestConns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		count := func(want int) {
			t.Helper()
			if c, s := b.client.Conns(), b.server.Conns(); c != want || s != want {
				t.Errorf("%d and %d connections, want %d", c, s, want)
			}
		}
		c1, s1 := b.connect()
		cc, sc := b.tcp()
		c2, s2 := b.next(cc, sc)
		count(1)
		c2.Abandon()
		s2.Abandon()
		b.ended(&end{Conn: c2})
		b.ended(&end{Conn: s2})
		count(1)
		b.finish(c1, s1)
		count(0)
	})
}

// TestGroupIDs: no two link groups have the same ID, and no two links the same user ID (RFC
// 7609, appendix A.3.1), not even when the IDs begin again. No ID is 0.
func TestGroupIDs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		b.server.s.groups.Store(groupNumbers - 2)
		c, s := b.connect() // 0xffffff00
		groups := []*Group{s.g}
		b.server.s.groups.Store(0)
		for range 2 {
			groups = append(groups, b.group(smc.Server, b.server, b.client))
		}
		b.server.s.groups.Store(2*groupNumbers - 2)
		for range 2 {
			groups = append(groups, b.group(smc.Server, b.server, b.client))
		}
		var ids []nl.LinkGroupID
		uids := map[uint32]bool{}
		begun := map[*Group]*Conn{}
		for _, g := range groups {
			ids = append(ids, g.ID())
			if g != s.g {
				_, sc := b.tcp()
				conn, _, err := g.Begin(sc, nil)
				b.check(err)
				begun[g] = conn
			}
			g.View(func(core *linkgroup.Group) {
				for _, l := range core.Links() {
					if uids[l.UID()] {
						t.Errorf("two links have the user ID %#x", l.UID())
					}
					uids[l.UID()] = true
				}
			})
		}
		if want := []nl.LinkGroupID{0xffffff00, 0x100, 0x200, 0x300, 0x400}; !slices.Equal(ids, want) {
			t.Errorf("IDs %v, want %v", ids, want)
		}
		if len(uids) != len(groups) {
			t.Errorf("%d user IDs of links in %d link groups", len(uids), len(groups))
		}
		for g, conn := range begun {
			g.Drop(conn)
		}
		b.finish(c, s)
	})
}
