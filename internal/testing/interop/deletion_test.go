// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

// link is a row of the list of links.
type link struct {
	Group  string `json:"linkgroup"`
	ID     int    `json:"id"`
	State  string `json:"state"`
	Conns  int    `json:"conns"`
	NetDev string `json:"netdev"`
}

// TestDeletion deletes links and link groups of the user-space stack in order (RFC 7609,
// sections 3.5.4 and 3.5.5.1.3), with a kernel as the peer, in both roles, while connections
// carry data. No byte is lost when a link goes, and both sides are done when the link group
// goes.
func TestDeletion(t *testing.T) {
	t.Parallel()
	kernel, user := newBed(t, 2)
	for i, d := range directions(kernel, user) {
		at := netip.AddrPortFrom(netip.MustParseAddr(d.server.addr), uint16(5700+i))
		t.Run(d.name, func(t *testing.T) { testDeletion(t, d, at, kernel, user) })
		restart(t, kernel, user) // see TestDeviceDown
	}
}

func testDeletion(t *testing.T, d direction, at netip.AddrPort, kernel, user *side) {
	stop := d.server.start(t, "listening", "serve", "-check", at.String())
	d.client.connect(t, "echo", at)
	both := []*side{kernel, user}
	for _, s := range both {
		eventually(t, s.backend+": a link group of two links", func() bool { return slices.Equal(types(t, s), []string{"SYM"}) })
	}
	if t.Failed() {
		return
	}
	group := query[linkGroup](t, user, "linkgroup", "list")[0].ID
	links := func() []link {
		return slices.DeleteFunc(query[link](t, user, "link", "list"), func(l link) bool { return l.Group != group || l.State != "ACTIVE" })
	}

	// A link with connections.
	var gone link
	d.duringTransfer(t, at, 3_000_000, func() {
		list := links()
		if len(list) != 2 {
			t.Fatalf("%d active links: %+v", len(list), list)
		}
		gone = slices.MaxFunc(list, func(a, b link) int { return a.Conns - b.Conns })
		t.Log(user.smcrun(t, "link", "del", group, fmt.Sprint(gone.ID)))
	})
	// The server may use the device of the other link for a second link, an asymmetric one.
	for _, s := range both {
		eventually(t, s.backend+": the link is gone", func() bool {
			return !slices.ContainsFunc(query[link](t, s, "link", "list"), func(l link) bool {
				return l.ID == gone.ID || l.NetDev != "" && l.NetDev == gone.NetDev
			})
		})
	}
	if list := links(); len(list) == 0 {
		t.Error("no link is left")
	}
	d.client.connect(t, "echo", at, "-n", "3")

	// The link group, with connections, which end at once on both sides.
	type result struct {
		guest.Result
		err error
	}
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	ended := make(chan result, 1)
	go func() {
		r, err := d.client.try(ctx, d.client.peerArgs("echo", "-n", "4", "-parallel", "-bytes", "6000000", at.String())...)
		ended <- result{r, err}
	}()
	for _, s := range both {
		eventually(t, s.backend+": four connections", func() bool { return len(active(t, s)) == 4 })
	}
	// Linux as the server may have made another one for the connections after the deletion.
	for _, g := range query[linkGroup](t, user, "linkgroup", "list") {
		t.Logf("%+v", g)
		t.Log(user.smcrun(t, "linkgroup", "del", g.ID))
	}
	begin := time.Now()
	if r := <-ended; r.err == nil || ctx.Err() != nil {
		t.Errorf("the client: %v, want an error at once\n%s", r.err, r.Stdout)
	}
	t.Logf("the client ended after %v", time.Since(begin))
	groupsGone(t, kernel, user)
	d.client.connect(t, "echo", at, "-n", "3") // over another link group
	stop()
}
