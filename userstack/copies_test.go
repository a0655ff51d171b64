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
	var (
		host  = netip.MustParseAddrPort("10.0.0.1:80")
		other = netip.MustParseAddrPort("10.0.0.1:81")
		data  = fmt.Errorf("%w: %w", rendezvous.ErrNoAnswer, rendezvous.ErrProtocol)
		end   = fmt.Errorf("%w: %w", rendezvous.ErrNoAnswer, syscall.ECONNRESET)
		none  = fmt.Errorf("%w: %w", rendezvous.ErrNoAnswer, os.ErrDeadlineExceeded)
	)
	for _, test := range []struct {
		name        string
		events      []error // nil: an answer
		host, other bool    // whether nothing is announced to these addresses then
	}{
		{"data", []error{data}, true, false},
		{"silence", []error{none}, true, false},
		{"one end", []error{end}, false, false},
		{"two ends", []error{end, end}, true, false},
		{"an answer between two ends", []error{end, nil, end}, false, false},
		{"an answer", []error{data, nil}, false, false},
		{"a copied probe", []error{errCopied}, true, true},
		{"an answer at one port", []error{errCopied, nil}, true, true},
	} {
		var c copies
		now := time.Unix(1e9, 0)
		for _, err := range test.events {
			switch err {
			case nil:
				c.answered(host)
			case errCopied:
				c.found(now, hostOf(host), true)
			default:
				c.noAnswer(now, host, err)
			}
		}
		if got := c.known(now, host); got != test.host {
			t.Errorf("%s: known %v", test.name, got)
		}
		if got := c.known(now, other); got != test.other {
			t.Errorf("%s: another port known %v", test.name, got)
		}
		if c.known(now.Add(copyFirst), host) {
			t.Errorf("%s: still known after the time", test.name)
		}
	}
	// The time doubles with each time that it is found again, not with each connection.
	var c copies
	now := time.Unix(1e9, 0)
	for want := copyFirst; ; want = min(2*want, copyLast) {
		for range 3 {
			c.found(now, hostOf(host), true)
		}
		if !c.known(now.Add(want-1), host) || c.known(now.Add(want), host) {
			t.Fatalf("not known for %v", want)
		}
		now = now.Add(want)
		if want == copyLast {
			break
		}
	}
	// The table is bounded, and what ends first is forgotten.
	for i := range maxCopies + 10 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)
		c.noAnswer(now, addr, data)
	}
	if len(c.at) != maxCopies {
		t.Errorf("%d addresses", len(c.at))
	}
}
