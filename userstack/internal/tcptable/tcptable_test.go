// SPDX-License-Identifier: Apache-2.0

package tcptable

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"smcr/guard"
	"smcr/internal/testing/sharetest"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/internal/inside"
)

// sockets is a kernel with TCP sockets, by cookie.
type sockets struct{ sync.Map }

func (k *sockets) scan(found func(cookie, cgroup uint64, c nl.Connection)) error {
	k.Range(func(cookie, c any) bool {
		found(cookie.(uint64), 0, c.(nl.Connection))
		return true
	})
	return nil
}

// TestTable checks what a table lists, and when it removes entries.
func TestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := func(inode uint64, uid uint32) nl.Connection {
			return nl.Connection{State: smc.StateActive, Inode: inode, UID: uid, Remote: netip.MustParseAddrPort("192.0.2.1:80")}
		}
		var k sockets
		for cookie, c := range map[uint64]nl.Connection{
			1: conn(11, 1000), 2: conn(12, 0), 3: conn(13, 1001), 4: {State: smc.StateListen, Inode: 14, UID: 1000}, 99: conn(99, 1000),
		} {
			k.Store(cookie, c)
		}
		p := New(new(guard.Guard), k.scan)
		reason := nl.ConnFallback{Reason: 0x03010000}
		p.Note(1, inside.TCPSocket{Owner: inside.Owner{UID: 1000, PID: 7, Command: "curl"}, Fallback: reason})
		p.Note(2, inside.TCPSocket{Owner: inside.Owner{UID: 1000, PID: 8, Command: "liar"}, Fallback: reason}) // a socket of root
		p.Note(3, inside.TCPSocket{Owner: inside.Owner{UID: 0, PID: 9, Command: "root"}, Fallback: reason})    // a socket whose process has changed its user
		p.Note(4, inside.TCPSocket{Owner: inside.Owner{UID: 1000, PID: 7, Command: "nginx"}})
		p.Note(5, inside.TCPSocket{Owner: inside.Owner{UID: 1000, PID: 7, Command: "ended"}, Fallback: reason})
		p.Note(0, inside.TCPSocket{Owner: inside.Owner{UID: 1000, PID: 7, Command: "no cookie"}, Fallback: reason})
		want := func(inodes ...uint64) {
			t.Helper()
			rows, err := p.Rows()
			if err != nil {
				t.Fatal(err)
			}
			var got []uint64
			for _, r := range rows {
				got = append(got, r.Inode)
			}
			if diff := cmp.Diff(inodes, got); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		}
		want(11, 13, 14)
		rows, _ := p.Rows()
		if diff := cmp.Diff(nl.Connection{
			State: smc.StateActive, Mode: nl.ModeTCP, Inode: 11, UID: 1000, Cookie: 1, PID: 7, Command: "curl",
			Remote: netip.MustParseAddrPort("192.0.2.1:80"), Fallback: reason,
		}, rows[0], cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("row (-want +got):\n%s", diff)
		}
		if r := rows[2]; r.State != smc.StateListen || r.Mode != nl.ModeSMCR || r.Fallback != (nl.ConnFallback{}) {
			t.Errorf("listener: %+v", r)
		}

		// A socket that one scan does not find, but the next one does, stays.
		k.Delete(uint64(1))
		want(13, 14)
		k.Store(uint64(1), conn(11, 1000))
		want(11, 13, 14)

		// A socket that does not exist yet has some time to appear. A socket that has
		// ended is removed even if nobody lists.
		k.Delete(uint64(3))
		time.Sleep(grace - time.Second)
		k.Store(uint64(5), conn(15, 1000))
		want(11, 14, 15)
		k.Delete(uint64(5))
		time.Sleep(2*sweepEvery + 2*time.Second)
		p.mu.Lock()
		if len(p.socks) != 2 || p.users[1000] != 2 || p.users[0] != 0 {
			t.Errorf("remembered: %v, %v", p.socks, p.users)
		}
		p.mu.Unlock()

		k.Clear()
		time.Sleep(4 * sweepEvery)
		p.mu.Lock()
		if len(p.socks) != 0 || len(p.users) != 0 || p.timer != nil {
			t.Errorf("remembered: %v, %v, %v", p.socks, p.users, p.timer)
		}
		p.mu.Unlock()
		p.Note(1, inside.TCPSocket{Owner: inside.Owner{UID: 1000}})
		p.Close()
		p.Note(2, inside.TCPSocket{Owner: inside.Owner{UID: 1000}})
		want()
	})
}

