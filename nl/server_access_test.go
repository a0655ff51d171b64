// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	_ "smcr/internal/testing/firstthread"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
)

// asUser runs fn on a thread with this user ID. It needs root.
func asUser(t *testing.T, uid int, fn func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root to become another user: sudo go test ./nl")
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked, so that the thread ends with the goroutine
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		if errno != 0 {
			done <- errno
			return
		}
		fn()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// dialAs connects as a user. The server goes by who has connected, and not by whose thread asks later.
func dialAs(t *testing.T, uid int, address string) *nl.Client {
	t.Helper()
	var c *nl.Client
	var err error
	asUser(t, uid, func() { c, err = nl.DialUnix(t.Context(), address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestOtherUser checks that another user may read but not change.
func TestOtherUser(t *testing.T) {
	fake := nltest.NewFake(nltest.SampleState())
	address := serve(t, fake, nl.ServerConfig{MaxConnsPerUser: 3})
	c := dialAs(t, nobody, address)
	if groups, err := c.LinkGroups(t.Context()); err != nil || len(groups) != 2 {
		t.Errorf("LinkGroups: %v, %v", groups, err)
	}
	ctx := t.Context()
	for what, err := range map[string]error{
		"AddPNET":         c.AddPNET(ctx, nl.PNET{ID: "A", NetDev: "lo"}),
		"RemovePNET":      c.RemovePNET(ctx, "A"),
		"FlushPNET":       c.FlushPNET(ctx),
		"AddUEID":         c.AddUEID(ctx, "A"),
		"FlushUEID":       c.FlushUEID(ctx),
		"SetHSLimitation": c.SetHSLimitation(ctx, true),
	} {
		if !errors.Is(err, os.ErrPermission) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Connections beyond the limit of a user are refused, but not those of root.
	for range 2 {
		dialAs(t, nobody, address)
	}
	asUser(t, nobody, func() {
		if c, err := nl.DialUnix(ctx, address); err == nil {
			c.Close()
			t.Error("a fourth connection: no error")
		}
	})
	c = dial(t, address)
	if eids, err := c.UEIDs(t.Context()); err != nil || len(eids) != 1 {
		t.Errorf("state changed: %v, %v", eids, err)
	}
	if err := c.AddUEID(t.Context(), "A"); err != nil {
		t.Error(err)
	}
}

// TestLearntOfOthers: a user sees what was learnt for everyone and for this user, and the owner of the stack sees all.
func TestLearntOfOthers(t *testing.T) {
	all := []nl.Learnt{
		{Everyone: true, Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddrPort("10.0.0.2:0"), Why: 0x03fd0000, Left: time.Second},
		{UID: 65534, Remote: netip.MustParseAddrPort("10.0.0.2:80"), Why: 0x05000000},
		{UID: 65533, Remote: netip.MustParseAddrPort("10.0.0.2:81"), Why: 0x05000000, Left: time.Minute},
	}
	address := serve(t, nltest.NewFake(nltest.State{Learnt: all}), nl.ServerConfig{})
	got, err := dial(t, address).Learnt(t.Context())
	if diff := cmp.Diff(all, got, sameAddr, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	got, err = dialAs(t, nobody, address).Learnt(t.Context())
	if err != nil || len(got) != 2 || !got[0].Everyone || got[1].UID != 65534 {
		t.Errorf("another user: %+v, %v", got, err)
	}
}

// TestOthersProcesses checks that only root sees the processes of other users in a
// listing, as with ss.
func TestOthersProcesses(t *testing.T) {
	state := nltest.SampleState()
	state.Connections = state.Connections[:0]
	for uid := range uint32(3) {
		state.Connections = append(state.Connections, nl.Connection{
			State: smc.StateActive, Mode: nl.ModeTCP, Inode: uint64(uid) + 10, UID: 65532 + uid, PID: 4711, Command: "curl", Fallback: nl.ConnFallback{Reason: 0x03010000},
		})
	}
	address := serve(t, nltest.NewFake(state), nl.ServerConfig{})
	known := func(c *nl.Client) (uids []uint32) {
		conns, err := c.Connections(t.Context())
		if err != nil || len(conns) != 3 {
			t.Errorf("%d connections, %v", len(conns), err)
		}
		for _, x := range conns {
			if x.Fallback.Reason != 0x03010000 {
				t.Errorf("%+v", x)
			}
			if x.PID != 0 && x.Command == "curl" {
				uids = append(uids, x.UID)
			} else if x.PID != 0 || x.Command != "" {
				t.Errorf("%+v", x)
			}
		}
		return uids
	}
	if got := known(dial(t, address)); os.Geteuid() == 0 && len(got) != 3 {
		t.Errorf("root sees processes of %v", got)
	}
	if got := known(dialAs(t, nobody, address)); len(got) != 1 || got[0] != 65534 {
		t.Errorf("user 65534 sees processes of %v", got)
	}
}

// TestHidden checks that a user who may not change the stack does not see what a host
// names in CLC messages and packets, except for the alert tokens of this user's own
// connections.
func TestHidden(t *testing.T) {
	state := nltest.SampleState()
	state.LinkGroups = []nl.LinkGroup{{ID: 7, PeerID: [8]byte{1, 2, 3}, Links: 1, Peer: "10.0.0.2"}}
	state.Links = []nl.Link{{LinkGroup: 7, ID: 1, IBDev: "soft-eth0", QPN: 0x1234, PeerQPN: 0x5678}}
	state.Connections = state.Connections[:0]
	for uid := range uint32(2) {
		state.Connections = append(state.Connections, nl.Connection{
			State: smc.StateActive, Mode: nl.ModeSMCR, Inode: uint64(uid) + 10, UID: 65533 + uid, Info: &nl.ConnInfo{Token: 0x1000 + uid, RMBE: 65536},
		})
	}
	address := serve(t, nltest.NewFake(state), nl.ServerConfig{})
	look := func(c *nl.Client, all bool) {
		groups, err := c.LinkGroups(t.Context())
		if err != nil || len(groups) != 1 || groups[0].Peer != "10.0.0.2" {
			t.Fatalf("%+v, %v", groups, err)
		}
		links, err := c.Links(t.Context())
		if err != nil || len(links) != 1 || links[0].IBDev != "soft-eth0" {
			t.Fatalf("%+v, %v", links, err)
		}
		if (groups[0].PeerID != [8]byte{}) != all || (links[0].QPN != 0) != all || (links[0].PeerQPN != 0) != all {
			t.Errorf("peer ID %x, queue pairs %#x and %#x; all is to be seen: %v", groups[0].PeerID, links[0].QPN, links[0].PeerQPN, all)
		}
		conns, err := c.Connections(t.Context())
		if err != nil || len(conns) != 2 {
			t.Fatalf("%+v, %v", conns, err)
		}
		for _, x := range conns {
			if x.Info == nil || x.Info.RMBE != 65536 || (x.Info.Token != 0) != (all || x.UID == 65534) {
				t.Errorf("%+v of user %d; all is to be seen: %v", x.Info, x.UID, all)
			}
		}
	}
	look(dial(t, address), true)
	look(dialAs(t, nobody, address), false)
}

// TestImpostor checks that a client does not use the stack of another user.
func TestImpostor(t *testing.T) {
	address := fmt.Sprintf("@smcr-test-%d/%s", os.Getpid(), t.Name())
	var l *net.UnixListener
	asUser(t, 65534, func() {
		var err error
		if l, err = nl.ListenUnix(address); err != nil {
			t.Error(err)
		}
	})
	if l == nil {
		return
	}
	defer l.Close()
	if _, err := nl.DialUnix(t.Context(), address); !errors.Is(err, os.ErrPermission) {
		t.Errorf("dial: %v", err)
	}
}
