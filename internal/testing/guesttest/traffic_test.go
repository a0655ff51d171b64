// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"fmt"
	"net/netip"
	"slices"
	"smcr/internal/testing/testkind"
	"strings"
	"testing"
)

// The fields of smcr's JSON output that the tests check.
type (
	info struct {
		Stack   string `json:"stack"`
		Version int    `json:"smc_version"`
		Release int    `json:"smc_release"`
		Host    string `json:"hostname"`
		V2      bool   `json:"smcr_v2"`
		Devices int    `json:"roce_devices"`
	}
	device struct {
		IBDev    string `json:"ibdev"`
		Critical bool   `json:"critical"`
		PCI      *any   `json:"pci"`
		Ports    []port `json:"ports"`
	}
	port struct {
		Port   int    `json:"ibport"`
		NetDev string `json:"netdev"`
		State  string `json:"state"`
		PNETID string `json:"pnetid"`
		ByUser bool   `json:"pnetid_by_user"`
		Links  int    `json:"links"`
	}
	linkGroup struct {
		ID      string   `json:"id"`
		Role    string   `json:"role"`
		Type    string   `json:"type"`
		PNETID  string   `json:"pnetid"`
		Conns   int      `json:"conns"`
		Version int      `json:"version"`
		Sndbuf  uint64   `json:"sndbuf_bytes"`
		RMB     uint64   `json:"rmb_bytes"`
		VLAN    uint16   `json:"vlan"`
		V2      *groupV2 `json:"v2"`
		V2R     *struct {
			Direct bool `json:"direct"`
		} `json:"v2_r"`
	}
	groupV2 struct {
		Release  int    `json:"peer_release"`
		OS       string `json:"peer_os"`
		PeerHost string `json:"peer_host"`
		EID      string `json:"eid"`
	}
	link struct {
		LinkGroup string `json:"linkgroup"`
		Role      string `json:"role"`
		Type      string `json:"type"`
		ID        int    `json:"id"`
		NetDev    string `json:"netdev"`
		IBDev     string `json:"ibdev"`
		IBPort    int    `json:"ibport"`
		State     string `json:"state"`
		Conns     int    `json:"conns"`
		UID       string `json:"uid"`
		PeerUID   string `json:"peer_uid"`
		GID       string `json:"gid"`
		PeerGID   string `json:"peer_gid"`
	}
	connection struct {
		State    string         `json:"state"`
		Mode     string         `json:"mode"`
		Local    netip.AddrPort `json:"local"`
		Remote   netip.AddrPort `json:"remote"`
		UID      uint32         `json:"uid"`
		Inode    uint64         `json:"inode"`
		Fallback *fallback      `json:"fallback"`
		Info     *buffers       `json:"info"`
		Link     *link          `json:"link"`
	}
	fallback struct {
		Reason string `json:"reason"`
		Text   string `json:"text"`
	}
	buffers struct {
		Token    uint32 `json:"token"`
		Sndbuf   uint32 `json:"sndbuf_bytes"`
		RMBE     uint32 `json:"rmbe_bytes"`
		PeerRMBE uint32 `json:"peer_rmbe_bytes"`
		RXProd   string `json:"rx_prod"`
		RXCons   string `json:"rx_cons"`
		TXProd   string `json:"tx_prod"`
		TXCons   string `json:"tx_cons"`
		TXPrep   string `json:"tx_prep"`
		TXSent   string `json:"tx_sent"`
		TXFin    string `json:"tx_fin"`
	}
	counters struct {
		SMCR      tech  `json:"smcr"`
		SMCD      tech  `json:"smcd"`
		Errors    sides `json:"handshake_errors"`
		Fallbacks struct {
			Client  uint64 `json:"client"`
			Server  uint64 `json:"server"`
			Reasons []struct {
				Side   string `json:"side"`
				Reason string `json:"reason"`
				Count  uint64 `json:"count"`
			} `json:"reasons"`
		} `json:"fallbacks"`
	}
	sides struct {
		Client uint64 `json:"client"`
		Server uint64 `json:"server"`
	}
	tech struct {
		Connections uint64    `json:"connections"`
		ClientV1    uint64    `json:"client_v1"`
		ClientV2    uint64    `json:"client_v2"`
		ServerV1    uint64    `json:"server_v1"`
		ServerV2    uint64    `json:"server_v2"`
		RX          direction `json:"rx"`
		TX          direction `json:"tx"`
		Sendpage    uint64    `json:"sendpage_calls"`
		Splice      uint64    `json:"splice_calls"`
		Cork        uint64    `json:"cork_calls"`
		NoDelay     uint64    `json:"nodelay_calls"`
		Urgent      uint64    `json:"urgent_calls"`
	}
	direction struct {
		Bytes   uint64 `json:"bytes"`
		Calls   uint64 `json:"calls"`
		Buffer  uint64 `json:"buffer_bytes"`
		Buffers struct {
			Alloc     uint64 `json:"alloc"`
			Reuse     uint64 `json:"reuse"`
			Downgrade uint64 `json:"downgrade"`
			Full      uint64 `json:"full"`
			FullPeer  uint64 `json:"full_peer"`
			Small     uint64 `json:"small"`
			SmallPeer uint64 `json:"small_peer"`
		} `json:"buffers"`
		BufferSizes []bucket `json:"buffer_sizes"`
		CallSizes   []bucket `json:"call_sizes"`
	}
	bucket struct {
		Count uint64 `json:"count"`
	}
)

