// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"net/netip"
	"slices"
	"testing"
)

// A direction says which side has the server.
type direction struct {
	name           string
	client, server *side
}

func directions(kernel, user *side) []direction {
	return []direction{{"KernelToUser", kernel, user}, {"UserToKernel", user, kernel}}
}

// TestVersion1 is TestKernel for version 1 of SMC-R, between link-local GIDs, with a
// kernel that supports it.
func TestVersion1(t *testing.T) {
	t.Parallel()
	kernel, user := newBedOf(t, setup{devices: 1, version1: true})
	// There are not more connections at the same time, because the kernel's server
	// handles them one after the other, and an emulated one is slow.
	traffic{
		version: 1, sizes: []int{1, 8191, 1 << 16, 1<<16 + 1, 200_000, 1<<20 + 3},
		parallel: 10, each: 70_000, short: 30,
	}.flow(t, kernel, user)
	t.Run("Choice", func(t *testing.T) { testChoice(t, kernel, user) })
	t.Run("End", func(t *testing.T) { testEnd(t, kernel) })
	t.Run("EyeCatcher", func(t *testing.T) { testEyeCatcher(t, kernel, user) })
}

// testEyeCatcher: a Linux client declines a server whose RMB elements begin with eye
// catchers, and uses TCP.
func testEyeCatcher(t *testing.T, kernel, user *side) {
	user.serve(t, "--eye-catcher")
	at := netip.AddrPortFrom(netip.MustParseAddr(user.addr), 5320)
	stop := user.start(t, "listening", "serve", at.String())
	before := stats(t, kernel)
	kernel.connect(t, "echo", at, "-bytes", "100000")
	stop()
	if x := stats(t, kernel); x.Fallbacks.Client != before.Fallbacks.Client+1 || x.SMCR != before.SMCR {
		t.Errorf("kernel: %+v, before %+v, want one more fallback", x, before)
	}
	if x := stats(t, user); x.Fallbacks.Server != 1 || x.SMCR.ServerV1 != 0 {
		t.Errorf("user: %+v, want one fallback", x)
	}
}

// testChoice: a client with an enterprise ID offers both versions. The server chooses
// version 2 if it has this ID, otherwise version 1.
func testChoice(t *testing.T, kernel, user *side) {
	port := 5300
	for _, c := range []struct {
		name         string
		kernel, user string // enterprise IDs
		wantV2       bool
	}{
		{name: "ServerHasNone", kernel: eid},
		{name: "BothHaveIt", kernel: eid, user: eid, wantV2: true},
		{name: "ServerHasAnother", kernel: eid, user: "ANOTHER"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for s, id := range map[*side]string{kernel: c.kernel, user: c.user} {
				s.smcrun(t, "ueid", "flush")
				if id != "" {
					s.smcrun(t, "ueid", "add", id)
				}
			}
			for _, d := range directions(kernel, user) {
				port++
				at := netip.AddrPortFrom(netip.MustParseAddr(d.server.addr), uint16(port))
				before := map[*side]counters{kernel: stats(t, kernel), user: stats(t, user)}
				stop := d.server.start(t, "listening", "serve", at.String())
				d.client.connect(t, "echo", at, "-n", "3", "-bytes", "100000")
				stop()
				for s, old := range before {
					now := stats(t, s)
					v1 := now.SMCR.ClientV1 + now.SMCR.ServerV1 - old.SMCR.ClientV1 - old.SMCR.ServerV1
					v2 := now.SMCR.ClientV2 + now.SMCR.ServerV2 - old.SMCR.ClientV2 - old.SMCR.ServerV2
					want1, want2 := 3, 0
					if c.wantV2 {
						want1, want2 = 0, 3
					}
					if v1 != want1 || v2 != want2 || now.Fallbacks != old.Fallbacks {
						t.Errorf("%s, %s: %d connections of version 1 and %d of version 2, want %d and %d; fallbacks %+v, before %+v",
							d.name, s.backend, v1, v2, want1, want2, now.Fallbacks, old.Fallbacks)
					}
				}
			}
		})
	}
}

// TestVersion1TwoDevices makes link groups of two links by ADD LINK and ADD LINK
// CONTINUATION, and sets a device down.
func TestVersion1TwoDevices(t *testing.T) {
	t.Parallel()
	kernel, user := newBedOf(t, setup{devices: 2, version1: true})
	for i, tt := range directions(kernel, user) {
		t.Run(tt.name, func(t *testing.T) {
			at := netip.AddrPortFrom(netip.MustParseAddr(tt.server.addr), uint16(5400+i))
			tt.server.start(t, "listening", "serve", at.String())
			end := tt.client.start(t, "done", "echo", "-hold", "-n", "5", at.String())
			for _, s := range []*side{kernel, user} {
				eventually(t, s.backend+": two links", func() bool {
					g := query[linkGroup](t, s, "linkgroup", "list")
					return len(g) == i+1 && g[i].Type == "SYM" && g[i].Version == 1
				})
				t.Logf("%s: %s%s", s.backend, s.smcrun(t, "linkgroup", "list"), s.smcrun(t, "link", "list"))
			}
			tt.client.connect(t, "echo", at, "-n", "10", "-parallel", "-bytes", "70000")
			end()
		})
	}
	t.Run("Failover", func(t *testing.T) { testFailoverV1(t, kernel, user) })
	for _, s := range []*side{kernel, user} {
		if x := stats(t, s).Fallbacks; x.Client != 0 || x.Server != 0 {
			t.Errorf("%s: fallbacks %+v", s.backend, x)
		}
	}
}

// testFailoverV1 sets a device of the user-space stack down while connections are open
// whose client is the kernel, and up again. With several RMBs on either side, the link
// that is added then needs more than one ADD LINK CONTINUATION.
func testFailoverV1(t *testing.T, kernel, user *side) {
	at := netip.AddrPortFrom(netip.MustParseAddr(user.addr), 5410)
	user.start(t, "listening", "serve", at.String())
	direction{client: kernel, server: user}.duringTransfer(t, at, 3_000_000, func() {
		user.run(t, "ip", "link", "set", "u1", "down")
	})
	hold := kernel.start(t, "done", "echo", "-hold", "-n", "5", at.String())
	user.run(t, "ip", "link", "set", "u1", "up")
	for _, s := range []*side{kernel, user} {
		eventually(t, s.backend+": two links again", func() bool {
			return !slices.ContainsFunc(query[linkGroup](t, s, "linkgroup", "list"), func(g linkGroup) bool { return g.Type != "SYM" })
		})
	}
	kernel.connect(t, "echo", at, "-n", "10", "-parallel", "-bytes", "70000")
	hold()
}
