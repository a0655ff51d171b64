// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"smcr/quota"
)

const (
	// maxSource is how many connections one source may have on which requests are answered. From the second one on, it also leaves
	// as many for others as it has: see quota.Fair.
	maxSource = MaxConns / 2
	// ownPlaces are for root and the user of this process, who have no bound of their own. All other sources have the rest.
	ownPlaces = 8
)

// limited is a listener with at most MaxConns connections. None of them waits for a place: what a source has too many of is
// closed, and so is, when all places are taken, one of the source with the most.
//
//	a connection comes, and       | then
//	------------------------------+----------------------------------------------------------------
//	its source has its share      | the source's oldest one is closed on which no request is being
//	                              | answered; without such a one, the new one
//	all places are taken          | the same of the source with the most. If all of these are being
//	                              | answered, the oldest one of a source that has two more than the
//	                              | new one's; without such a one, the new one
type limited struct {
	net.Listener
	who func(net.Conn) source

	mu     sync.Mutex
	closed bool
	conns  map[*limitedConn]struct{}
}

// limitedConn is a connection of a limited.
type limitedConn struct {
	net.Conn
	l     *limited
	from  source
	busy  bool      // a request is being answered: all of its header has come
	since time.Time // when that began, or ended
}

func limit(l net.Listener, who func(net.Conn) source) *limited {
	return &limited{Listener: l, who: who, conns: map[*limitedConn]struct{}{}}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		x := &limitedConn{Conn: c, l: l, from: l.who(c), since: time.Now()}
		switch taken, err := l.take(x); {
		case err != nil:
			_ = c.Close()
			return nil, err
		case taken:
			return x, nil
		}
		_ = c.Close()
	}
}

// take makes room for a connection. It returns false if that is to be closed instead.
func (l *limited) take(x *limitedConn) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, net.ErrClosed
	}
	const forOthers = MaxConns - ownPlaces
	has, others := map[source]int{}, 0
	for c := range l.conns {
		if has[c.from]++; !c.from.first() {
			others++
		}
	}
	full := len(l.conns) >= MaxConns || !x.from.first() && others >= forOthers
	var last *limitedConn
	switch mine := has[x.from]; {
	case !x.from.first() && !quota.Fair(mine, 1, maxSource, min(others, forOthers-1), forOthers):
		last = l.oldest(has, func(c *limitedConn) bool { return c.from == x.from && !c.busy })
	case !full:
		l.conns[x] = struct{}{}
		return true, nil
	default:
		mayGo := func(c *limitedConn) bool {
			return c.from == x.from || x.from.first() || !c.from.first() || has[c.from] > ownPlaces
		}
		last = l.oldest(has, func(c *limitedConn) bool { return mayGo(c) && !c.busy })
		if last == nil {
			last = l.oldest(has, func(c *limitedConn) bool { return mayGo(c) && has[c.from] > mine+1 })
		}
	}
	if last == nil {
		return false, nil
	}
	delete(l.conns, last)
	_ = last.Conn.Close()
	l.conns[x] = struct{}{}
	return true, nil
}

// oldest returns, of the connections that may be closed, the oldest one of the source with the most connections. mu is held.
func (l *limited) oldest(has map[source]int, may func(*limitedConn) bool) (last *limitedConn) {
	for c := range l.conns {
		switch {
		case !may(c):
		case last == nil || has[c.from] > has[last.from] || has[c.from] == has[last.from] && c.since.Before(last.since):
			last = c
		}
	}
	return last
}

// connKey has the connection in the context of its requests.
type connKey struct{}

// context is the ConnContext of the server.
func (l *limited) context(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// asked notes that the header of a request has come. It is answered until state says that the connection is idle.
func (l *limited) asked(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*limitedConn); ok {
			l.set(c, true)
		}
		h.ServeHTTP(w, r)
	})
}

// state is the ConnState of the server.
func (l *limited) state(c net.Conn, s http.ConnState) {
	if x, ok := c.(*limitedConn); ok && s == http.StateIdle {
		l.set(x, false)
	}
}

func (l *limited) set(c *limitedConn, busy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.busy, c.since = busy, time.Now()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	return l.Listener.Close()
}