// testTraffic makes two kernels use SMC-Rv2 and compares the listings on both sides,
// while the connections are open and afterwards.
func testTraffic(t *testing.T, a, b *host) {
	const (
		conns = 4
		size  = 1 << 20
	)
	before := queryOne[counters](t, a, "stats", "show")
	server := netip.MustParseAddrPort(b.addr + ":5001")
	b.start(t, "listening", b.peer, "serve", server.String())
	end := a.start(t, "echoed", a.peer, "connect", "-n", "4", "-bytes", "1048576", server.String())

	for _, h := range []*host{a, b} {
		peer, role := b, "CLNT"
		if h == b {
			peer, role = a, "SERV"
		}
		if x := queryOne[info](t, h, "info"); x.Host != h.Name() || !x.V2 || x.Devices != 1 {
			t.Errorf("%s: info: %+v", h.Name(), x)
		}
		g := queryOne[linkGroup](t, h, "linkgroup", "list")
		if g.Role != role || g.Type != "SINGLE" || g.PNETID != "SMC1" || g.Conns != conns || g.Version != 2 || g.Sndbuf == 0 || g.RMB == 0 {
			t.Errorf("%s: linkgroup list: %+v", h.Name(), g)
		}
		if want := (groupV2{1, "LINUX", peer.Name(), "SMCV2-EXAMPLE-UEID"}); g.V2 == nil || *g.V2 != want {
			t.Errorf("%s: linkgroup list: version 2: got %+v, want %+v", h.Name(), g.V2, want)
		}
		l := queryOne[link](t, h, "link", "list")
		if l.LinkGroup != g.ID || l.Role != role || l.NetDev != "eth0" || l.IBDev != "rxe0" || l.IBPort != 1 || l.State != "ACTIVE" || l.Conns != conns {
			t.Errorf("%s: link list: %+v", h.Name(), l)
		}
		if d := queryOne[device](t, h, "device", "list"); len(d.Ports) != 1 || d.Ports[0].Links != 1 {
			t.Errorf("%s: device list: %+v", h.Name(), d)
		}
		// The suite checks that the tables of the kernel agree with each other.
		passed(t, h.run(t, h.tests, "-test.v", "-test.run", "^TestReadOnly$", "-test.timeout=50s"), "TestReadOnly/Consistency")
	}
	la, lb := queryOne[link](t, a, "link", "list"), queryOne[link](t, b, "link", "list")
	if la.GID != lb.PeerGID || la.PeerGID != lb.GID || la.UID != lb.PeerUID || la.PeerUID != lb.UID || la.GID == la.PeerGID {
		t.Errorf("the ends of the link disagree:\n%+v\n%+v", la, lb)
	}

	ca, cb := activeConnections(t, a), activeConnections(t, b)
	if len(ca) != conns || len(cb) != conns {
		t.Fatalf("connection list: %d and %d connections, want %d: %+v, %+v", len(ca), len(cb), conns, ca, cb)
	}
	for _, x := range ca {
		if x.Mode != "SMCR" || x.Remote != server || x.Link == nil || x.Link.Role != "CLNT" || x.Link.GID != la.GID || x.Info == nil {
			t.Errorf("a: connection list: %+v", x)
			continue
		}
		i := slices.IndexFunc(cb, func(y connection) bool { return y.Remote == x.Local && y.Local == x.Remote })
		if i < 0 || cb[i].Mode != "SMCR" || cb[i].Info == nil {
			t.Errorf("b does not know the connection of %v: %+v", x.Local, cb)
			continue
		}
		if y := cb[i].Info; x.Info.PeerRMBE != y.RMBE || x.Info.RMBE != y.PeerRMBE || x.Info.RMBE == 0 || x.Info.Token == 0 {
			t.Errorf("the ends of a connection disagree: %+v, %+v", *x.Info, *y)
		}
	}
	if out := a.run(t, a.smcr, "connection", "list", "--backend", "kernel"); strings.Count(out, "SMCR") != conns {
		t.Errorf("connection list: %s", out)
	}

	after, other := queryOne[counters](t, a, "stats", "show"), queryOne[counters](t, b, "stats", "show")
	x := after.SMCR
	if x.ClientV2-before.SMCR.ClientV2 != conns || x.Connections != conns || other.SMCR.ServerV2 != conns || other.SMCR.Connections != conns {
		t.Errorf("stats show: connections: %+v, %+v", after.SMCR, other.SMCR)
	}
	for _, d := range []direction{x.TX, x.RX, other.SMCR.TX, other.SMCR.RX} {
		if d.Bytes != conns*size || d.Calls < conns || d.Buffer == 0 {
			t.Errorf("stats show: got %+v, want %d bytes", d, conns*size)
		}
	}

	t.Run("Tools", func(t *testing.T) { testTools(t, a, b) })

	end()
	for _, h := range []*host{a, b} {
		// The kernel frees some objects later.
		testkind.Eventually(t, h.Name()+": no connection is left", func() (any, bool) {
			list, group := activeConnections(t, h), queryOne[linkGroup](t, h, "linkgroup", "list")
			return fmt.Sprintf("%+v, %+v", list, group), len(list) == 0 && group.Conns == 0
		})
		s := queryOne[counters](t, h, "stats", "show")
		if s.SMCR.TX.Buffer != 0 || s.SMCR.RX.Buffer != 0 {
			t.Errorf("%s: stats show: buffers in use after the end: %+v", h.Name(), s.SMCR)
		}
	}
}

