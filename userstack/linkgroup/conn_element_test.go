// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"smcr/smc"
	"smcr/userstack/conn"
)

// TestNotItsOwn: a host names an element or a token of a connection that another host
// has told of. Nothing happens to that connection, unless the peer itself says so.
func TestNotItsOwn(t *testing.T) {
	first, second, third := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	sameElement, sameToken := peerRMB, peerRMB
	sameElement.Token++
	sameToken.Index++
	for _, tt := range []struct {
		name      string
		from, now netip.Addr
		ok        bool
	}{
		{"the same host", second, second, true},
		{"the host of the first contact", second, first, true},
		{"another host", first, third, false},
		{"another host, both after the first contact", second, third, false},
	} {
		for what, peer := range map[string]ConnParams{"element": sameElement, "token": sameToken} {
			t.Run(tt.name+"/"+what, func(t *testing.T) {
				r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.PeerHost = first })
				r.open()
				r.c.peer.From = tt.from
				c, err := r.g.NewConn(r.s.now, 0, 100)
				if err != nil {
					t.Fatal(err)
				}
				r.take()
				r.acts = nil
				peer.From = tt.now
				err = c.Attach(r.s.now, peer)
				r.take()
				if tt.ok {
					if err != nil || len(r.close) != 1 || !errors.Is(r.close[0], conn.ErrReset) {
						t.Errorf("Attach: %v; ended: %v, want the connection of before reset", err, r.close)
					}
					return
				}
				if !errors.Is(err, ErrNotItsOwn) {
					t.Errorf("Attach: %v, want ErrNotItsOwn", err)
				}
				if len(r.close) != 0 || len(r.acts) != 0 || r.c.State() != smc.StateActive || c.Protocol().Established() {
					t.Errorf("ended: %v; actions: %v; state %v", r.close, r.kinds(), r.c.State())
				}
			})
		}
	}
}

// TestElementOfEnded: the peer gives the element of a connection to a new connection from
// another address of the peer. This is right as soon as both sides have said the end of
// the former connection, even if its last message does not count as delivered yet.
func TestElementOfEnded(t *testing.T) {
	first, second, third := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	sameElement, sameToken := peerRMB, peerRMB
	sameElement.Token++
	sameElement.From, sameToken.From = third, third
	for _, tt := range []struct {
		name, steps string
		peer        ConnParams
		attach, end error
	}{
		{"the peer closed first", "C close", sameElement, nil, nil},
		{"this side closed first", "close C", sameElement, nil, nil},
		{"the peer aborted", "A", sameElement, nil, conn.ErrReset},
		{"both aborted", "abort A", sameElement, nil, conn.ErrAborted},
		{"only this side closed", "close", sameElement, ErrNotItsOwn, errNone},
		{"only the peer closed", "C", sameElement, ErrNotItsOwn, errNone},
		{"the same token", "C close", sameToken, ErrNotItsOwn, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.PeerHost = first })
			r.open()
			r.c.peer.From = second
			for _, step := range strings.Fields(tt.steps) {
				r.do(step)
			}
			c, err := r.g.NewConn(r.s.now, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Attach(r.s.now, tt.peer); !errors.Is(err, tt.attach) {
				t.Errorf("Attach: %v, want %v", err, tt.attach)
			}
			r.take()
			if len(r.close) != 0 {
				t.Fatalf("the former connection ended with %v before its last message was delivered", r.close)
			}
			r.do("ok")
			if want := tt.end != errNone; (len(r.close) == 1) != want || want && !errors.Is(r.close[0], tt.end) {
				t.Errorf("the former connection ended with %v, want %v", r.close, tt.end)
			}
			if tt.attach != nil {
				return
			}
			if err := r.g.Check(); err != nil {
				t.Error(err)
			}
			r.acts = nil
			produce(c, r.s.now, 10)
			if got := r.sent(); c.State() != smc.StateActive || got != "cdc" {
				t.Errorf("the new connection is %v and sends %q", c.State(), got)
			}
		})
	}
}
