// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"strings"
	"testing"

	"smcr/nl"
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
		describe(&b, nl.Row[stackInfo]{Stack: "user", Value: stackInfo{SysInfo: tt.info, ueids: tt.eids, devices: []string{"soft-eth0"}}})
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

// TestUserStack checks the text about a user-space stack.
func TestUserStack(t *testing.T) {
	var b strings.Builder
	s := nl.SysInfo{Version: 2, Release: 1, SMCRv2: true, Stack: "smcr", PID: 7, RoCEv1: true, RoCEv2: true, StateFile: "/run/smcr/state-1.yaml"}
	describe(&b, nl.Row[stackInfo]{Stack: "user", Value: stackInfo{SysInfo: s, ueids: 1, devices: []string{"soft-eth0", "soft-eth1"}}})
	s.RoCEv2, s.StateFile, s.StateError = false, "", "read-only file system"
	describe(&b, nl.Row[stackInfo]{Stack: "user", Value: stackInfo{SysInfo: s, ueids: 1}})
	for _, want := range []string{
		"SMC-D Features:   none: the user-space stack has no SMC-D\n", "RoCE Versions:    v1 v2\n", "RoCE Devices:     2: soft-eth0, soft-eth1\n",
		"State:            /run/smcr/state-1.yaml until the next boot; to make it permanent: 'smcr export > /etc/smcr/smcr.yaml'\n",
		"RoCE Versions:    v1\n", "RoCE Devices:     0\n", "State:            kept only while the stack runs: read-only file system\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}
