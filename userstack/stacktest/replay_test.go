// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"bytes"
	"context"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/internal/bedtest"
	"smcr/userstack/simfabric"
)

// withEIDs gives both stacks of a bed enterprise IDs.
func withEIDs(b *bed, client, server []string) {
	b.t.Helper()
	for _, x := range []struct {
		s    *userstack.Stack
		eids []string
	}{{b.client, client}, {b.server, server}} {
		for _, e := range x.eids {
			if err := x.s.Control().AddUEID(b.t.Context(), e); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// capturedCLC reads a CLC message of a Linux kernel from the test data of package wire.
// The README there gives its origin.
func capturedCLC(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "wire", "testdata", "captures", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			digits.WriteString(line)
		}
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(digits.String()), ""))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// A span is a range of bytes of a message in which two stacks may differ: a host chooses
// these bytes, or, if there is a reason, the stack differs from Linux on purpose.
type span struct {
	from, to int
	why      string
}

// The spans that a host chooses, and those that differ on purpose, see docs/interop.md.
var (
	ids      = span{8, 38, ""}                                                     // peer ID, GID, MAC
	numbers  = []span{ids, {38, 45, ""}, {46, 50, ""}, {52, 60, ""}, {61, 64, ""}} // and QPN, RKey, token, address, PSN
	offerGID = span{88, 104, ""}
	hostname = span{108, 140, ""}
	gidList  = span{160, 176, ""}

	version1Only  = span{7, 8, "a client that offers version 1 alone says so, Linux always says 2"}
	ids2          = span{8, 38, "peer ID and MAC are told with version 2 alone too, Linux has zeros"}
	offerVendor   = span{52, 55, "a client of this module says so, for the UDP ports of the queue pairs"}
	offerFeatures = span{106, 108, "bit 0 of the features is about SMC-D"}
	features      = span{142, 144, "bit 0 of the features is about SMC-D"}
)

// TestReplayCLC compares the CLC messages of two stacks with those of two Linux kernels
// with the same addresses and sizes, for a first contact and for a subsequent one.
func TestReplayCLC(t *testing.T) {
	for _, tt := range []struct {
		name     string
		v2       bool
		messages []string
		but      [][]span
	}{
		{"Version1", false, []string{
			"clc_proposal.iperf3_two_connections-v1.srv.frame4",
			"clc_accept.iperf3_two_connections-v1.srv.frame6",
			"clc_confirm.iperf3_two_connections-v1.srv.frame8",
			"clc_proposal.iperf3_two_connections-v1.srv.frame4",
			"clc_accept.iperf3_two_connections-v1.srv.frame47",
			"clc_confirm.iperf3_two_connections-v1.srv.frame53",
		}, [][]span{
			{ids, version1Only}, numbers, numbers,
			{ids, version1Only}, numbers, numbers,
		}},
		{"Version2", true, []string{
			"clc_proposal.a_first_contact_echo.cli.frame7",
			"clc_accept_v2.a_first_contact_echo.cli.frame9",
			"clc_confirm_v2.a_first_contact_echo.cli.frame11",
			"clc_proposal.a2_second_conn_echo.cli.frame4",
			"clc_accept_v2.a2_second_conn_echo.cli.frame10",
			"clc_confirm_v2.a2_second_conn_echo.cli.frame16",
		}, [][]span{
			{ids2, offerVendor, offerGID, offerFeatures},
			slices.Concat(numbers, []span{features, hostname}),
			slices.Concat(numbers, []span{features, hostname, gidList}),
			{ids2, offerVendor, offerGID, offerFeatures}, numbers, numbers,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bedtest.Bubble(t, func(t *testing.T) {
				got := rendezvousBytes(t, tt.v2)
				for i, name := range tt.messages {
					want := capturedCLC(t, name)
					if len(got) < len(want) {
						t.Fatalf("%s: %d bytes, want %d", name, len(got), len(want))
					}
					have := got[:len(want)]
					got = got[len(want):]
					for _, s := range tt.but[i] {
						if s.why != "" && bytes.Equal(want[s.from:s.to], have[s.from:s.to]) {
							t.Errorf("%s: bytes %d to %d are as with Linux: %s", name, s.from, s.to, s.why)
						}
						clear(want[s.from:s.to])
						clear(have[s.from:s.to])
					}
					if !bytes.Equal(want, have) {
						t.Errorf("%s:\nLinux % x\nhere  % x", name, want, have)
					}
				}
				if len(got) > 0 {
					t.Errorf("more bytes % x", got)
				}
			})
		})
	}
}

// rendezvousBytes makes two connections, one after the other, between stacks with the
// same settings as the kernels. It returns the bytes of the TCP connections.
func rendezvousBytes(t *testing.T, v2 bool) []byte {
	t.Helper()
	var said []byte
	b := &bed{t: t, w: simfabric.New(simfabric.Config{AlterTCP: func(_, _ simfabric.Place, data []byte) []byte {
		said = append(said, data...)
		return data
	}})}
	t.Cleanup(b.w.Close)
	t.Cleanup(b.noObjects)
	server, client := netip.MustParsePrefix("10.77.0.1/24"), netip.MustParsePrefix("10.77.0.2/24")
	host := func(name string, p netip.Prefix) *simfabric.Host {
		return b.w.Host(name, simfabric.NetDev{Name: "eth0", Addrs: []netip.Prefix{p}, MTU: smc.MTU1024})
	}
	b.ch, b.sh = host("client", client), host("server", server)
	tune := func(h *simfabric.Host) func(*userstack.Config) {
		return func(c *userstack.Config) {
			if v2 {
				c.Providers = []rdmaverbs.Provider{onlyRoCEv2{h.Provider()}}
			}
		}
	}
	b.client, b.server = b.stack(b.ch, tune(b.ch)), b.stack(b.sh, tune(b.sh))
	if v2 {
		const eid = "SMCV2-EXAMPLE-UEID"
		withEIDs(b, []string{eid}, []string{eid})
	}
	for range 2 {
		ct, st, err := b.w.Connect(netip.AddrPortFrom(client.Addr(), 0), netip.AddrPortFrom(server.Addr(), 80))
		if err != nil {
			t.Fatal(err)
		}
		c, s, cerr, serr := b.rendezvous(ct, st)
		if cerr != nil || serr != nil {
			t.Fatal(cerr, serr)
		}
		b.finish(c, s)
	}
	return said
}

// onlyRoCEv2 is a provider whose devices have only RoCEv2 GIDs, like soft-RoCE of Linux.
type onlyRoCEv2 struct{ rdmaverbs.Provider }

func (p onlyRoCEv2) Open(ctx context.Context, name string) (rdmaverbs.Device, error) {
	d, err := p.Provider.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return deviceRoCEv2{d}, nil
}

type deviceRoCEv2 struct{ rdmaverbs.Device }

func (d deviceRoCEv2) GIDs(port int) ([]rdmaverbs.GIDEntry, error) {
	list, err := d.Device.GIDs(port)
	for i := range list {
		if list[i].Type != rdmaverbs.RoCEv2 {
			list[i] = rdmaverbs.GIDEntry{} // the other entries keep their positions
		}
	}
	return list, err
}
