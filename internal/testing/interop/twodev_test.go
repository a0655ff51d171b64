// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/guest"
)

// TestDeviceDown sets each of the two devices of either side down while data is sent both
// ways on several connections, with the kernel as client and as server. No connection may
// fail, the other device carries new connections at once, and the device is used again
// when it is up.
func TestDeviceDown(t *testing.T) {
	t.Parallel()
	kernel, user := newBed(t, 2)
	for i, d := range directions(kernel, user) {
		for j, device := range []string{"u1", "u0", "k1", "k0"} {
			of := user
			if strings.HasPrefix(device, "k") {
				of = kernel
			}
			at := netip.AddrPortFrom(netip.MustParseAddr(d.server.addr), uint16(5400+10*i+j))
			t.Run(d.name+"/"+device, func(t *testing.T) { testDeviceDown(t, d, at, of, device) })
			// At the next failover of a link group, Linux would use memory that it has
			// not registered on the new link. So make new link groups.
			restart(t, kernel, user)
		}
	}
}

// types returns the types of the link groups of a side.
func types(t *testing.T, s *side) []string {
	t.Helper()
	var list []string
	for _, g := range query[linkGroup](t, s, "linkgroup", "list") {
		list = append(list, g.Type)
	}
	return list
}

// testDeviceDown sets a device down while connections are open, and up again.
func testDeviceDown(t *testing.T, d direction, at netip.AddrPort, of *side, device string) {
	both := []*side{d.client, d.server}
	symmetric := func() {
		t.Helper()
		for _, s := range both {
			eventually(t, s.backend+": link groups of two links", func() bool {
				list := types(t, s)
				return len(list) > 0 && !slices.ContainsFunc(list, func(x string) bool { return x != "SYM" })
			})
		}
	}
	stop := d.server.start(t, "listening", "serve", "-check", at.String())
	d.client.connect(t, "echo", at)
	symmetric()
	if t.Failed() {
		return
	}
	before := []counters{stats(t, d.client), stats(t, d.server)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), commandLimit)
		defer cancel()
		if _, err := of.try(ctx, "ip", "link", "set", device, "up"); err != nil {
			t.Error(err)
		}
	})
	d.duringTransfer(t, at, 3_000_000, func() { of.run(t, "ip", "link", "set", device, "down") })
	for _, s := range both {
		t.Logf("%s: %v", s.backend, types(t, s))
	}
	// TCP uses the addresses of the first devices.
	if strings.HasSuffix(device, "1") {
		d.client.connect(t, "echo", at, "-n", "3")
	}
	of.run(t, "ip", "link", "set", device, "up")
	d.client.connect(t, "echo", at, "-n", "3")
	symmetric()
	if out := stop().Stdout; out != "listening\n" {
		t.Errorf("%s: server: %s", d.server.backend, out)
	}
	for i, s := range both {
		if x := stats(t, s); x.Fallbacks != before[i].Fallbacks {
			t.Errorf("%s: fallbacks %+v, before %+v", s.backend, x.Fallbacks, before[i].Fallbacks)
		}
	}
}

// duringTransfer makes four connections that send size bytes in both directions. It calls
// do when all connections exist: they could not be made after that, because TCP uses the
// addresses of the first devices.
func (d direction) duringTransfer(t *testing.T, at netip.AddrPort, size int, do func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	type result struct {
		guest.Result
		err error
	}
	ended := make(chan result, 1)
	go func() {
		r, err := d.client.try(ctx, d.client.peerArgs("echo", "-n", "4", "-parallel", "-bytes", fmt.Sprint(size), at.String())...)
		ended <- result{r, err}
	}()
	for _, s := range []*side{d.client, d.server} {
		eventually(t, s.backend+": four connections", func() bool { return len(active(t, s)) == 4 })
	}
	select {
	case r := <-ended:
		t.Fatalf("%s: the connections ended too early: %v\n%s", d.client.backend, r.err, r.Stdout)
	default:
	}
	do()
	r := <-ended
	t.Logf("%s: %s", d.client.backend, r.Stdout)
	if r.err != nil {
		t.Errorf("%s: %v", d.client.backend, r.err)
	}
}

// restart ends the user-space stack, and with it the link groups. It starts another one,
// with the enterprise ID that was added to the first.
func restart(t *testing.T, kernel, user *side) {
	t.Helper()
	user.stop(t, user.stack)
	groupsGone(t, kernel)
	user.serve(t)
}
