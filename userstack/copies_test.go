// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"smcr/userstack/rendezvous"
)

// TestCopies has a row for each line of the table of copies.
func TestCopies(t *testing.T) {
	const user = 1000
	var (
		host  = netip.MustParseAddrPort("10.0.0.1:80")
		other = netip.MustParseAddrPort("10.0.0.1:81")
		data  = fmt.Errorf("%w: %w", rendezvous.ErrNoAnswer, rendezvous.ErrProtocol)
		end   = fmt.Errorf("%w: %w", rendezvous.ErrNoAnswer, syscall.ECONNRESET)
		none  = fmt.Errorf("%w: %w", rendezvous.ErrNoAnswer, os.ErrDeadlineExceeded)
	)
	for _, test := range []struct {
		name   string
		events []error // nil: an answer
		known  bool    // whether nothing is announced to this port then
	}{
		{"data", []error{data}, true},
		{"silence", []error{none}, true},
		{"one end", []error{end}, false},
		{"two ends", []error{end, end}, true},
		{"an answer between two ends", []error{end, nil, end}, false},
		{"an answer", []error{data, nil}, false},
		{"a copied probe", []error{errCopied}, true},
		{"an answer after a copied probe", []error{errCopied, nil}, false},
	} {
		var c copies
		now := time.Unix(1e9, 0)
		for _, err := range test.events {
			switch err {
			case nil:
				c.answered(user, host)
			case errCopied:
				c.found(now, portOf(user, host), true)
			default:
				c.noAnswer(now, user, host, err)
			}
		}
		if got := c.known(now, user, host); got != test.known {
			t.Errorf("%s: known %v", test.name, got)
		}
		if c.known(now, user, other) || c.known(now, user+1, host) {
			t.Errorf("%s: known at another port, or to another user", test.name)
		}
		if c.known(now.Add(copyFirst), user, host) {
			t.Errorf("%s: still known after the time", test.name)
		}
	}
	// The time doubles with each time that it is found again, not with each connection.
	var c copies
	now := time.Unix(1e9, 0)
	for want := copyFirst; ; want = min(2*want, copyLast) {
		for range 3 {
			c.found(now, portOf(user, host), true)
		}
		if !c.known(now.Add(want-1), user, host) || c.known(now.Add(want), user, host) {
			t.Fatalf("not known for %v", want)
		}
		now = now.Add(want)
		if want == copyLast {
			break
		}
	}
	// The table is bounded, and what ends first is forgotten. A user with too many displaces none
	// of another.
	c = copies{}
	c.noAnswer(now, 1, host, data)
	add := func(uid uint32, n int) {
		for i := range n {
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(uid), byte(i >> 8), byte(i)}), 80)
			c.noAnswer(now.Add(time.Second), uid, addr, data)
		}
	}
	add(user, maxCopies+10)
	if len(c.at) != maxCopiesUser+1 || !c.known(now, 1, host) {
		t.Errorf("%d addresses, known %v", len(c.at), c.known(now, 1, host))
	}
	// A host that a user connects to at as many ports as it has displaces none of other hosts.
	ports := netip.MustParseAddr("10.9.9.9")
	add(7, 20)
	for port := range uint16(3 * maxCopiesUser) {
		c.noAnswer(now.Add(time.Hour), 7, netip.AddrPortFrom(ports, port+1), data)
	}
	for i := range 20 {
		if at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 7, 0, byte(i)}), 80); !c.known(now.Add(time.Second), 7, at) {
			t.Errorf("%v is forgotten for ports of another host", at)
		}
	}
	if n := c.users.Of(7); n != maxCopiesUser {
		t.Errorf("the user has %d addresses", n)
	}
	for i := range 2 * maxCopies / maxCopiesUser {
		add(uint32(user+i), maxCopiesUser)
	}
	if len(c.at) != maxCopies || !c.known(now, 1, host) {
		t.Errorf("%d addresses, known %v", len(c.at), c.known(now, 1, host))
	}
	for key := range c.at {
		c.answered(key.uid, key.at)
	}
	if n := c.users.Total(); n != 0 || len(c.at) != 0 {
		t.Errorf("all have answered: %d are counted, %d known", n, len(c.at))
	}
}
