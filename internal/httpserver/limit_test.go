// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/testing/sharetest"
)

// fakeConn is a connection that notes that it was closed.
type fakeConn struct {
	net.Conn
	closed bool
}

func (c *fakeConn) Close() error { c.closed = true; return nil }

// someone is a user who has no rights here.
func someone(i int) source { return source{user: uint32(sharetest.First + i), own: true} }

// root is the source of root's connections.
var root = source{own: true}

// places are those of a server without a network.
type places struct {
	t *testing.T
	l *limited
}

func newPlaces(t *testing.T) places { return places{t, limit(nil, nil)} }

// open opens a connection. It returns nil if it was closed at once.
func (p places) open(from source, busy bool) *limitedConn {
	p.t.Helper()
	c := &limitedConn{Conn: &fakeConn{}, l: p.l, from: from, busy: busy, since: time.Now()}
	taken, err := p.l.take(c)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, there := p.l.conns[c]; there != taken || len(p.l.conns) > MaxConns {
		p.t.Fatalf("taken: %v, there: %v, %d connections", taken, there, len(p.l.conns))
	}
	if !taken {
		return nil
	}
	time.Sleep(time.Millisecond) // it is older than the next one
	return c
}

func (c *limitedConn) isClosed() bool { return c.Conn.(*fakeConn).closed }

// of returns how many connections a source has.
func (p places) of(from source) (n int) {
	for c := range p.l.conns {
		if c.from == from {
			n++
		}
	}
	return n
}

// TestSources: sources of which each takes all places that it can, with requests that never end, leave one for each further
// source as long as there are places, and do not touch those of root.
func TestSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(t)
		const most = MaxConns - ownPlaces
		sharetest.Users(t, most, func(uid uint32) bool { return p.open(source{user: uid, own: true}, true) != nil })
		for i := range most {
			if p.of(someone(i)) == 0 {
				t.Errorf("user %d of %d has lost its last connection", i, most)
			}
		}
		if p.open(someone(most), true) != nil {
			t.Error("one more has a place, although all others have one")
		}
		for i := range ownPlaces {
			if p.open(root, true) == nil {
				t.Errorf("root has only %d places", i)
			}
		}
		for i := range most {
			if p.of(someone(i)) == 0 {
				t.Errorf("root has taken the last connection of user %d", i)
			}
		}
	})
}

// TestOneSource: the oldest idle connection of a source goes for its next one, and nobody else's.
func TestOneSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(t)
		other := p.open(someone(1), false)
		var all []*limitedConn
		for range 3 * MaxConns {
			c := p.open(someone(0), false)
			if c == nil {
				t.Fatal("a connection was refused although others of the source are idle")
			}
			all = append(all, c)
		}
		open := 0
		for i, c := range all {
			if !c.isClosed() {
				open++
			} else if open > 0 {
				t.Errorf("connection %d was closed before an older one", i)
			}
		}
		if open == 0 || open > maxSource || other.isClosed() {
			t.Errorf("%d are open; that of another source closed: %v", open, other.isClosed())
		}
		for c := range p.l.conns {
			p.l.set(c, true)
		}
		if p.open(someone(0), false) != nil {
			t.Error("more than the share")
		}
	})
}

// TestFull: in a full table, an idle connection of the source with the most goes, before one on which a request is answered;
// root's are only taken beyond its places.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(t)
		for range MaxConns {
			if p.open(root, true) == nil {
				t.Fatal("root has too few")
			}
		}
		if p.open(root, true) != nil {
			t.Error("more connections than there may be")
		}
		for i := range MaxConns - ownPlaces {
			if p.open(someone(i), true) == nil {
				t.Fatalf("no place for user %d while root has %d", i, p.of(root))
			}
		}
		if n := p.of(root); n != ownPlaces {
			t.Errorf("root has %d", n)
		}
		for c := range p.l.conns {
			if c.from == someone(7) {
				p.l.set(c, false)
			}
		}
		if p.open(someone(1000), true) == nil || p.of(someone(7)) != 0 {
			t.Error("the one idle connection was not closed for the next")
		}
		if p.open(someone(1001), true) != nil {
			t.Error("a source has lost its only connection, on which a request is answered")
		}
	})
}
