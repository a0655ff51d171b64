// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/userstack"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// A caller is a client of the attacker, from an address and by a netdev that it has for it.
type caller struct {
	from   netip.Addr
	netdev string
}

// aliases gives the attacker many addresses of the LAN.
func (l *lab) aliases(n int) (all []caller) {
	var batch strings.Builder
	for i := range n {
		from := l.nth(i)
		fmt.Fprintf(&batch, "addr add %s/24 dev %s\n", from, l.C.Links[0].Name)
		all = append(all, caller{from: from})
	}
	l.ip(batch.String())
	return all
}

// machines gives the attacker many Ethernet addresses, with an address of the LAN each.
func (l *lab) machines(n int) (all []caller) {
	var batch strings.Builder
	for i := range n {
		c := caller{l.nth(i), fmt.Sprintf("m%d", i)}
		fmt.Fprintf(&batch, "link add link %s name %s type macvlan mode bridge\n", l.C.Links[0].Name, c.netdev)
		fmt.Fprintf(&batch, "addr add %s/24 dev %s\nlink set %s up\n", c.from, c.netdev, c.netdev)
		all = append(all, c)
	}
	l.ip(batch.String())
	return all
}

// nth returns an address of the LAN that no host has.
func (l *lab) nth(i int) netip.Addr {
	a := l.C.Links[0].IPv4.As4()
	a[3] = byte(4 + i)
	return netip.AddrFrom4(a)
}

// ip has the attacker execute commands of ip.
func (l *lab) ip(batch string) {
	l.t.Helper()
	cmd := l.C.Command(l.t.Context(), "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("ip: %v: %s", err, out)
	}
}

// halfOpen has each caller begin first contacts with B, with peer IDs of their own, of which none is confirmed. It returns how many B
// has accepted, when it has answered all.
func (l *lab) halfOpen(callers []caller, each int) (accepted int) {
	l.t.Helper()
	var list []*Dialog
	l.t.Cleanup(func() {
		for _, d := range list {
			_ = d.Close()
		}
	})
	for i, c := range callers {
		conns, err := l.C.DialFrom(l.t.Context(), c.from, c.netdev, l.B.address(), each)
		if err != nil {
			l.t.Fatal(err)
		}
		list = append(list, conns...)
		for j, d := range conns {
			who := l.C.Own
			who.PeerID[0], who.PeerID[1] = byte(i), byte(j)
			p, err := who.Proposal(eid)
			if err == nil {
				err = d.Send(p)
			}
			if err != nil {
				l.t.Fatal(err)
			}
		}
	}
	for _, d := range list {
		m, err := d.Receive(answerTime)
		switch {
		case err == nil && m.CLCType() == wire.TypeAccept:
			accepted++
		case err != nil || m.CLCType() != wire.TypeDecline:
			l.t.Fatalf("B answers %v, %v", m, err)
		}
	}
	return accepted
}

// TestManyAddresses: a machine with all addresses of its subnet has no more of a server's first contacts than one machine may have. A
// client that the server has never seen uses SMC-R at the same time.
func TestManyAddresses(t *testing.T) {
	l := newLabOf(t, userstack.Config{})
	callers := l.aliases(250)
	begun := time.Now()
	accepted := l.halfOpen(callers, 2)
	// On a slow machine the first ones have ended, for want of a CONFIRM, before the last ones begin.
	most := rendezvous.MaxFirstContactsOfOrigin * (1 + int(time.Since(begun)/rendezvous.MessageWait))
	if accepted < 1 || accepted > most {
		t.Errorf("B has accepted %d first contacts of one machine, want %d at most", accepted, most)
	}
	l.A.dialSMC(t, l.B).Close()
}

// TestManyMachines: an attacker that also makes up Ethernet addresses is as many machines as it wants, and has all first contacts of a
// server that are for strangers. A client with which the server had a link group before uses SMC-R at the same time.
func TestManyMachines(t *testing.T) {
	l := newLabOf(t, userstack.Config{GroupIdle: time.Millisecond})
	l.A.dialSMC(t, l.B).Close()
	if err := netnstest.Until(settleTime, func() error {
		if g := append(l.A.groups(t, nil), l.B.groups(t, nil)...); len(g) > 0 {
			return fmt.Errorf("%d link groups", len(g))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	const strangers = rendezvous.MaxFirstContacts - rendezvous.MaxFirstContacts/rendezvous.KnownShare
	callers := l.machines(strangers + 10)
	begun := time.Now()
	accepted := l.halfOpen(callers, 1)
	// Real time: on a slow machine the first ones have ended, for want of a CONFIRM, before the last ones begin.
	if slow := time.Since(begun) >= rendezvous.MessageWait; accepted < strangers || accepted > strangers && !slow {
		t.Errorf("B has accepted %d first contacts, want %d", accepted, strangers)
	}
	l.A.dialSMC(t, l.B).Close()
}
