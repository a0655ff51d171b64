// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net/netip"
	"testing"

	"smcr/internal/testing/sharetest"
	"smcr/smc"
)

// hostN returns the address of one of many hosts.
func hostN(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// TestLimits: one host cannot take what all have, hosts that take all that they can leave some for others, all together cannot take more than
// there is, and what has ended is not counted any more.
func TestLimits(t *testing.T) {
	l := newLimit("tests", 10, 4)
	for i, want := range []int{4, 3, 1, 1, 1, 0} {
		n := 0
		no := l.Enter(hostN(i))
		for ; no == nil; no = l.Enter(hostN(i)) {
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
	l.Leave(hostN(0))
	if no := l.Enter(hostN(7)); no != nil {
		t.Errorf("one has ended, and there is no room for another: %v", no)
	}
	for i, n := range []int{3, 3, 1, 1, 1, 0, 0, 1} {
		for range n {
			l.Leave(hostN(i))
		}
	}
	if l.Total() != 0 || len(l.hosts) != 0 {
		t.Errorf("all have ended, %d are counted, of hosts %v", l.Total(), l.hosts)
	}
}

// TestHandshakeLimit: a server has at most MaxHandshakesOfHost rendezvous with one host under
// way, and MaxHandshakes in all. Hosts that have as many as they can do not keep others out.
func TestHandshakeLimit(t *testing.T) {
	for _, tt := range []struct {
		l         *Limit
		host, all int
		hosts     int // that have all they can
	}{
		{NewHandshakeLimit(), MaxHandshakesOfHost, MaxHandshakes, 10},
		{NewFirstContacts().limit, MaxFirstContactsOfHost, MaxFirstContacts, 8},
	} {
		got := sharetest.Users(t, tt.hosts, func(uid uint32) bool { return tt.l.Enter(hostN(int(uid))) == nil })
		if got[0] != tt.host {
			t.Errorf("one host has %d, want %d", got[0], tt.host)
		}
		for i := 0; tt.l.Enter(hostN(i)) == nil; i++ {
		}
		if n := tt.l.Total(); n != tt.all {
			t.Errorf("%d in all, want %d", n, tt.all)
		}
	}
}

// TestFirstContacts: a client has one first contact at a time, different clients do not
// wait for each other, and a host that proposes in the name of another one is another
// client.
func TestFirstContacts(t *testing.T) {
	f := NewFirstContacts()
	begin := func(c Contact, wantBusy, wantRefused bool) {
		t.Helper()
		busy, no := f.Begin(c)
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
	for i := 3; n < MaxFirstContacts; i++ {
		begin(Contact{Host: hostN(i)}, false, false)
		n++
	}
	begin(Contact{Host: hostN(1000)}, false, true)
	f.End(inItsName)
	begin(Contact{Host: hostN(1000)}, false, false)
}

// TestWithin: of another bound, a host has a half at most, and leaves some for the next one.
func TestWithin(t *testing.T) {
	l := newLimit("tests", 100, 100)
	for i, want := range []int{8, 4, 2, 1, 1, 0} {
		n := 0
		for ; l.Within(hostN(i), 16); n++ {
			if no := l.Enter(hostN(i)); no != nil {
				t.Fatal(no)
			}
		}
		if n != want {
			t.Errorf("host %d has %d of 16, want %d", i, n, want)
		}
	}
}
