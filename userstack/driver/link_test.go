// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"testing"
	"time"

	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/userstack/rendezvous"
)

// TestHopLimits: packets to a neighbour pass no router. If there is a router, they may
// pass it, and the IP stack finds the route without the MAC address of the peer.
func TestHopLimits(t *testing.T) {
	for _, tt := range []struct {
		terms *rendezvous.Terms
		hops  uint8
		dmac  int
	}{
		{nil, 1, 6},
		{&rendezvous.Terms{}, 1, 6},
		{&rendezvous.Terms{Routed: true}, 64, 0},
	} {
		l := &link{terms: tt.terms, stall: time.Second}
		if p := l.path(); p.HopLimit != tt.hops || len(p.DMAC) != tt.dmac {
			t.Errorf("terms %+v: path %+v", tt.terms, p)
		}
	}
}

// TestAckTimeout: a queue pair waits for a peer that stands still as long as the setting
// says, and less than 16/7 times as long.
func TestAckTimeout(t *testing.T) {
	for stall, want := range map[time.Duration]uint8{
		time.Second: 16, 3 * time.Second: 17, 7 * time.Second: 18, 30 * time.Second: 20, time.Minute: 21, 5 * time.Minute: 24,
	} {
		p := (&link{stall: stall}).path()
		if p.Timeout != want || p.RetryCnt != 7 {
			t.Errorf("%v: timeout code %d and %d retries, want %d and 7", stall, p.Timeout, p.RetryCnt, want)
		}
		if d := longestSilence(stall); d < stall*8/7 || d >= stall*16/7 {
			t.Errorf("%v: the queue pair waits %v", stall, d)
		}
	}
}

// counting is a queue pair that counts what it sends again.
type counting struct {
	rdmaverbs.QP
	sum rdmaverbs.Resent
}

func (c counting) Resent() rdmaverbs.Resent { return c.sum }

// TestLinkResent: the listing has what the queue pair of a link counts, and says if it does not count.
func TestLinkResent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		c, s := b.connect()
		rows := b.client.Links()
		if len(rows) != 1 || rows[0].Resent != nil {
			t.Errorf("a queue pair that does not count: %+v", rows)
		}
		b.client.each(func(g *Group) {
			l := g.core.Links()[0].Data.(*link)
			l.qp = counting{l.qp, rdmaverbs.Resent{Packets: 7, Timeouts: 2}}
		})
		rows = b.client.Links()
		if len(rows) != 1 || rows[0].Resent == nil || *rows[0].Resent != (nl.Resent{Packets: 7, Timeouts: 2}) {
			t.Errorf("a queue pair that counts: %+v", rows)
		}
		b.finish(c, s)
	})
}