// activeConnections returns the connections that neither the program nor the peer has
// closed.
func activeConnections(t *testing.T, h *host) []connection {
	t.Helper()
	return slices.DeleteFunc(query[connection](t, h, "connection", "list"), func(c connection) bool { return c.State == "CLOSED" })
}

// testFallback makes AF_SMC sockets use TCP for several reasons.
func testFallback(t *testing.T, a, b *host) {
	tests := []struct {
		name, server, reason string
		short                string // the form of smcr stats
		tcp                  bool
	}{
		// SMC_CLC_DECL_PEERNOSMC: the server has a TCP socket.
		{"TCPServer", b.addr + ":5003", "0x03010000", "PEER_NO_SMC", true},
		// SMC_CLC_DECL_NOSMCDEV: Linux finds the GIDs of SMC-Rv2 by IPv4 only.
		{"IPv6", "[" + b.addr6 + "]:5004", "0x03030000", "NOSMCDEV", false},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := netip.MustParseAddrPort(tt.server)
			argv := []string{b.peer, "serve", tt.server}
			if tt.tcp {
				argv = []string{b.peer, "serve", "-tcp", tt.server}
			}
			b.start(t, "listening", argv...)
			end := a.start(t, "echoed", a.peer, "connect", tt.server)
			defer end()
			c := slices.DeleteFunc(query[connection](t, a, "connection", "list", "--mode", "tcp"), func(c connection) bool { return c.Remote != server })
			if len(c) != 1 || c[0].Mode != "TCP" || c[0].Fallback == nil || c[0].Fallback.Reason != tt.reason || c[0].Fallback.Text == "" {
				t.Errorf("connection list: %+v", c)
			}
			f := queryOne[counters](t, a, "stats", "show").Fallbacks
			if f.Client != uint64(i+1) || f.Server != 0 || len(f.Reasons) != i+1 || f.Reasons[i].Reason != tt.reason || f.Reasons[i].Count != 1 || f.Reasons[i].Side != "client" {
				t.Errorf("stats show: %+v", f)
			}
			testFallbackTools(newTools(t, a), server, tt.reason, tt.short, i+1)
		})
	}
}
