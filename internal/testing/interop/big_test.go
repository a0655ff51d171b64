// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// shortConns is how many connections come one after another in each direction, and
	// longConns is this number with -long. An emulated guest spends 0.1 s of processor
	// time on each.
	shortConns = 300
	longConns  = 2000

	// longLimit is the limit for what takes a minute on an idle machine.
	longLimit = 8 * time.Minute

	// stallLimit is the longest time of a connect, without the time in which the machine
	// did not run the program. If Linux does not receive ADD LINK, a first contact takes
	// 3 s; it sends a SYN again after 1 s. The rest is for a slow machine.
	stallLimit = 2500 * time.Millisecond
)

// TestBig has messages of 64 MiB, and many connections, with the server on either side.
func TestBig(t *testing.T) {
	short := shortConns
	if *long {
		short = longConns
	}
	for i, name := range []string{"KernelToUser", "UserToKernel"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kernel, user := newBedOf(t, setup{devices: 1, mtu: 9000})
			tt := directions(kernel, user)[i]
			at := netip.AddrPortFrom(netip.MustParseAddr(tt.server.addr), 5500)
			stop := tt.server.start(t, "listening", "serve", at.String())
			c := count(t, tt.client, tt.server)
			// This connection keeps the group.
			tt.client.start(t, "done", "echo", "-hold", at.String())
			t.Run("64MiB", func(t *testing.T) { tt.client.long(t, "echo", at, "-bytes", fmt.Sprint(64<<20)) })
			t.Run("Short", func(t *testing.T) { testShort(t, tt.client, tt.server, user, at, short) })
			c.want(t, 1+1+short)
			for _, s := range []*side{kernel, user} {
				role := "CLNT"
				if s == tt.server {
					role = "SERV"
				}
				n := 0
				for _, g := range query[linkGroup](t, s, "linkgroup", "list") {
					if g.Role == role {
						n++
					}
				}
				if n != 1 {
					t.Errorf("%s: %d link groups as %s, want all connections on one", s.backend, n, role)
				}
			}
			if r := stop(); strings.Contains(r.Stdout, "reset") || strings.Contains(r.Stdout, "failed") {
				t.Errorf("%s: server: %s%s", tt.server.backend, r.Stdout, r.Stderr)
			}
			wantQuiet(t, user)
		})
	}
}

// long is connect with longLimit. It returns the output of the peer.
func (s *side) long(t *testing.T, command string, to netip.AddrPort, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longLimit)
	defer cancel()
	r, err := s.try(ctx, s.peerArgs(command, append(args, to.String())...)...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", s.backend, err, r.Stdout)
	}
	t.Logf("%s: %s", s.backend, strings.TrimSpace(r.Stdout))
	return r.Stdout
}

// testShort makes conns connections one after another. None may stall, and the stack must
// keep nothing of them.
func testShort(t *testing.T, client, server, user *side, at netip.AddrPort, conns int) {
	batch := func(n int) {
		t.Helper()
		begin := time.Now()
		out := client.long(t, "echo", at, "-n", strconv.Itoa(n), "-bytes", "500")
		m := regexp.MustCompile(`slowest connect (\S+)`).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("%q", out)
		}
		if slowest, err := time.ParseDuration(m[1]); err != nil || slowest > stallLimit {
			t.Errorf("a connect took %s (%v), want at most %v", m[1], err, stallLimit)
		}
		t.Logf("%.0f connections/s", float64(n)/time.Since(begin).Seconds())
		for _, s := range []*side{client, server} {
			// This is the connection that keeps the link group.
			eventually(t, s.backend+": one connection is left", func() bool { return len(active(t, s)) == 1 })
		}
	}
	batch(conns / 3)
	before := user.footprint(t)
	batch(conns - conns/3)
	var after footprint
	eventually(t, "descriptors and memory are back", func() bool {
		after = user.footprint(t)
		return after.files <= before.files && after.memory <= before.memory+footprintSlack
	})
	t.Logf("the stack has %d descriptors and %d KiB, before %d and %d KiB", after.files, after.memory>>10, before.files, before.memory>>10)
}

// footprintSlack is what the memory of the stack may vary by between
// collections of garbage: less than the buffers of 40 connections, and testShort makes
// several hundred.
const footprintSlack = 16 << 20

// A footprint has the resources of the process of the stack.
type footprint struct {
	files  int   // descriptors
	memory int64 // bytes resident
}

func (s *side) footprint(t *testing.T) footprint {
	t.Helper()
	out := s.run(t, "sh", "-c", `pid=$(pgrep -f '^[^ ]*smcr serve'); ls /proc/$pid/fd | wc -l; grep VmRSS /proc/$pid/status`)
	f := strings.Fields(out) // files, "VmRSS:", KiB, "kB"
	if len(f) != 4 {
		t.Fatalf("footprint of the stack: %q", out)
	}
	files, err1 := strconv.Atoi(f[0])
	memory, err2 := strconv.ParseInt(f[2], 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatalf("footprint of the stack: %q", out)
	}
	return footprint{files, memory << 10}
}
