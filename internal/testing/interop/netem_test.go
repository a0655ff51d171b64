// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"
)

// badNetworks are what netem does to the packets that leave either host. It sees the packets
// of RoCE and of TCP.
var badNetworks = []struct {
	name string
	args string
}{
	{"loss of 0.1 %", "loss 0.1%"},
	{"loss of 1 %", "loss 1%"},
	{"loss of 5 %", "loss 5%"},
	{"duplication of 5 %", "duplicate 5%"},
	{"corruption of 1 %", "corrupt 1%"},
	{"reordering of 25 %", "delay 1ms reorder 75% 50%"},
	{"delay of 20 ms, more or less 5 ms", "delay 20ms 5ms"},
}

// The traffic on a bad network.
const (
	netemConns = 4
	netemBytes = "500000"
	// netemTime is how long a connection may make no progress. RoCE sends a packet again
	// seven times before the link fails.
	netemTime = 60 * time.Second
)

// TestNetem runs traffic whose every byte is checked between two hosts with the user-space
// stack, over a network that loses, repeats, changes, reorders and delays packets. The
// kernel of the guest has netem.
func TestNetem(t *testing.T) {
	t.Parallel()
	near, far, checked := twoStacks(t, "netem")
	near.run(t, "modprobe", "sch_netem")
	// The first contact is not part of what is measured.
	far.run(t, far.smcr, "run", "--mode", "user", "--no-adapt", "--", checked, "client", near.addr+":7070", "-bytes", "1000", "-limit", netemTime.String())
	for _, n := range badNetworks {
		t.Run(n.name, func(t *testing.T) {
			for s, dev := range map[*side]string{near: "n0", far: "f0"} {
				s.run(t, append([]string{"tc", "qdisc", "replace", "dev", dev, "root", "netem", "limit", "20000"}, strings.Fields(n.args)...)...)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 4*netemTime)
			defer cancel()
			r, err := far.try(ctx, far.smcr, "run", "--mode", "user", "-v", "--no-adapt", "--", checked, "client", near.addr+":7070",
				"-conns", strconv.Itoa(netemConns), "-bytes", netemBytes, "-limit", netemTime.String())
			row := checkedRow(r, netemConns)
			row.Fault, row.Traffic, row.Outcome = n.name, "netem, Linux guest", "the connections live on"
			if err != nil || row.Failed > 0 || !row.Good() || row.SMC+row.TCP != netemConns {
				t.Errorf("%v: %+v\n%s%s", err, row, r.Stdout, r.Stderr)
			}
			eventually(t, "no connection is left", func() bool {
				return len(query[map[string]any](t, near, "connection", "list")) == 0 && len(query[map[string]any](t, far, "connection", "list")) == 0
			})
			if t.Failed() {
				row.Leaked++
			}
			t.Logf("%d SMC-R, %d TCP, %d bytes", row.SMC, row.TCP, row.Bytes)
			if err := row.Write(); err != nil {
				t.Error(err)
			}
		})
	}
}
