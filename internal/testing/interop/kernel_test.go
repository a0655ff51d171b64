// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"net/netip"
	"slices"
	"testing"
)

// The fields of smcr's JSON output that the tests check.
type (
	linkGroup struct {
		ID      string   `json:"id"`
		Role    string   `json:"role"`
		Type    string   `json:"type"`
		VLAN    uint16   `json:"vlan"`
		PNETID  string   `json:"pnetid"`
		Conns   int      `json:"conns"`
		Version int      `json:"version"`
		V2      *groupV2 `json:"v2"`
	}
	groupV2 struct {
		Release  int    `json:"peer_release"`
		OS       string `json:"peer_os"`
		PeerHost string `json:"peer_host"`
		EID      string `json:"eid"`
	}
	connection struct {
		State  string         `json:"state"`
		Mode   string         `json:"mode"`
		Local  netip.AddrPort `json:"local"`
		Remote netip.AddrPort `json:"remote"`
		Netdev string         `json:"netdev"` // of the link; our stack only
	}
	counters struct {
		SMCR struct {
			ClientV1 int `json:"client_v1"`
			ServerV1 int `json:"server_v1"`
			ClientV2 int `json:"client_v2"`
			ServerV2 int `json:"server_v2"`
		} `json:"smcr"`
		Fallbacks struct {
			Client int `json:"client"`
			Server int `json:"server"`
		} `json:"fallbacks"`
	}
)

// stats returns the counters of a side.
func stats(t *testing.T, s *side) counters {
	t.Helper()
	rows := query[counters](t, s, "stats", "show")
	if len(rows) != 1 {
		t.Fatalf("%s: stats %+v", s.backend, rows)
	}
	return rows[0]
}

// TestKernel boots one guest for all parts. Each part says which side has the server.
func TestKernel(t *testing.T) {
	t.Parallel()
	kernel, user := newBed(t, 1)
	traffic{
		version: 2, sizes: []int{1, 100, 1 << 16, 1<<16 + 1, 1 << 20, 5<<20 + 3},
		parallel: 40, each: 300_000, short: 50,
	}.flow(t, kernel, user)
	t.Run("NoCommonEID", func(t *testing.T) { testNoCommonEID(t, kernel, user) })
	t.Run("End", func(t *testing.T) { testEnd(t, kernel) })
}

// testNoCommonEID: without a common enterprise ID, connections use TCP and work.
func testNoCommonEID(t *testing.T, kernel, user *side) {
	user.smcrun(t, "ueid", "flush")
	user.smcrun(t, "ueid", "add", "ANOTHER")
	for i, p := range [][2]*side{{kernel, user}, {user, kernel}} {
		at := netip.AddrPortFrom(netip.MustParseAddr(p[1].addr), uint16(5300+i))
		p[1].start(t, "listening", "serve", at.String())
		p[0].connect(t, "echo", at, "-n", "3", "-bytes", "100000")
	}
	for _, s := range []*side{kernel, user} {
		if x := stats(t, s).Fallbacks; x.Client != 3 || x.Server != 3 {
			t.Errorf("%s: fallbacks %+v, want 3 as either", s.backend, x)
		}
	}
}

// active returns the open connections of a side.
func active(t *testing.T, s *side) []connection {
	t.Helper()
	return slices.DeleteFunc(query[connection](t, s, "connection", "list"), func(c connection) bool {
		return c.State == "CLOSED" || c.State == "LISTEN"
	})
}

// testOne opens one connection with this version of SMC-R and checks the listings of both
// sides.
func testOne(t *testing.T, client, server *side, at netip.AddrPort, version int) {
	stop := server.start(t, "listening", "serve", at.String())
	end := client.start(t, "done", "echo", "-hold", at.String())
	for _, s := range []*side{client, server} {
		role := "CLNT"
		if s == server {
			role = "SERV"
		}
		list := active(t, s)
		if len(list) != 1 || list[0].Mode != "SMCR" || list[0].State != "ACTIVE" {
			t.Errorf("%s: connections %+v, want one that is active over SMC-R", s.backend, list)
		}
		groups := slices.DeleteFunc(query[linkGroup](t, s, "linkgroup", "list"), func(g linkGroup) bool { return g.Role != role })
		if len(groups) != 1 {
			t.Fatalf("%s: link groups %+v, want one", s.backend, groups)
		}
		if g := groups[0]; g.Version != version || g.Conns != 1 || g.Type != "SINGLE" ||
			version == 2 && (g.V2 == nil || *g.V2 != (groupV2{1, "LINUX", "linux", eid})) {
			t.Errorf("%s: link group %+v, %+v", s.backend, g, g.V2)
		}
	}
	end()
	stop()
}

// TestTwoDevices makes link groups of two links with the kernel.
func TestTwoDevices(t *testing.T) {
	t.Parallel()
	kernel, user := newBed(t, 2)
	for i, tt := range []struct {
		name           string
		client, server *side
	}{
		{"KernelToUser", kernel, user},
		{"UserToKernel", user, kernel},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := netip.AddrPortFrom(netip.MustParseAddr(tt.server.addr), uint16(5400+i))
			tt.server.start(t, "listening", "serve", at.String())
			end := tt.client.start(t, "done", "echo", "-hold", "-n", "3", at.String())
			for _, s := range []*side{kernel, user} {
				eventually(t, s.backend+": two links", func() bool {
					g := query[linkGroup](t, s, "linkgroup", "list")
					return len(g) == i+1 && g[i].Type == "SYM"
				})
				t.Logf("%s: %s%s", s.backend, s.smcrun(t, "linkgroup", "list"), s.smcrun(t, "link", "list"))
			}
			tt.client.connect(t, "echo", at, "-n", "20", "-parallel", "-bytes", "200000")
			end()
		})
	}
	t.Run("Failover", func(t *testing.T) { testFailover(t, kernel, user) })
}

// testFailover sets a device down while connections are open: all their data arrives over
// the other link.
func testFailover(t *testing.T, kernel, user *side) {
	at := netip.AddrPortFrom(netip.MustParseAddr(user.addr), 5410)
	user.start(t, "listening", "serve", at.String())
	direction{client: kernel, server: user}.duringTransfer(t, at, 3_000_000, func() {
		user.run(t, "ip", "link", "set", "u1", "down")
	})
	for s, want := range map[*side]string{kernel: "ASYMP", user: "ASYML"} {
		// The server adds another link for the lost one.
		eventually(t, s.backend+": link groups of type "+want, func() bool {
			return !slices.ContainsFunc(query[linkGroup](t, s, "linkgroup", "list"), func(g linkGroup) bool { return g.Type != want })
		})
		if x := stats(t, s).Fallbacks; x.Client != 0 || x.Server != 0 {
			t.Errorf("%s: fallbacks %+v", s.backend, x)
		}
	}
}
