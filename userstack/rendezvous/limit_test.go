// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net/netip"
	"testing"
	"time"

	"smcr/internal/testing/sharetest"
	"smcr/quota"
	"smcr/smc"
)

// hostN returns the address of one of many hosts.
func hostN(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// caller returns one of many hosts of the LAN.
func caller(n int) Caller {
	return Caller{Host: hostN(n), Origin: quota.OriginOfNeighbour([6]byte{2, 4: byte(n >> 8), 5: byte(n)})}
}

// known returns it as one that is known.
func known(n int) Caller {
	c := caller(n)
	c.Known = true
	return c
}

// TestLimits: one host cannot take what all have, hosts that take all that they can leave some for others, all together cannot take more than
// there is, and what has ended is not counted any more.
func TestLimits(t *testing.T) {
	l := newLimit("tests", 10, 4, 4)
	for i, want := range []int{4, 3, 1, 1, 1, 0} {
		n := 0
		no := l.Enter(known(i))
		for ; no == nil; no = l.Enter(known(i)) {
			n++
		}
		if n != want {
			t.Fatalf("host %d has %d, want %d", i, n, want)
		}
		if no.Code != smc.DiagMem {
			t.Errorf("refused with %s", no.Code)
		}
	}
	if l.Total() != 10 {
		t.Errorf("%d are under way, want 10", l.Total())
	}
	l.Leave(known(0))
	if no := l.Enter(known(7)); no != nil {
		t.Errorf("one has ended, and there is no room for another: %v", no)
	}
	for i, n := range []int{3, 3, 1, 1, 1, 0, 0, 1} {
		for range n {
			l.Leave(known(i))
		}
	}
	if l.Total() != 0 || l.origins.Total() != 0 || l.strangers != 0 {
		t.Errorf("all have ended, %d are counted, of %d origins, %d of strangers", l.Total(), l.origins.Total(), l.strangers)
	}
}

// TestHandshakeLimit: of what a server has under way, one host has its share at most, and strangers leave the rest to hosts that are known. Hosts
// that have as many as they can do not keep others out.
func TestHandshakeLimit(t *testing.T) {
	for _, tt := range []struct {
		l         *Limit
		host, all int
		hosts     int // that have all they can
	}{
		{NewHandshakeLimit(), MaxHandshakesOfHost, MaxHandshakes, 10},
		{NewFirstContacts().limit, MaxFirstContactsOfHost, MaxFirstContacts, 8},
		{NewUndecidedLimit(), (MaxUndecided - MaxUndecided/KnownShare) / 2, MaxUndecided, 10},
	} {
		strangers := tt.all - tt.all/KnownShare
		got := sharetest.Users(t, tt.hosts, func(uid uint32) bool { return tt.l.Enter(caller(int(uid))) == nil })
		if got[0] != tt.host {
			t.Errorf("one host has %d, want %d", got[0], tt.host)
		}
		for i := 0; tt.l.Enter(caller(i)) == nil; i++ {
		}
		if n := tt.l.Total(); n != strangers || !tt.l.FullForStrangers() || tt.l.Refuses(known(2000)) != nil {
			t.Errorf("%d with strangers, want %d, and then no more with them, but with others", n, strangers)
		}
		for i := 2000; tt.l.Enter(known(i)) == nil; i++ {
		}
		if n := tt.l.Total(); n != tt.all {
			t.Errorf("%d in all, want %d", n, tt.all)
		}
		tt.l.Leave(caller(0))
		if tt.l.Enter(caller(9999)) != nil {
			t.Error("a stranger has left, and there is no place for the next one")
		}
	}
}

// TestLimitOfOrigin: one machine with many addresses of the LAN, of IPv4 or IPv6, has what one machine may have, and so have the hosts of a
// network behind a router. Its neighbours have theirs.
func TestLimitOfOrigin(t *testing.T) {
	mac := [6]byte{2, 5: 9}
	for name, attacker := range map[string]func(i int) Caller{
		"IPv4": func(i int) Caller { return Caller{Host: hostN(i), Origin: quota.OriginOfNeighbour(mac)} },
		"IPv6": func(i int) Caller {
			return Caller{Host: netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}), Origin: quota.OriginOfNeighbour(mac)}
		},
		"routed": func(i int) Caller {
			host := netip.AddrFrom4([4]byte{10, 9, 8, byte(i)})
			return Caller{Host: host, Origin: quota.OriginOfNetwork(host)}
		},
	} {
		l := NewFirstContacts().limit
		for i := range 1000 {
			_ = l.Enter(attacker(i))
		}
		if l.Total() != MaxFirstContactsOfOrigin {
			t.Errorf("%s: one machine has %d first contacts, want %d", name, l.Total(), MaxFirstContactsOfOrigin)
		}
		// One with an address of the same subnet has all that it may have.
		neighbour := Caller{Host: attacker(2000).Host, Origin: caller(1).Origin}
		for i := range MaxFirstContactsOfHost {
			if no := l.Enter(neighbour); no != nil {
				t.Errorf("%s: first contact %d of a neighbour: %v", name, i, no)
			}
		}
	}
}

