// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

const enterpriseID = "E2E-TEST-EID"

// versions has the captures of one transfer.
type versions struct {
	tcp, v1, v2 *netnstest.Capture
}

func (l *lab) watchVersions() *versions {
	l.t.Helper()
	return &versions{
		tcp: l.A.StartCapture(l.t, netnstest.CaptureOptions{SnapLen: tcpHeaders, Filter: "tcp"}),
		v1:  l.A.StartCapture(l.t, netnstest.CaptureOptions{SnapLen: roceHeaders, Filter: "ether proto 0x8915"}),
		v2:  l.A.StartCapture(l.t, netnstest.CaptureOptions{SnapLen: roceHeaders, Filter: "udp port 4791 or icmp[0] == 3"}),
	}
}

// A way describes how the data of a transfer was carried.
type way struct {
	smc  string // the version in ACCEPT
	roce int    // the version of the frames
	ip   string // a display filter that must match all frames of RoCE version 2
}

var (
	wayV1        = way{"1", 1, ""}
	wayLinkLocal = way{"1", 2, "ipv6.src == fe80::/64 and ipv6.dst == fe80::/64 and udp.dstport == 4791"}
	// Packets to a neighbour pass no router.
	wayV2     = way{"2", 2, "ip.ttl == 1 and udp.dstport == 4791"}
	wayRouted = way{"2", 2, "udp.dstport == 4791 and (ip.src == 10.77.0.1 and ip.ttl == 64 or ip.dst == 10.77.0.1 and ip.ttl == 63)"}
)

// want checks that size bytes were carried in this way, and none in another way.
func (v *versions) want(t testing.TB, want way, size int64) {
	t.Helper()
	var tally [3]netnstest.Tally
	for i, c := range []*netnstest.Capture{v.tcp, v.v1, v.v2} {
		missed, err := c.Stop()
		if err != nil {
			t.Fatal(err)
		}
		tr, err := c.Count()
		if err != nil {
			t.Fatal(err)
		}
		tally[i] = []netnstest.Tally{tr.TCP, tr.RoCEv1, tr.RoCEv2}[i]
		if n := tally[i].Packets; i > 0 && n > 0 {
			tally[i].Payload += int64(missed) * (tally[i].Payload / int64(n))
		}
	}
	t.Logf("TCP %+v, RoCE v1 %+v, RoCE v2 %+v", tally[0], tally[1], tally[2])
	if tally[0].Payload > maxTCPPayload {
		t.Errorf("TCP carried %d bytes", tally[0].Payload)
	}
	if got := tally[want.roce].Payload; got < size {
		t.Errorf("RoCE version %d carried %d bytes, want at least %d", want.roce, got, size)
	}
	if other := tally[3-want.roce]; other.Packets > 0 {
		t.Errorf("%d frames of RoCE version %d", other.Packets, 3-want.roce)
	}
	// The version is in the upper half of byte 7.
	for _, accept := range tshark(t, v.tcp.File, "smc.clc_msg == 2", "tcp.payload") {
		if len(accept) < 2*8 || accept[2*7:2*7+1] != want.smc {
			t.Errorf("ACCEPT %s is not of version %s", accept, want.smc)
		}
	}
	if want.ip != "" {
		if bad := tshark(t, v.v2.File, "not ("+want.ip+")", "frame.number"); len(bad) > 0 {
			t.Errorf("frames %v are not %s", head(bad), want.ip)
		}
	}
	if icmp := tshark(t, v.v2.File, "icmp", "frame.number"); len(icmp) > 0 {
		t.Errorf("ICMP unreachable in frames %v", head(icmp))
	}
}

// TestRoCEVersions: the stacks of both hosts use the highest version of SMC, and with it
// of RoCE, that both support.
func TestRoCEVersions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		a, b       string // --roce of server and client
		eidA, eidB bool
		asIs       bool // the default configuration
		taken      bool // UDP port 4791 of A is in use
		want       way
	}{
		{name: "AsIs", asIs: true, want: wayV2},
		{name: "AsIsV1Server", asIs: true, a: "v1", want: wayV1},
		{name: "AsIsPortTaken", asIs: true, taken: true, want: wayV1},
		{name: "DefaultNoEID", want: wayV1},
		{name: "Default", eidA: true, eidB: true, want: wayV2},
		{name: "EIDOfOne", eidB: true, want: wayV1},
		{name: "V2NoEID", a: "v2", b: "v2", want: wayLinkLocal},
		{name: "V1Server", a: "v1", eidB: true, want: wayV1},
		{name: "V1Client", b: "v1", eidA: true, want: wayV1},
		{name: "PortTaken", eidA: true, eidB: true, taken: true, want: wayV1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "tshark")
			if tt.taken {
				l.takePort(l.A)
			}
			start := func(h *netnstest.Host, roce string, eid bool) *netnstest.Process {
				var args []string
				if roce != "" {
					args = []string{"--roce", roce}
				}
				serve := l.serve
				if tt.asIs {
					serve = l.serveAsIs
				}
				p := serve(h, args...)
				if eid {
					l.smcr(h, "--backend", "user", "ueid", "add", enterpriseID)
				}
				return p
			}
			a := start(l.A, tt.a, tt.eidA)
			start(l.B, tt.b, tt.eidB)
			v := l.watchVersions()
			size := l.transfer(8080)
			v.want(t, tt.want, size)
			l.wantNoConnections(l.A, l.B)
			if n := strings.Count(a.Log(), "RoCE version 2 is not available"); tt.taken != (n == 1) {
				t.Errorf("the stack warns %d times:\n%s", n, a.Log())
			}
		})
	}
}

// takePort binds UDP port 4791 of a host, like soft-RoCE of the kernel.
func (l *lab) takePort(h *netnstest.Host) {
	l.t.Helper()
	if err := h.Do(func() error {
		for _, network := range []string{"udp4", "udp6"} {
			c, err := net.ListenUDP(network, &net.UDPAddr{Port: netnstest.PortRoCEv2})
			if err != nil {
				return err
			}
			l.t.Cleanup(func() { c.Close() })
		}
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
}

// TestRoCEPortTaken: a stack that is configured for version 2 only reports why it cannot
// use it, and programs use TCP.
func TestRoCEPortTaken(t *testing.T) {
	l := newLab(t)
	l.takePort(l.A)
	a := l.serve(l.A, "--roce", "v2")
	l.serve(l.B, "--roce", "v2")
	const size = 100 << 10
	addr := l.A.Addr() + ":8080"
	server := l.under(l.A, bin("webserver"), "-listen", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	client := l.under(l.B, bin("webclient"), fmt.Sprintf("http://%s/bytes/%d", addr, size))
	if err := client.Wait(time.Minute); err != nil {
		t.Errorf("%v\n%s", err, client.Log())
	}
	terminate(t, server)
	for _, want := range []string{"level=WARN", "UDP port 4791", "rdma link", "modprobe -r rdma_rxe"} {
		if !strings.Contains(a.Log(), want) {
			t.Errorf("%q is not in the log of the stack:\n%s", want, a.Log())
		}
	}
}
