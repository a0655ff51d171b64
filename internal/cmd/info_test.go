// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/nl"
	"smcr/smc"
)

// TestEIDs checks that the text about enterprise IDs says whether version 2 is used.
func TestEIDs(t *testing.T) {
	for _, tt := range []struct {
		name string
		info nl.SysInfo
		eids int
		want []string
	}{
		{"None", nl.SysInfo{Version: 2, SMCRv2: true}, 0, []string{
			"SMC-R Features:   v1 v2", "SMC-R v2 EIDs:    none: version 2 is not used, see 'smcr ueid add'",
		}},
		{"Two", nl.SysInfo{Version: 2, SMCRv2: true}, 2, []string{"SMC-R Features:   v1 v2", "SMC-R v2 EIDs:    2"}},
		{"Version1", nl.SysInfo{Version: 1}, 0, []string{"SMC-R Features:   v1"}},
	} {
		var b strings.Builder
		describe(&b, nl.Row[stackInfo]{Stack: "user", Value: stackInfo{SysInfo: tt.info, ueids: tt.eids, devices: []nl.Device{{Name: "mlx5_0"}}}})
		var got []string
		for line := range strings.Lines(b.String()) {
			if strings.HasPrefix(line, "SMC-R") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestLearnt: the text and the JSON say with whom connections stay TCP, whose, why and for how long.
func TestLearnt(t *testing.T) {
	all := []nl.Learnt{
		{Everyone: true, Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddrPort("10.0.0.2:0"), Why: uint32(smc.DiagNoPath)},
		{UID: 1000, Remote: netip.MustParseAddrPort("[fd00::1]:80"), Why: uint32(smc.DiagCopied), Left: 42500 * time.Millisecond},
	}
	all = append(all, nl.Learnt{UID: 1002, Remote: netip.MustParseAddrPort("10.0.0.4:82"), Why: uint32(smc.DiagPeerDeclined), Peer: uint32(smc.DiagNoSMCRDev), Left: 9 * time.Second})
	for range mostLearnt {
		all = append(all, nl.Learnt{UID: 1001, Remote: netip.MustParseAddrPort("10.0.0.3:81"), Why: 0x12345678, Left: time.Second})
	}
	row := nl.Row[stackInfo]{Stack: "user", Value: stackInfo{SysInfo: nl.SysInfo{Stack: "smcr"}, learnt: all}}
	var b strings.Builder
	describe(&b, row)
	for _, want := range []string{
		"Stay TCP:         connections with the following, for a time\n",
		"  all users:      10.0.0.2 from 10.0.0.1, roce-blocked, until the next connection has tried\n",
		"  user 1000:      [fd00::1]:80, option-replayed, for 43s\n",
		"  user 1002:      10.0.0.4:82, peer-declined (no-smcr-device), for 9s\n",
		"  user 1001:      10.0.0.3:81, 0x12345678, for 1s\n",
		"  others:         3, see 'smcr info -o json'\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	j := newInfoJSON(row).Learnt
	if len(j) != len(all) || j[0].UID != nil || j[0].Port != 0 || j[0].Local != "10.0.0.1" || *j[1].UID != 1000 || j[1].Peer != "fd00::1" || j[1].Left != 42.5 || j[1].Name != "option-replayed" {
		t.Errorf("JSON: %+v", j[:2])
	}
	if x := j[2]; x.Reason != "0x05000000" || x.PeerReason != "0x03030002" || x.PeerName != "no-smcr-device" || x.PeerText != smc.DiagNoSMCRDev.Text() || j[1].PeerReason != "" {
		t.Errorf("JSON: %+v", x)
	}
}

// TestUserStack checks the text about a user-space stack.
func TestUserStack(t *testing.T) {
	var b strings.Builder
	s := nl.SysInfo{Version: 2, Release: 1, SMCRv2: true, Stack: "smcr", PID: 7, RoCEv1: true, RoCEv2: true, StateFile: "/run/smcr/state-1.yaml"}
	describe(&b, nl.Row[stackInfo]{Stack: "user", Value: stackInfo{SysInfo: s, ueids: 1, devices: []nl.Device{{Name: "soft-eth0", Provider: "softroce"}, {Name: "mlx5_0"}}}})
	s.RoCEv2, s.StateFile, s.StateError = false, "", "read-only file system"
	s.Problems = []string{"the port is taken"}
	describe(&b, nl.Row[stackInfo]{Stack: "user", Value: stackInfo{SysInfo: s, ueids: 1}})
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old := []draining{
		{nl.Drain{Name: "ending-2", PID: 11, Since: since, Until: since.Add(time.Hour)}, 90 * time.Second, 3},
		{nl.Drain{Name: "ending-0", PID: 12, Since: since}, time.Second, 1},
	}
	describe(&b, nl.Row[stackInfo]{Stack: "user", Value: stackInfo{SysInfo: s, draining: old}})
	j := newInfoJSON(nl.Row[stackInfo]{Stack: "user", Value: stackInfo{SysInfo: s, draining: old}})
	if got, want := j.Draining, []drainingJSON{{"ending-2", 11, "2026-01-02T03:04:05Z", "2026-01-02T04:04:05Z", 3}, {"ending-0", 12, "2026-01-02T03:04:05Z", "", 1}}; !slices.Equal(got, want) {
		t.Errorf("JSON: %+v, want %+v", got, want)
	}
	for _, want := range []string{
		"Draining:         2 stacks with connections, the oldest first\n",
		"  ending-2:       process 11, for 1m30s, 3 connections, ends after its last connection, at the latest 2026-01-02T04:04:05Z\n",
		"  ending-0:       process 12, for 1s, 1 connection, ends after its last connection\n",
		"SMC-D Features:   none: the user-space stack has no SMC-D\n", "RoCE Versions:    v1 v2\n", "RoCE Port:        UDP 4791, which must be open between the hosts\n", "RoCE Devices:     2: soft-eth0 (software RoCE), mlx5_0\n",
		"Software RoCE:    no card: the host's processors do its work, see smcr(7)\n",
		"Problem:          the port is taken\n",
		"State:            /run/smcr/state-1.yaml until the next boot; to make it permanent: 'smcr export > /etc/smcr/smcr.yaml'\n",
		"SMC-R v2 EIDs:    1, not used: without RoCE version 2, all connections use version 1, for which both hosts must be in one subnet\n",
		"RoCE Versions:    v1\n", "RoCE Devices:     0\n", "State:            kept only while the stack runs: read-only file system\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}
