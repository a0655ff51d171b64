// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/tcpopt"

	"github.com/google/go-cmp/cmp"
)

// TestFallbackFor checks that every way to stay TCP has a code of its own.
func TestFallbackFor(t *testing.T) {
	for _, test := range []struct {
		err  error
		want nl.ConnFallback
	}{
		{&DeclineError{Code: smc.DiagPeerNoSMC}, nl.ConnFallback{Reason: 0x03010000}},
		{&DeclineError{Code: smc.DiagIPsec}, nl.ConnFallback{Reason: 0x03020000}},
		{&DeclineError{Remote: true, Code: smc.DiagPrefixMismatch}, nl.ConnFallback{Reason: 0x05000000, Peer: 0x03070000}},
		{fmt.Errorf("x: %w", &DeclineError{Code: smc.DiagMem}), nl.ConnFallback{Reason: 0x01010000}},
		{fmt.Errorf("%w: open", ErrNoDevice), nl.ConnFallback{Reason: 0x03030002}},
		{errRouted(netip.MustParseAddr("192.0.2.1")), nl.ConnFallback{Reason: 0x030e0000}},
		{fmt.Errorf("%w: this host", ErrNotOnLink), nl.ConnFallback{Reason: 0x030e0000}},
		{ErrNoOption, nl.ConnFallback{Reason: 0x03000000}},
		{fmt.Errorf("%w: fast open", tcpopt.ErrUnsupportedSocket), nl.ConnFallback{Reason: 0x03060000}},
		{linkgroup.ErrTimeout, nl.ConnFallback{Reason: 0x02010000}},
		{errors.New("anything"), nl.ConnFallback{Reason: 0x09990000}},
		{ErrStackClosed, nl.ConnFallback{}},
	} {
		if got := fallbackFor(test.err); got != test.want {
			t.Errorf("%v: %+v, want %+v", test.err, got, test.want)
		}
		if r := smc.Diagnosis(test.want.Reason); r != 0 && r.Text() == "" {
			t.Errorf("%v: code %s has no name", test.err, r)
		}
	}
}

// sockets is a kernel with TCP sockets, by cookie.
type sockets struct{ sync.Map }

func (k *sockets) scan(found func(uint64, nl.Connection)) error {
	k.Range(func(cookie, c any) bool {
		found(cookie.(uint64), c.(nl.Connection))
		return true
	})
	return nil
}

// TestPlainTable checks what a table shows and forgets.
func TestPlainTable(t *testing.T) {
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
		p := newPlainTable(k.scan)
		reason := nl.ConnFallback{Reason: 0x03010000}
		p.note(1, plain{owner: inside.Owner{UID: 1000, PID: 7, Command: "curl"}, fallback: reason})
		p.note(2, plain{owner: inside.Owner{UID: 1000, PID: 8, Command: "liar"}, fallback: reason}) // root's
		p.note(3, plain{owner: inside.Owner{UID: 0, PID: 9, Command: "root"}, fallback: reason})    // changed its user
		p.note(4, plain{owner: inside.Owner{UID: 1000, PID: 7, Command: "nginx"}})
		p.note(5, plain{owner: inside.Owner{UID: 1000, PID: 7, Command: "ended"}, fallback: reason})
		p.note(0, plain{owner: inside.Owner{UID: 1000, PID: 7, Command: "no cookie"}, fallback: reason})
		want := func(inodes ...uint64) {
			t.Helper()
			rows, err := p.rows()
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
		rows, _ := p.rows()
		if diff := cmp.Diff(nl.Connection{
			State: smc.StateActive, Mode: nl.ModeTCP, Inode: 11, UID: 1000, Cookie: 1, PID: 7, Command: "curl",
			Remote: netip.MustParseAddrPort("192.0.2.1:80"), Fallback: reason,
		}, rows[0], cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("row (-want +got):\n%s", diff)
		}
		if r := rows[2]; r.State != smc.StateListen || r.Mode != nl.ModeSMCR || r.Fallback != (nl.ConnFallback{}) {
			t.Errorf("listener: %+v", r)
		}

		// One that a scan misses, but the next does not, is remembered.
		k.Delete(uint64(1))
		want(13, 14)
		k.Store(uint64(1), conn(11, 1000))
		want(11, 13, 14)

		// A socket that is not there yet has its time; one that has ended goes,
		// without anybody asking.
		k.Delete(uint64(3))
		time.Sleep(plainGrace - time.Second)
		k.Store(uint64(5), conn(15, 1000))
		want(11, 14, 15)
		k.Delete(uint64(5))
		time.Sleep(2*plainSweep + 2*time.Second)
		p.mu.Lock()
		if len(p.socks) != 2 || p.users[1000] != 2 || p.users[0] != 0 {
			t.Errorf("remembered: %v, %v", p.socks, p.users)
		}
		p.mu.Unlock()

		k.Clear()
		time.Sleep(4 * plainSweep)
		p.mu.Lock()
		if len(p.socks) != 0 || len(p.users) != 0 || p.timer != nil {
			t.Errorf("remembered: %v, %v, %v", p.socks, p.users, p.timer)
		}
		p.mu.Unlock()
		p.note(1, plain{owner: inside.Owner{UID: 1000}})
		p.close()
		p.note(2, plain{owner: inside.Owner{UID: 1000}})
		want()
	})
}

