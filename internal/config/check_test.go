// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"
)

// TestCheck checks which configurations are refused before anything is changed.
func TestCheck(t *testing.T) {
	user := nl.SysInfo{Version: 2, Stack: "smcr"}
	for _, test := range []struct {
		name, file string
		info       nl.SysInfo
		step       string // "" if nothing is refused
		err        error
	}{
		{"device in use", "pnetids: [{pnetid: A, netdev: eth0}, {pnetid: A, ibdev: soft-eth0}]", user, "", nil},
		{"device kept out", "pnetids: [{pnetid: A, netdev: eth1}, {pnetid: A, ibdev: soft-eth1}]", user, "", nil},
		{"no netdev", "pnetids: [{pnetid: A, netdev: eth0}, {pnetid: B, netdev: eth77}]", user, "give pnetid B to eth77", os.ErrNotExist},
		{"no device", "pnetids: [{pnetid: B, ibdev: soft-eth77}]", user, "give pnetid B to soft-eth77", os.ErrNotExist},
		{"device of the kernel", "pnetids: [{pnetid: B, ibdev: mlx5_0}]", user, "give pnetid B to mlx5_0", os.ErrNotExist},
		{"kernel, device to come", "pnetids: [{pnetid: B, netdev: eth77}, {pnetid: B, ibdev: mlx5_0}]", nl.SysInfo{Version: 2}, "", nil},
		{"no version 2", "ueids: [A]", nl.SysInfo{Version: 1, Stack: "smcr"}, "define enterprise ID A", nl.ErrNotSupported},
		{"version 2", "ueids: [A]\nhandshake_limitation: true", user, "", nil},
		{"no system enterprise ID", "seid: true", user, "set seid to true", nl.ErrNotSupported},
	} {
		t.Run(test.name, func(t *testing.T) {
			fake := nltest.NewFake(nltest.State{SysInfo: test.info, Devices: []nl.Device{{Name: "soft-eth0"}}})
			c, err := Parse([]byte(test.file))
			if err != nil {
				t.Fatal(err)
			}
			plan, err := c.Plan(t.Context(), fake)
			if err != nil {
				t.Fatal(err)
			}
			err = plan.Check(t.Context(), fake, Host{
				NetDev:     func(name string) bool { return name == "eth0" || name == "eth1" },
				RoCEDevice: func(name string) bool { return name == "soft-eth0" || name == "soft-eth1" },
			})
			var refused *ApplyError
			switch {
			case test.step == "" && err == nil:
			case !errors.As(err, &refused) || refused.Step != test.step || !errors.Is(err, test.err):
				t.Errorf("%v, want a refusal to %q", err, test.step)
			}
		})
	}
}