// TestKnown: a host is known for some time after a connection, not by the address alone, and whoever has many addresses has no others forgotten.
func TestKnown(t *testing.T) {
	k, now := NewKnown(), time.Unix(1, 0)
	good := caller(1)
	k.Meet(now, good)
	other := Caller{Host: good.Host, Origin: caller(2).Origin}
	if !k.Knows(now, good) || k.Knows(now, other) || k.Knows(now, caller(3)) {
		t.Error("known is not who was met")
	}
	for i := range 3 * MaxKnown {
		now = now.Add(time.Second)
		k.Meet(now, Caller{Host: hostN(100 + i), Origin: quota.OriginOfNeighbour([6]byte{9})})
		if i == 0 {
			k.Meet(now, caller(4))
		}
	}
	if len(k.hosts) != MaxKnownOfOrigin+2 || !k.Knows(now, good) || !k.Knows(now, caller(4)) {
		t.Errorf("%d are known, want %d", len(k.hosts), MaxKnownOfOrigin+2)
	}
	// Many machines, with a few addresses each: it is theirs that go, not that of a machine with one.
	for i := range 4 * MaxKnown {
		now = now.Add(time.Second)
		k.Meet(now, Caller{Host: hostN(5000 + i), Origin: quota.OriginOfNeighbour([6]byte{8, 5: byte(i % 100)})})
	}
	if len(k.hosts) != MaxKnown || !k.Knows(now, good) || !k.Knows(now, caller(4)) {
		t.Errorf("%d are known, want %d and the first", len(k.hosts), MaxKnown)
	}
	k.Meet(now, caller(4))
	k.Meet(now, other) // the address is another machine's now
	if k.Knows(now, good) || !k.Knows(now, other) {
		t.Error("known is not who was met last")
	}
	now = now.Add(KnownFor)
	if k.Knows(now, caller(4)) {
		t.Error("known for ever")
	}
	k.Meet(now, caller(6))
	if len(k.hosts) != 1 {
		t.Errorf("%d are kept, want 1", len(k.hosts))
	}
}

// TestFirstContacts: a client has one first contact at a time, different clients do not
// wait for each other, and a host that proposes in the name of another one is another
// client.
func TestFirstContacts(t *testing.T) {
	f := NewFirstContacts()
	begin := func(c Contact, wantBusy, wantRefused bool) {
		t.Helper()
		busy, no := f.Begin(c, caller(int(c.Host.As4()[2])<<8|int(c.Host.As4()[3])))
		if busy != wantBusy || (no != nil) != wantRefused {
			t.Fatalf("%s: busy %v, refused %v; want %v, %v", c, busy, no, wantBusy, wantRefused)
		}
	}
	a := Contact{Host: hostN(1), PeerID: testPeer}
	begin(a, false, false)
	begin(a, true, false)
	inItsName := Contact{Host: hostN(2), PeerID: testPeer}
	begin(inItsName, false, false)
	begin(Contact{Host: hostN(1), PeerID: testOwn}, false, false)
	begin(Contact{Host: hostN(1), PeerID: testPeer, GID: testGIDv2}, false, false)
	f.End(a)
	begin(a, false, false)
	for i := range MaxFirstContactsOfHost {
		begin(Contact{Host: hostN(2), GID: smc.GID{14: 1, 15: byte(i)}}, false, i == MaxFirstContactsOfHost-1)
	}
	f.End(Contact{Host: hostN(9)}) // has not begun
	n := 3 + MaxFirstContactsOfHost
	for i := 3; n < MaxFirstContacts*(KnownShare-1)/KnownShare; i++ {
		begin(Contact{Host: hostN(i)}, false, false)
		n++
	}
	begin(Contact{Host: hostN(1000)}, false, true)
	f.End(inItsName)
	begin(Contact{Host: hostN(1000)}, false, false)
}

// TestWithin: of another bound, a host has a half at most, and leaves some for the next one.
func TestWithin(t *testing.T) {
	l := newLimit("tests", 100, 100, 100)
	for i, want := range []int{8, 4, 2, 1, 1, 0} {
		n := 0
		for ; l.Within(known(i), 16); n++ {
			if no := l.Enter(known(i)); no != nil {
				t.Fatal(no)
			}
		}
		if n != want {
			t.Errorf("host %d has %d of 16, want %d", i, n, want)
		}
	}
}

// TestProposalWait: a server that has less time for a client waits for PROPOSAL for no longer.
func TestProposalWait(t *testing.T) {
	now := time.Unix(1, 0)
	for wait, want := range map[time.Duration]time.Duration{0: MessageWait, time.Second: time.Second} {
		m := NewServer(now, Config{ProposalWait: wait})
		m.Handle(now, Prepared{})
		if got := m.Deadline().Sub(now); m.State() != AwaitProposal || got != want {
			t.Errorf("%v: %v in state %s, want %v", wait, got, m.State(), want)
		}
	}
}

// TestRecall: what another process knows is known here for as long as there, and what this one knows itself is later.
func TestRecall(t *testing.T) {
	now := time.Unix(1e9, 0)
	old := NewKnown()
	old.Meet(now.Add(-KnownFor), caller(1))
	old.Meet(now.Add(-time.Hour), caller(2))
	old.Meet(now, caller(3))
	k := NewKnown()
	other := Caller{Host: caller(3).Host, Origin: caller(4).Origin}
	k.Meet(now, other) // the address is that of another machine by now
	for m := range old.All(now.Add(-time.Second)) {
		k.Recall(now, m)
	}
	k.Recall(now, Met{caller(5).Host, caller(5).Origin, now.Add(time.Hour)}) // whose clock is that?
	if k.Knows(now, caller(1)) || !k.Knows(now, caller(2)) || k.Knows(now, caller(3)) || !k.Knows(now, other) || k.Knows(now, caller(5)) {
		t.Errorf("known are %v", k.hosts)
	}
	if later := now.Add(KnownFor - time.Hour); k.Knows(later, caller(2)) || !k.Knows(later, other) {
		t.Error("one is known for longer than it was there")
	}
	for i := range 3 * MaxKnown {
		k.Recall(now, Met{hostN(i), quota.OriginOfNeighbour([6]byte{9}), now.Add(-time.Minute)})
	}
	if len(k.hosts) > MaxKnownOfOrigin+2 {
		t.Errorf("%d are known", len(k.hosts))
	}
}