// TestPlainBounds checks that no user takes more than a share, nor all together
// more than there is, and that what has ended makes room.
func TestPlainBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k sockets
		p := newPlainTable(k.scan)
		defer p.close()
		cookie := uint64(0)
		fill := func(uid uint32, n int) {
			for range n {
				cookie++
				p.note(cookie, plain{owner: inside.Owner{UID: uid}})
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
		fill(1000, maxPlainUser+100)
		size(1000, maxPlainUser, maxPlainUser)
		fill(1001, 10)
		size(1001, 10, maxPlainUser+10)
		fill(0, maxPlain)
		size(0, maxPlain-maxPlainUser-10, maxPlain)
		p.note(1, plain{owner: inside.Owner{UID: 1000}}) // the same again
		size(1000, maxPlainUser, maxPlain)
		// None of them lives.
		time.Sleep(plainGrace + time.Second)
		fill(1001, 1)
		time.Sleep(3 * time.Second)
		fill(1001, 1)
		time.Sleep(3 * time.Second)
		fill(1001, 1)
		size(1001, 2, 2)
	})
}

// TestDialStaysTCP checks that connections of a Go program that stay TCP are
// counted and listed, on both sides.
func TestDialStaysTCP(t *testing.T) {
	s, err := New(Config{NoOption: true, Providers: []rdmaverbs.Provider{noDevices{}}, Hostname: "host"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := s.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	ctl := s.Control()
	f, err := ctl.Fallbacks(t.Context())
	if err != nil || f.ClientTotal != 1 || f.ServerTotal != 1 || len(f.Reasons) != 2 || f.Reasons[0].Reason != uint32(smc.DiagConfig) {
		t.Errorf("counted: %+v, %v", f, err)
	}
	tcp := func() (n int) {
		rows, err := ctl.Connections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if r.Mode == nl.ModeTCP && r.State == smc.StateActive && r.Fallback.Reason == uint32(smc.DiagConfig) && (r.Remote == addrPort(l.Addr()) || r.Local == addrPort(l.Addr())) {
				n++
			}
		}
		return n
	}
	if n := tcp(); n != 2 {
		t.Errorf("%d listed", n)
	}
	c.Close()
	in.Close()
	if n := tcp(); n != 0 {
		t.Errorf("%d listed after the end", n)
	}
}

// noDevices is a provider that nothing may be asked of.
type noDevices struct{ rdmaverbs.Provider }
