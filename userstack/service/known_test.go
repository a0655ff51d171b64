// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"smcr/quota"
	"smcr/userstack/internal/inside"
	"smcr/userstack/internal/takeover"
)

// knownBy returns whom a service knows, by address, with ages in minutes.
func knownBy(s *Service) []inside.Known {
	all := s.in.Known()
	for i := range all {
		all[i].Age = all[i].Age.Truncate(time.Minute)
	}
	slices.SortFunc(all, func(a, b inside.Known) int { return a.Host.Compare(b.Host) })
	return all
}

// TestKnownTakenOver: the hosts that a stack knows are known to the next one, and for no longer, neighbours and those behind a router.
func TestKnownTakenOver(t *testing.T) {
	checkLeaks(t)
	inNamespace(t, func(t *testing.T) {
		at := netip.MustParseAddr
		want := []inside.Known{
			{Host: at("192.0.2.1"), Origin: quota.OriginOfNeighbour([6]byte{2, 5: 1}), Age: 5 * time.Minute},
			{Host: at("198.51.100.7"), Origin: quota.OriginOfNetwork(at("198.51.100.7")), Age: 3 * time.Hour},
			{Host: at("2001:db8:1:2::"), Origin: quota.OriginOfNetwork(at("2001:db8:1:2::1")), Age: 0},
			{Host: at("fd00::1"), Origin: quota.OriginOfNeighbour([6]byte{2, 5: 2}), Age: 23 * time.Hour},
		}
		cfg := Config{Release: "old"}
		s, err := New(cfg)
		if err != nil {
			t.Error(err)
			return
		}
		s.in.Recall(want)
		wait := running(t, s)
		p, err := Approach(t.Context(), "new")
		if err != nil {
			t.Error(err)
			return
		}
		next := cfg
		next.Predecessor = p
		n, err := New(next)
		if err == nil {
			err = errors.Join(n.Freeze(), n.Assume())
		}
		if err != nil {
			t.Error(err)
			return
		}
		waitNext := running(t, n)
		if got := knownBy(n); !slices.Equal(got, want) {
			t.Errorf("known are\n%+v, want\n%+v", got, want)
		}
		if err := cmp.Or(wait(false), waitNext(true)); err != nil {
			t.Error(err)
		}
	})
}

// TestKnownOfOthers: what a release has not handed over is unknown, and what is no host is left out.
func TestKnownOfOthers(t *testing.T) {
	host := netip.MustParseAddr("192.0.2.1")
	for name, tt := range map[string]struct {
		m    takeover.Message
		want []inside.Known
	}{
		"a release before":   {takeover.Message{Type: takeover.Frozen}, nil},
		"no host":            {takeover.Message{Known: []takeover.Known{{MAC: []byte{2, 0, 0, 0, 0, 1}}}}, nil},
		"a time to come":     {takeover.Message{Known: []takeover.Known{{Host: host, Age: -1}}}, nil},
		"before the epoch":   {takeover.Message{Known: []takeover.Known{{Host: host, Age: 1 << 62}}}, nil},
		"another link layer": {takeover.Message{Known: []takeover.Known{{Host: host, MAC: make([]byte, 20)}}}, []inside.Known{{Host: host, Origin: quota.OriginOfNetwork(host)}}},
		"a neighbour":        {takeover.Message{Known: []takeover.Known{{Host: host, MAC: []byte{2, 0, 0, 0, 0, 1}, Age: 60}}}, []inside.Known{{Host: host, Origin: quota.OriginOfNeighbour([6]byte{2, 5: 1}), Age: time.Minute}}},
	} {
		if got := knownIn(&tt.m); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}
