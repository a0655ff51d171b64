// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/quota"
	"smcr/smc"
)

// Those who take all that they can of what the programs keep beside connections take none of what others have there.
const (
	victim  = 1000
	greedy  = 2000
	greedys = 12
)

// TestQuietOfUsers has users to whom peers without end decline, some of them by subordinate users.
func TestQuietOfUsers(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	subordinates := []quota.IDs{{First: 100000, Last: 165535, Owner: greedy}}
	b := newBedWith(t, splice, func(c *Config) { c.Subordinates = func() []quota.IDs { return subordinates } })
	d := b.d[0]
	peer := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 78, byte(i >> 8), byte(i)}), 443)
	}
	silence := Silence{For: time.Hour, Why: smc.DiagNoPath}
	for i := range 20 {
		b.must(d.Quiet(victim, peer(i), silence))
	}
	for user := range uint32(greedys) {
		for i := range 2 * userQuiet {
			uid := greedy + user
			if user == 0 && i%2 == 1 {
				uid = 100000 + uint32(i)
			}
			b.must(d.Quiet(uid, peer(i), silence))
		}
	}
	all, err := d.Silences()
	b.must(err)
	of := map[uint32]int{}
	for _, s := range all {
		if s.UID >= 100000 {
			s.UID = greedy
		}
		of[s.UID]++
	}
	if of[victim] != 20 {
		t.Errorf("%d peers of the other user are known, want 20", of[victim])
	}
	for user := range uint32(greedys) {
		if n := of[greedy+user]; n > userQuiet || n < userQuiet*3/4 {
			t.Errorf("user %d has %d, want nearly %d", greedy+user, n, userQuiet)
		}
	}
	// The last one is known, and what is said again of a peer takes no other place.
	last := peer(2*userQuiet - 1)
	for range 10 {
		b.must(d.Quiet(greedy+1, last, silence))
	}
	again, err := d.Silences()
	b.must(err)
	if len(again) != len(all) {
		t.Errorf("%d are known, and then %d", len(all), len(again))
	}
	b.must(d.Quiet(greedy+1, last, Silence{}))
	again, err = d.Silences()
	b.must(err)
	if len(again) != len(all)-1 {
		t.Errorf("%d are known, and one less is %d", len(all), len(again))
	}
}

// TestPlainsOfUsers has a user with many connections that are TCP: why those of another one are TCP stays known, and so it does
// for the latest one of the user.
func TestPlainsOfUsers(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	const most = 2 * seats
	b := newBedWith(t, splice, func(c *Config) { c.plain = most })
	b.must(b.d[1].Close())
	l := b.listen(b.B.Addr())
	connect := func(uid int) {
		t.Helper()
		b.must(b.A.Do(func() error {
			c, err := (&net.Dialer{Control: chowned(uid)}).Dial("tcp", l.Addr().String())
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		}))
	}
	for range 3 {
		connect(victim)
	}
	latest := uint64(0)
	for i := range 6 * most {
		before, err := b.d[0].Plains()
		b.must(err)
		connect(greedy)
		after, err := b.d[0].Plains()
		b.must(err)
		latest = 0
		for cookie, p := range after {
			if _, had := before[cookie]; !had && p.UID == greedy && p.Why == smc.DiagPeerNoSMC {
				latest = cookie
			}
		}
		if latest == 0 {
			t.Fatalf("connection %d is not known", i)
		}
	}
	all, err := b.d[0].Plains()
	b.must(err)
	of := map[uint32]int{}
	for _, p := range all {
		of[p.UID]++
	}
	if of[victim] != 3 || of[greedy] > most || of[greedy] < seats {
		t.Errorf("known are %v, want 3 of %d, and %d to %d of %d", of, victim, seats, most, greedy)
	}
}
