// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"net"
	"testing"
	"time"

	"smcr/smc"
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
