// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"smcr/quota"
)

// maxHost is how many connections one host may have while requests are answered on all of
// them. More are closed. All users of this host are one host if they connect to a loopback
// address.
const maxHost = MaxConns / 2

// limited is a listener with at most MaxConns connections. If there are more, one on which no
// request is being answered is closed for the next, the oldest one of the host that has most.
type limited struct {
	net.Listener

	mu     sync.Mutex
	room   *sync.Cond // a connection has ended, or is idle, or the listener is closed
	closed bool
	conns  map[*limitedConn]struct{}
}

// limitedConn is a connection of a limited.
type limitedConn struct {
	net.Conn
	l     *limited
	host  netip.Addr
	idle  bool
	since time.Time // it is idle
}

func limit(l net.Listener) *limited {
	x := &limited{Listener: l, conns: map[*limitedConn]struct{}{}}
	x.room = sync.NewCond(&x.mu)
	return x
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		x := &limitedConn{Conn: c, l: l, idle: true, since: time.Now()}
		if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			x.host = quota.Host(a.AddrPort().Addr())
		}
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

// take waits for room for a connection. It returns false if its host has enough.
func (l *limited) take(x *limitedConn) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		hosts := map[netip.Addr]int{}
		for c := range l.conns {
			hosts[c.host]++
		}
		full, mine := len(l.conns) >= MaxConns, !quota.Fair(hosts[x.host], 1, maxHost, min(len(l.conns), MaxConns-1), MaxConns)
		switch {
		case l.closed:
			return false, net.ErrClosed
		case !full && !mine:
			l.conns[x] = struct{}{}
			return true, nil
		}
		var last *limitedConn
		for c := range l.conns {
			if !c.idle || mine && c.host != x.host {
				continue
			}
			if last == nil || hosts[c.host] > hosts[last.host] || hosts[c.host] == hosts[last.host] && c.since.Before(last.since) {
				last = c
			}
		}
		switch {
		case last != nil:
			delete(l.conns, last)
			_ = last.Conn.Close()
		case mine:
			return false, nil
		default:
			l.room.Wait()
		}
	}
}

// state is the ConnState of the server.
func (l *limited) state(c net.Conn, s http.ConnState) {
	x, ok := c.(*limitedConn)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.idle = s == http.StateIdle; x.idle {
		x.since = time.Now()
		l.room.Broadcast()
	} else if s == http.StateNew {
		x.idle = true
	}
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.room.Broadcast()
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.mu.Lock()
	l.closed = true
	l.room.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}
