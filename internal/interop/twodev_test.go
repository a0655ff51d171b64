// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDeviceDown takes each of our two devices away while data flows both ways
// on several connections of a kernel: none is lost, and the device serves again
// when it is back.
func TestDeviceDown(t *testing.T) {
	kernel, user := newBed(t, 2)
	for i, device := range []string{"u1", "u0"} {
		at := netip.AddrPortFrom(netip.MustParseAddr(user.addr), uint16(5401+i))
		t.Run(device, func(t *testing.T) { testDeviceDown(t, kernel, user, at, user, device) })
		if t.Failed() {
			return
		}
		restart(t, kernel, user)
	}
	for _, s := range []*side{kernel, user} {
		if x := stats(t, s).Fallbacks; x.Client != 0 || x.Server != 0 {
			t.Errorf("%s: fallbacks %+v", s.backend, x)
		}
	}
}

// types lists the types of a side's link groups.
func types(t *testing.T, s *side) []string {
	t.Helper()
	var list []string
	for _, g := range query[linkGroup](t, s, "linkgroup", "list") {
		list = append(list, g.Type)
	}
	return list
}

// testDeviceDown takes a device away under connections and brings it back.
func testDeviceDown(t *testing.T, client, server *side, at netip.AddrPort, of *side, device string) {
	server.start(t, "listening", "serve", at.String())
	client.connect(t, "echo", at)
	for _, s := range []*side{client, server} {
		eventually(t, s.backend+": a link group of two links", func() bool { return slices.Equal(types(t, s), []string{"SYM"}) })
	}
	if t.Failed() {
		return
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), commandLimit)
		defer cancel()
		if _, err := of.try(ctx, "ip", "link", "set", device, "up"); err != nil {
			t.Error(err)
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(500 * time.Millisecond)
		if _, err := of.try(t.Context(), "ip", "link", "set", device, "down"); err != nil {
			t.Error(err)
		}
	}()
	client.connect(t, "echo", at, "-n", "4", "-parallel", "-bytes", "2000000")
	<-done
	for _, s := range []*side{client, server} {
		t.Logf("%s: %v", s.backend, types(t, s))
	}
	// What is left carries new connections, and the device when it is back. The
	// first devices have the addresses of TCP.
	if strings.HasSuffix(device, "1") {
		client.connect(t, "echo", at, "-n", "3")
	}
	of.run(t, "ip", "link", "set", device, "up")
	client.connect(t, "echo", at, "-n", "3")
	for _, s := range []*side{client, server} {
		eventually(t, s.backend+": two links again", func() bool { return slices.Equal(types(t, s), []string{"SYM"}) })
	}
}

// restart ends the stack in user space, and with it the link groups, and starts
// another.
func restart(t *testing.T, kernel, user *side) {
	t.Helper()
	user.stop(t, user.stack)
	groupsGone(t, kernel)
	user.serve(t)
	user.smcrun(t, "ueid", "add", eid)
}
