// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/tool"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"

	"github.com/google/go-cmp/cmp"
)

// TestSSStates checks what is not in the recordings: the states at the end of a
// connection, SMC-D and long addresses.
func TestSSStates(t *testing.T) {
	local, remote := netip.MustParseAddrPort("[fd77:1:1:1:2:3:4:5]:65535"), netip.MustParseAddrPort("[fd77::1]:80")
	v4 := netip.MustParseAddrPort("10.1.2.3:80")
	fake := nltest.NewFake(nltest.State{Connections: []nl.Connection{
		{State: smc.StateAppFinCloseWait, Inode: 12345678, UID: 4294967295, Local: local, Remote: remote, NetDev: 2, Shutdown: nl.ShutdownSend, Info: &nl.ConnInfo{Token: 1}},
		{State: smc.StatePeerFinCloseWait, Mode: nl.ModeSMCD, Local: v4, Remote: v4, Shutdown: 3,
			DMB: &nl.ConnDMB{LinkID: 1, GID: 2, Token: 3, PeerGID: 4, PeerToken: 5}},
		{State: smc.StateClosed, Local: v4, Remote: v4},
		{State: 99, Mode: nl.ModeTCP, Local: v4, Remote: v4, Fallback: nl.ConnFallback{Reason: 0x03030000, Peer: 1}},
	}})
	const head = "State          UID   Inode   Local Address           Peer Address            Intf Mode "
	for line, want := range map[string]string{
		"": head + "\n" +
			"APPFINCLOSEWAIT1 -0001 12345678 fd77:1:1:1:2:3:..:65535 fd77::1:80              0002 SMCR \n" +
			"PEERFINCLOSEWAIT 00000 0000000 10.1.2.3:80             10.1.2.3:80             0000 SMCD \n" +
			"CLOSED         00000 0000000 10.1.2.3:80             10.1.2.3:80             0000 \n" +
			"0x63?          00000 0000000 10.1.2.3:80             10.1.2.3:80             0000 TCP 0x03030000/0x00000001\n",
		"-D": head + "GID              Token            Peer-GID         Peer-Token       Linkid\n" +
			"PEERFINCLOSEWAIT 00000 0000000 10.1.2.3:80             10.1.2.3:80             0000 SMCD " +
			"0000000000000002 0000000000000003 0000000000000004 0000000000000005 00000001 \n",
		"-WdR": head + "Shutd Token    Sndbuf   Rcvbuf   Peerbuf  rxprod-Cursor rxcons-Cursor rxFlags txprod-Cursor txcons-Cursor txFlags " +
			"txprep-Cursor txsent-Cursor txfin-Cursor  Role IB-device       Port Linkid GID                                      Peer-GID\n" +
			"APPFINCLOSEWAIT1 -0001 12345678 fd77:1:1:1:2:3:4:5:65535 fd77::1:80              0002 SMCR  <-W  00000001 00000000 00000000 00000000 " +
			"0000:00000000 0000:00000000 00:00   0000:00000000 0000:00000000 00:00   0000:00000000 0000:00000000 0000:00000000 \n" +
			"CLOSED         00000 0000000 10.1.2.3:80             10.1.2.3:80             0000 \n",
	} {
		streams, _, out, errOut := cmdutil.MemoryStreams()
		e := tool.NewEnv(&cmdutil.Factory{IO: streams, Backend: "kernel", Dial: func(context.Context, string) (nl.Multi, error) {
			return nl.Multi{{Name: "kernel", Control: keepOpen{fake}}}, nil
		}}, "smcss")
		status := smcSS(t.Context(), e, strings.Fields(line))
		if diff := cmp.Diff(want, out.String()); diff != "" || errOut.Len() > 0 || status != 0 {
			t.Errorf("%q: %d, %q (-want +got):\n%s", line, status, errOut, diff)
		}
	}
}