// TestUndecided: a connection that is undecided is listed as one in INIT, and one that is decided while a listing begins is listed as what it is.
func TestUndecided(t *testing.T) {
	var k sockets
	for cookie := range uint64(2) {
		k.Store(cookie+1, nl.Connection{State: smc.StateActive, Inode: 11 + cookie, UID: 1000, Remote: netip.MustParseAddrPort("192.0.2.1:80")})
	}
	p := New(new(guard.Guard), k.scan)
	defer p.Close()
	reason := nl.ConnFallback{Reason: 0x03010000}
	p.ListAlso(func() func(cookie, cgroup uint64, c nl.Connection) (inside.TCPSocket, bool) {
		p.Note(2, inside.TCPSocket{Owner: inside.Owner{UID: 1000}, Fallback: reason})
		return func(_, _ uint64, c nl.Connection) (inside.TCPSocket, bool) {
			return inside.TCPSocket{Owner: inside.Owner{UID: c.UID}, Undecided: true}, true
		}
	})
	rows, err := p.Rows()
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if r := rows[0]; r.State != smc.StateInit || r.Mode != nl.ModeSMCR || r.Cookie != 1 || r.UID != 1000 || r.Fallback != (nl.ConnFallback{}) {
		t.Errorf("undecided: %+v", r)
	}
	if r := rows[1]; r.State != smc.StateActive || r.Mode != nl.ModeTCP || r.Cookie != 2 || r.Fallback != reason {
		t.Errorf("decided: %+v", r)
	}
}

// TestLimits checks that no user has more than a share of the entries, that all users
// together have no more than the limit, and that sockets that have ended make room.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k sockets
		p := New(new(guard.Guard), k.scan)
		defer p.Close()
		cookie := uint64(0)
		fill := func(uid uint32, n int) {
			for range n {
				cookie++
				p.Note(cookie, inside.TCPSocket{Owner: inside.Owner{UID: uid}})
			}
		}
		size := func(uid uint32, want, all int) {
			t.Helper()
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.users[uid] != want || len(p.socks) != all {
				t.Errorf("%d sockets of user %d, %d in all; want %d, %d", p.users[uid], uid, len(p.socks), want, all)
			}
		}
		fill(1000, maxUser+100)
		size(1000, maxUser, maxUser)
		fill(1001, 10)
		size(1001, 10, maxUser+10)
		fill(0, maxSockets)
		size(0, maxSockets-maxUser-10, maxSockets)
		p.Note(1, inside.TCPSocket{Owner: inside.Owner{UID: 1000}}) // the same socket again
		size(1000, maxUser, maxSockets)
		// None of these sockets exists.
		time.Sleep(grace + time.Second)
		fill(1001, 1)
		time.Sleep(3 * time.Second)
		fill(1001, 1)
		time.Sleep(3 * time.Second)
		fill(1001, 1)
		size(1001, 2, 2)
	})
}

// TestMemory: what many sockets took is given back, and those that exist stay.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k sockets
		k.Store(uint64(7), nl.Connection{State: smc.StateActive, Inode: 70, Remote: netip.MustParseAddrPort("192.0.2.1:80")})
		p := New(new(guard.Guard), k.scan)
		defer p.Close()
		for cookie := range uint64(50_000) {
			p.Note(cookie+1, inside.TCPSocket{Connected: true})
		}
		time.Sleep(3 * sweepEvery)
		rows, err := p.Rows()
		if err != nil || len(rows) != 1 || rows[0].Inode != 70 {
			t.Errorf("%v, %v; want one row", rows, err)
		}
		if p.most != 1 {
			t.Errorf("the table has room for %d sockets", p.most)
		}
	})
}

// TestUsers: users who together have all entries that they can leave some for the next user.
func TestUsers(t *testing.T) {
	var k sockets
	p := New(new(guard.Guard), k.scan)
	defer p.Close()
	cookie := uint64(0)
	sharetest.Users(t, 21, func(uid uint32) bool {
		cookie++
		n := p.users[uid]
		p.Note(cookie, inside.TCPSocket{Owner: inside.Owner{UID: uid}})
		return p.users[uid] > n
	})
}
