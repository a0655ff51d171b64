// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/nl"
	"smcr/nl/nltest"
)

// TestDeviceRoCEv1: devices that lack RoCE version 2 do not do so in silence. Devices that should have none do.
func TestDeviceRoCEv1(t *testing.T) {
	for _, tt := range []struct {
		info nl.SysInfo
		want bool
	}{
		{nl.SysInfo{RoCEv1: true, Problems: []string{"the port is taken"}}, true},
		{nl.SysInfo{RoCEv1: true}, false},
		{nl.SysInfo{RoCEv1: true, RoCEv2: true, Problems: []string{"a capability is missing"}}, false},
		{nl.SysInfo{Problems: []string{"of the kernel"}}, false},
	} {
		streams, _, out, errOut := cmdutil.MemoryStreams()
		f := &cmdutil.Factory{
			IO: streams, Backend: "user", NetDev: cmdutil.NetDev,
			Dial: func(context.Context, string) (nl.Multi, error) {
				state := nltest.SampleState()
				state.SysInfo = tt.info
				return nl.Multi{{Name: "user", Control: nltest.NewFake(state)}}, nil
			},
		}
		cmd := newDevice(f)
		cmd.SetArgs([]string{"list"})
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), "Net-Dev") {
			t.Fatalf("%v: %s", err, out)
		}
		if got := strings.Contains(errOut.String(), "the user stack have no RoCE version 2"); got != tt.want {
			t.Errorf("%+v: %q", tt.info, errOut)
		}
	}
}
