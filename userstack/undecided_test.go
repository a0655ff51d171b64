// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/quota"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// holder is an OptionMarker that notes to whom nothing is to be announced.
type holder struct {
	network.OptionMarker
	held []string
}

func (h *holder) Hold(o quota.Origin, d time.Duration, known []netip.Addr) error {
	who := "strangers"
	if o != (quota.Origin{}) {
		who = o.String()
	}
	h.held = append(h.held, fmt.Sprintf("%s for %v but %v", who, d, known))
	return nil
}

// TestUndecidedShares: whoever has the share of an origin is told nothing for a time, and then, if made up Ethernet addresses take what all
// strangers may have, those are, but for hosts that are known. A place is given back once.
func TestUndecidedShares(t *testing.T) {
	testkind.System(t)
	s, err := New(Config{NoOption: true, Providers: []rdmaverbs.Provider{noDevices{}}, Hostname: "host"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h := &holder{}
	s.opt.marker = h
	defer func() { s.opt.marker = nil }()
	u := &s.undecided
	from := func(i int) rendezvous.Caller {
		return rendezvous.Caller{Host: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Origin: quota.OriginOfNeighbour([6]byte{2, 4: byte(i >> 8), 5: byte(i)})}
	}
	friend := from(1)
	s.limit.meet(friend)
	friend.Known = true
	var places []*undecidedPlace
	enter := func(who rendezvous.Caller) (p *undecidedPlace) {
		t.Helper()
		p, full, strangers := u.enter(who)
		if full {
			s.full(who, strangers)
		}
		places = append(places, p)
		return p
	}
	greedy := from(1000)
	n := 0
	for ; !enter(greedy).over; n++ {
	}
	if want := (rendezvous.MaxUndecided - rendezvous.MaxUndecided/rendezvous.KnownShare) / 2; n != want || u.roomy(time.Now()) {
		t.Errorf("an origin has %d places, want %d", n, want)
	}
	want := greedy.Origin.String() + " for 1s but []"
	if !slices.Equal(h.held, []string{want, want}) { // with the last place, and beyond it
		t.Errorf("announced nothing: %q, want twice %q", h.held, want)
	}
	if code := u.why(time.Now(), greedy); code != smc.DiagMem {
		t.Errorf("the reason is %v", code)
	}
	if code := u.why(time.Now(), from(2000)); code != 0 {
		t.Errorf("another one is not announced to: %v", code)
	}
	h.held = nil
	for i := 1001; !enter(from(i)).over; i++ {
	}
	enter(from(3000))
	if want := fmt.Sprintf("strangers for 1s but [%s]", friend.Host); !slices.Contains(h.held, want) || h.held[len(h.held)-1] != want || len(h.held) > 3 {
		t.Errorf("announced nothing: %q, want %q in the end, and not again and again", h.held, want)
	}
	if enter(friend).over {
		t.Error("one that is known has no place")
	}
	for _, p := range places {
		p.leave()
		p.leave()
	}
	if n := u.places.Total(); n != 0 || !u.roomy(time.Now()) {
		t.Errorf("%d places are taken by nobody", n)
	}
	((*undecidedPlace)(nil)).leave()
}

// TestUndecidedSilence: only who says nothing is silent, and not for ever.
func TestUndecidedSilence(t *testing.T) {
	u := &undecided{places: rendezvous.NewUndecidedLimit()}
	now := time.Unix(1e9, 0)
	who := rendezvous.Caller{Host: netip.MustParseAddr("192.0.2.1"), Origin: quota.OriginOfNeighbour([6]byte{2})}
	outcome := func(n int, err error) (mute time.Duration) {
		for range n {
			mute = max(mute, u.decided(now, who, err))
		}
		return mute
	}
	if m := outcome(100, fmt.Errorf("reset")); m != 0 {
		t.Errorf("one that resets is silent for %v", m)
	}
	late := fmt.Errorf("userstack: %w", os.ErrDeadlineExceeded)
	if m := outcome(quota.SilentMost, late); m != 0 {
		t.Errorf("%v for a few", m)
	}
	outcome(1, nil)
	if m := outcome(quota.SilentMost/2, late); m != 0 {
		t.Errorf("%v after one over SMC-R", m)
	}
	if m := outcome(1, late); m != quota.MuteFirst || u.why(now, who) != smc.DiagSilent || u.roomy(now) || len(u.mutes(now)) != 1 {
		t.Errorf("for %v, want %v: %v", m, quota.MuteFirst, u.mutes(now))
	}
	now = now.Add(quota.MuteFirst)
	if u.why(now, who) != 0 || !u.roomy(now) || len(u.mutes(now)) != 0 {
		t.Error("silent for ever")
	}
}
