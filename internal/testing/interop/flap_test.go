// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	flapPeriod = time.Second
	// flapBack is how long the next device waits for the link of the last one.
	flapBack = 10 * time.Second
	// flapLimit bounds a transfer.
	flapLimit = 2 * time.Minute
)

// TestFlap sets devices down and up, one after the other, while data is sent in both
// directions. It checks that each side receives the right data and that the links are
// added again. It logs which connections end: Linux resets some (docs/interop.md).
func TestFlap(t *testing.T) {
	t.Parallel()
	if os.Getenv("SMCR_INTEROP_FLAP") == "" {
		t.Skip("what Linux does varies: set SMCR_INTEROP_FLAP=1")
	}
	kernel, user := newBed(t, 2)
	for i, d := range directions(kernel, user) {
		for j, flapping := range []*side{user, kernel} {
			t.Run(fmt.Sprintf("%s/%s", d.name, flapping.backend), func(t *testing.T) {
				at := netip.AddrPortFrom(netip.MustParseAddr(d.server.addr), uint16(7200+10*i+j))
				testFlap(t, d.client, d.server, flapping, at)
			})
		}
	}
}

func testFlap(t *testing.T, client, server, flapping *side, at netip.AddrPort) {
	stop := server.start(t, "listening", "serve", "-check", at.String())
	type result struct {
		out string
		err error
	}
	done := make(chan result, 1)
	ctx, cancel := context.WithTimeout(t.Context(), flapLimit)
	defer cancel()
	go func() {
		r, err := client.try(ctx, client.peerArgs("echo", "-n", "4", "-parallel", "-bytes", "12000000", at.String())...)
		done <- result{r.Stdout + r.Stderr, err}
	}()
	symmetric := func() bool {
		for _, s := range []*side{client, server} {
			g := query[linkGroup](t, s, "linkgroup", "list")
			if len(g) == 0 || slices.ContainsFunc(g, func(g linkGroup) bool { return g.Type != "SYM" }) {
				return false
			}
		}
		return true
	}
	eventually(t, "two links", symmetric)
	prefix := map[string]string{"user": "u", "kernel": "k"}[flapping.backend]
	var back []time.Duration
	var r *result
	for n := 0; r == nil; n++ {
		dev := fmt.Sprintf("%s%d", prefix, n%2)
		flapping.run(t, "ip", "link", "set", dev, "down")
		time.Sleep(flapPeriod) // Real time: the fault lasts so long.
		flapping.run(t, "ip", "link", "set", dev, "up")
		start := time.Now()
		for r == nil {
			if symmetric() {
				break
			}
			if time.Since(start) > flapBack { // Real time: the next device does not wait longer, and that is logged.
				t.Logf("%s has no link after %v: %s%s", dev, flapBack, client.smcrun(t, "link", "list"), server.smcrun(t, "link", "list"))
				break
			}
			select {
			case x := <-done:
				r = &x
			case <-time.After(50 * time.Millisecond): // Real time: so often it looks.
			}
		}
		if r == nil {
			back = append(back, time.Since(start).Round(time.Millisecond))
			select {
			case x := <-done:
				r = &x
			case <-time.After(flapPeriod):
			}
		}
	}
	t.Logf("links back after %v; %s", back, strings.TrimSpace(r.out))
	if r.err != nil {
		t.Logf("client: %v", r.err)
	}
	out := stop().Stdout
	t.Logf("server: %s", out)
	if strings.Contains(out, "wrong") {
		t.Error("the server received wrong bytes")
	}
	if strings.Contains(r.out, "wrong") || strings.Contains(r.out, "differs") {
		t.Error("the client received wrong bytes")
	}
	if !slices.ContainsFunc(back, func(d time.Duration) bool { return d < flapBack }) {
		t.Error("no link came back")
	}
}
