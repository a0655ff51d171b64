// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/testing/cmdtest"
	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/spf13/cobra"
)

// TestHints checks what lists say on standard error: at a terminal, where to read about the
// reasons in them, and always, what was probably meant by a filter that leaves nothing.
func TestHints(t *testing.T) {
	state := nltest.SampleState()
	state.Connections = append(state.Connections, nl.Connection{Mode: nl.ModeTCP, Fallback: nl.ConnFallback{Reason: 0x05000000, Peer: 0x03030008}})
	for _, test := range []struct {
		newCmd   func(*cmdutil.Factory) *cobra.Command
		line     string
		terminal bool
		want     string
	}{
		{newConnectionList, "--mode tcp", true, "no-ueid"},
		{newConnectionList, "--mode tcp", false, ""},
		{newConnectionList, "--mode tcp -o json", true, ""},
		{newStatsShow, "-a", true, "see 'smcr explain"},
		{newStatsShow, "-a", false, ""},
		{newLinkGroupList, "", true, ""},
		{newLinkList, "--netdev eht0", false, "smcr: nothing with --netdev eht0: did you mean \"eth0\"?\n"},
		{newDeviceList, "--ibdev srx_eht0 -o json", false, "smcr: nothing with --ibdev srx_eht0: did you mean \"srx_eth0\"?\n"},
		{newLinkList, "--netdev nosuch", false, ""},
		{newLinkList, "--netdev eht0,eth0", false, ""},
	} {
		streams, _, _, errOut := cmdutil.MemoryStreams()
		written := func() string { return "" }
		if test.terminal {
			streams.Out, written = cmdtest.Terminal(t)
		}
		fake := nltest.NewFake(state)
		f := &cmdutil.Factory{
			IO: streams, Backend: "user", NetDev: func(i uint32) string { return map[uint32]string{2: "eth0", 3: "eth1", 4: "eth2"}[i] },
			Dial: func(context.Context, string) (nl.Multi, error) { return nl.Multi{{Name: "user", Control: fake}}, nil },
		}
		cmd := test.newCmd(f)
		cmd.SetArgs(strings.Fields(test.line))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%q: %v", test.line, err)
		}
		if got := errOut.String(); !strings.Contains(got, test.want) || (test.want == "") != (got == "") {
			t.Errorf("%s %q: %q, want %q", cmd.CommandPath(), test.line, got, test.want)
		}
		if out := written(); test.terminal && !strings.Contains(out, "\n") {
			t.Errorf("%q: printed %q", test.line, out)
		}
	}
}
