// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"smcr/internal/testing/sharetest"
	"smcr/quota"
	"smcr/smc"
	"smcr/userstack/internal/inside"
)

// TestAccounts checks what is counted, in which order the limits apply, and that a
// refused connection is not counted.
func TestAccounts(t *testing.T) {
	a := accounts{max: Limits{Memory: 1000, UserMemory: 600, Conns: 4, UserConns: 2}, exempt: 7}
	for i, tt := range []struct {
		give   bool
		user   uint32
		memory int64
		want   string // "" means no error
	}{
		{false, 1, 500, ""},
		{false, 1, 101, "userstack: limit of the stack: 600 bytes of memory for connections of user 1"},
		{false, 1, 100, ""},
		{false, 1, 0, "userstack: limit of the stack: 2 connections of user 1"},
		{false, 2, 401, "userstack: limit of the stack: 1000 bytes of memory for connections"},
		{false, 2, 100, ""},
		{false, 7, 100, ""},
		{false, 0, 0, "userstack: limit of the stack: 4 connections"},
		{true, 1, 500, ""},
		{false, 0, 1, ""},
		{true, 1, 100, ""},
		{true, 0, 1, ""},
		{false, 0, 700, ""},
		{false, 7, 100, ""},
		{true, 7, 100, ""},
		{true, 7, 100, ""},
		{true, 0, 700, ""},
		{true, 2, 100, ""},
	} {
		var err error
		if tt.give {
			a.give(tt.user, tt.memory)
		} else {
			err = a.take(tt.user, tt.memory)
		}
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%d: %q, want %q", i, got, tt.want)
		}
	}
	if a.all != (account{}) || len(a.users) > 0 {
		t.Errorf("left: %+v, %v", a.all, a.users)
	}
}

// TestAccountsOfUsers: users who together have all memory and connections that they can leave some
// for the next user, unless the administrator gives one user more than half.
func TestAccountsOfUsers(t *testing.T) {
	for name, tt := range map[string]struct {
		max   Limits
		users int
	}{
		"memory":      {Limits{Memory: 1 << 30, UserMemory: 1 << 29}, 10},
		"connections": {Limits{Conns: 10000, UserConns: 2500}, 14},
		"more":        {Limits{Memory: 1 << 30, UserMemory: 1 << 30}, 1},
		"no limit":    {Limits{Memory: 1 << 30}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := accounts{max: tt.max}
			const each = 1 << 20
			got := sharetest.Users(t, tt.users, func(uid uint32) bool { return a.take(uid, each) == nil })
			if want := min(10000, max(int(tt.max.UserMemory/each), tt.max.UserConns)); want > 0 && got[0] != want {
				t.Errorf("%v, want %d for the first", got, want)
			}
			var e *LimitError
			if err := a.take(sharetest.First, each); !errors.As(err, &e) || e.Max <= 0 {
				t.Errorf("beyond: %v", err)
			}
		})
	}
}

// TestLimits: at a limit, a connection is refused. Existing connections continue, and
// there is room again when one has ended.
func TestLimits(t *testing.T) {
	const each = 128 << 10 // bytes of the buffers of a connection
	for name, max := range map[string]Limits{
		"memory":           {Memory: 2 * each},
		"memory of a user": {UserMemory: 2*each + 1},
		"connections":      {Conns: 2},
		"user connections": {UserConns: 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, func(c *Config) { c.Limits = max })
				b.client.s.accounts.exempt = 1
				b.owner = inside.Owner{UID: 1000}
				c1, s1 := b.connect()
				c2, s2 := b.connect()
				cc, _ := b.tcp()
				accept := b.accept()
				c, err := b.client.Join(b.demand(accept), cc)
				if _, ok := errors.AsType[*LimitError](err); !ok || c != nil {
					t.Errorf("%v, %v, want a *LimitError", c, err)
				}
				b.exchange(c1, s1, pattern(1, 100_000))
				b.exchange(s2, c2, pattern(2, 100_000))
				b.finish(c1, s1)
				b.finish(b.connect())
				b.finish(c2, s2)
				if a := &b.client.s.accounts; a.all != (account{}) {
					t.Errorf("%+v are counted without connections", a.all)
				}
			})
		})
	}
}

// TestLimitOfGroups: a link group counts until it has released its memory.
func TestLimitOfGroups(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, func(c *Config) { c.Limits = Limits{Groups: 1} })
		c, s := b.connect()
		lan, ports := b.lan(b.client, b.server)
		another := func() (*Group, error) {
			return b.client.NewGroup(GroupConfig{Role: smc.Client, PeerID: b.server.id, LocalPeerID: b.client.id, LAN: lan, Ports: ports})
		}
		if _, err := another(); err == nil {
			t.Error("a second link group")
		} else if _, ok := errors.AsType[*LimitError](err); !ok {
			t.Errorf("%v, want a *LimitError", err)
		}
		b.exchange(c, s, pattern(1, 1000))
		c.g.Drop(nil)
		b.ended(c)
		b.ended(s)
		time.Sleep(settled)
		for name, d := range map[string]*Driver{"client": b.client.Driver, "server": b.server.Driver} {
			d.mu.Lock()
			n := d.makers.Total()
			d.mu.Unlock()
			if n != 0 {
				t.Errorf("%s: %d link groups are counted", name, n)
			}
		}
		g, err := another()
		if err != nil {
			t.Fatal(err)
		}
		g.Drop(nil)
	})
}

// TestLimitOfMakers: users who connect to as many hosts as they can, and hosts that connect from as many addresses as they have, leave
// some link groups for others.
func TestLimitOfMakers(t *testing.T) {
	for _, most := range []int{64, defaultGroupsOfTest} {
		d := &Driver{}
		d.s.Limits.Groups, d.s.accounts.exempt = most, 4711
		begin := func(c GroupConfig) bool {
			by := makerOf(&c)
			if err := d.mayMake(by); err != nil {
				if _, ok := errors.AsType[*LimitError](err); !ok {
					t.Fatalf("%v, want a *LimitError", err)
				}
				return false
			}
			d.makers.Add(by)
			return true
		}
		address := 0
		got := sharetest.Users(t, 6, func(uid uint32) bool {
			c := GroupConfig{Role: smc.Client, Owner: uid}
			if uid%2 == 1 { // a host of the LAN, with another address each time
				address++
				remote := netip.AddrFrom16([16]byte{0xfd, byte(uid), 14: byte(address >> 8), 15: byte(address)})
				c = GroupConfig{Role: smc.Server, LAN: LAN{Remote: remote, Origin: quota.OriginOfNeighbour([6]byte{2, 5: byte(uid)})}}
			}
			return begin(c)
		})
		if got[0] > most/groupsShare {
			t.Errorf("the first has %d of %d", got[0], most)
		}
		for _, uid := range []uint32{0, d.s.accounts.exempt} {
			for range 2 {
				if d.makers.Total() < most && !begin(GroupConfig{Role: smc.Client, Owner: uid}) {
					t.Errorf("user %d has a bound", uid)
				}
			}
		}
		// Whoever has none has a place as long as there is one.
		for i := 0; d.makers.Total() < most; i++ {
			if !begin(GroupConfig{Role: smc.Client, Owner: uint32(90000 + i)}) {
				t.Fatalf("no place, with %d of %d", d.makers.Total(), most)
			}
		}
		if begin(GroupConfig{Role: smc.Client}) {
			t.Error("more link groups than there may be")
		}
	}
}

// defaultGroupsOfTest is as many as a stack has by default.
const defaultGroupsOfTest = 4096
