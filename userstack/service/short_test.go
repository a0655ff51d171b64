// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"testing"
	"time"

	"smcr/internal/testing/sharetest"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/divert"
)

func TestIsShort(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		made, open time.Duration
		carried    uint64
		want       bool
	}{
		{ms, ms, 100, true},
		{ms, 999 * ms, 100, true},
		{ms, time.Second, 100, false}, // it lasted
		{ms, ms, shortBytes, false},   // it carried much
		{ms, 19 * ms, littleBytes, true},
		{ms, 20 * ms, littleBytes, false},
		{50 * ms, 149 * ms, littleBytes, true}, // a busy machine
		{50 * ms, 150 * ms, littleBytes, false},
		{time.Second, 999 * ms, shortBytes - 1, true},
		{time.Second, time.Second, shortBytes - 1, false},
	} {
		if got := isShort(test.made, test.open, test.carried); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestShorts(t *testing.T) {
	s := newShorts()
	d := dest{1000, netip.MustParseAddrPort("10.0.0.1:80")}
	now := time.Unix(1e9, 0)
	end := func(short bool) (divert.Silence, bool) {
		t.Helper()
		now = now.Add(time.Millisecond)
		return s.learn(now, now, d, short)
	}
	wantQuiet := func(f time.Duration) {
		t.Helper()
		q, ok := end(true)
		if want := (divert.Silence{For: f, Again: tryTime, Why: smc.DiagShort}); !ok || q != want {
			t.Errorf("%+v, %v; want %+v", q, ok, want)
		}
	}
	row := func() {
		t.Helper()
		for i := range shortRow - 1 {
			if q, ok := end(true); ok {
				t.Fatalf("connection %d: %+v", i, q)
			}
		}
	}
	row()
	now = now.Add(rowGap) // a gap: not in a row
	row()
	end(false)
	row()
	wantQuiet(shortFirst)
	for f := 2 * shortFirst; f <= 4*shortLast; f *= 2 {
		began := now
		if q, ok := s.learn(now.Add(time.Millisecond), began, d, true); ok { // it began before
			t.Errorf("%+v", q)
		}
		now = now.Add(min(f, shortLast)) // the silence, which was half of f, is over, and one tries
		wantQuiet(min(f, shortLast))
	}
	now = now.Add(shortLast)
	if q, ok := end(false); !ok || q != (divert.Silence{}) {
		t.Errorf("%+v, %v", q, ok)
	}
	row()
	wantQuiet(shortFirst)
	now = now.Add(forgetTime)
	row()
	wantQuiet(shortFirst)

	other := dest{1001, d.to}
	if q, ok := s.learn(now, now, other, false); ok {
		t.Errorf("another user: %+v", q)
	}
	// The table is bounded.
	for i := range maxShort + 100 {
		s.learn(now, now, dest{uint32(i + 2000), d.to}, true)
	}
	if len(s.dests) > maxShort {
		t.Errorf("%d destinations", len(s.dests))
	}
	now = now.Add(forgetTime + time.Second)
	s.learn(now, now, other, true)
	if len(s.dests) != 1 || len(s.users) != 1 {
		t.Errorf("%d destinations of %d users are remembered", len(s.dests), len(s.users))
	}
}

// TestShortsOfUsers: users with short connections to as many peers as they can leave room for the peers of others.
func TestShortsOfUsers(t *testing.T) {
	s, now := newShorts(), time.Unix(1e9, 0)
	got := sharetest.Users(t, 12, func(uid uint32) bool {
		before := len(s.dests)
		s.learn(now, now, dest{uid, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(before))}, true)
		return len(s.dests) > before
	})
	if got[0] > maxShortUser {
		t.Errorf("the first user has %d", got[0])
	}
	s.learn(now, now, dest{0, netip.MustParseAddrPort("10.0.0.2:1")}, true)
	if s.users[0] != 1 {
		t.Error("nothing is left for root")
	}
	now = now.Add(2 * rowGap)
	s.learn(now, now, dest{sharetest.First, netip.MustParseAddrPort("10.0.0.2:1")}, true)
	if len(s.dests) != 1 || len(s.users) != 1 {
		t.Errorf("%d peers of %d users are left", len(s.dests), len(s.users))
	}
}

// TestDeclinedBy: the connections that follow one that was declined have the reason of that. What another user or host may
// have caused, or what the next connection finds mended, is not held against the peer.
func TestDeclinedBy(t *testing.T) {
	for _, tt := range []struct {
		d     userstack.DeclineError
		want  smc.Diagnosis
		peer  smc.Diagnosis
		lasts time.Duration
	}{
		{userstack.DeclineError{Code: smc.DiagNoPath}, smc.DiagNoPath, 0, declinedFor},
		{userstack.DeclineError{Code: smc.DiagNoPath, Remote: true}, smc.DiagNoPath, 0, declinedFor},
		{userstack.DeclineError{Code: smc.DiagPrefixMismatch, Remote: true}, smc.DiagPeerDeclined, smc.DiagPrefixMismatch, declinedFor},
		{userstack.DeclineError{Code: smc.DiagPrefixMismatch}, smc.DiagPrefixMismatch, 0, declinedFor},
		{userstack.DeclineError{}, smc.DiagPeerDeclined, 0, declinedFor},
		{userstack.DeclineError{Code: smc.DiagMem}, smc.DiagMem, 0, fullFor},
		{userstack.DeclineError{Code: smc.DiagMem, Remote: true}, smc.DiagPeerDeclined, smc.DiagMem, fullFor},
		{userstack.DeclineError{Code: smc.DiagSync}, smc.DiagSync, 0, 0},
		{userstack.DeclineError{Code: smc.DiagSync, Remote: true}, smc.DiagPeerDeclined, smc.DiagSync, 0},
		{userstack.DeclineError{Code: smc.DiagNoActiveLink}, smc.DiagNoActiveLink, 0, 0},
		{userstack.DeclineError{Code: smc.DiagNoServerLink, Remote: true}, smc.DiagPeerDeclined, smc.DiagNoServerLink, 0},
	} {
		if got := lasts(&tt.d); got != tt.lasts {
			t.Errorf("%+v is remembered for %v, want %v", tt.d, got, tt.lasts)
		}
		if got, want := declinedBy(&tt.d), (divert.Silence{Why: tt.want, PeerWhy: tt.peer}); got != want {
			t.Errorf("%+v: %+v, want %+v", tt.d, got, want)
		}
	}
}
