// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/faults"
	"smcr/internal/testing/guest"
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
	g := guest.New(t, guest.Config{Name: "netem", Limit: guestLimit})
	b := &bed{Guest: g}
	b.programs(t)
	file, err := guest.Program(t.Context(), "smcr/internal/testing/programs/checked")
	if err != nil {
		t.Fatal(err)
	}
	checked, err := g.Push(file)
	if err != nil {
		t.Fatal(err)
	}
	near := &side{bed: b, backend: "user", addr: kernelAddr, prefix: []string{"env", "SMCR_HOST_ID=near"}}
	far := &side{bed: b, backend: "user", addr: userAddr, prefix: []string{"ip", "netns", "exec", netns, "env", "SMCR_HOST_ID=far"}}
	near.run(t, "modprobe", "sch_netem")
	if err := g.AddVeth(t.Context(), "n0", "f0", netns); err != nil {
		t.Fatal(err)
	}
	near.run(t, "ip", "addr", "add", kernelAddr+"/24", "dev", "n0")
	far.run(t, "ip", "addr", "add", userAddr+"/24", "dev", "f0")
	for _, s := range []*side{near, far} {
		s.begin(t, s.smcr, "serve")
		eventually(t, "the stack answers", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
			defer cancel()
			_, err := s.try(ctx, s.smcr, "--backend", "user", "info")
			return err == nil
		})
	}
	server := near.begin(t, near.smcr, "run", "--mode", "user", "--no-adapt", "--", checked, "server", near.addr+":7070")
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	if err := server.WaitStdout(ctx, "listening"); err != nil {
		t.Fatal(err)
	}
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
			row := netemRow(r)
			row.Fault, row.Outcome = n.name, "the connections live on"
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

// begin starts a command on a side, which ends with the test.
func (s *side) begin(t *testing.T, argv ...string) *guest.Cmd {
	t.Helper()
	c := s.Command(append(append([]string{}, s.prefix...), argv...)...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r := s.stop(t, c); t.Failed() {
			t.Logf("%q:\n%s%s", argv, r.Stdout, r.Stderr)
		}
	})
	return c
}

var carriedRE = regexp.MustCompile(`(?m)^smcr: (\d+) connections? over SMC-R, (\d+) over TCP`)

// netemRow makes a row of what a client of program checked under smcr run -v wrote.
func netemRow(r guest.Result) faults.Row {
	row := faults.Row{Traffic: "netem, Linux guest", Runs: 1, Conns: netemConns}
	ended := 0
	for line := range strings.Lines(r.Stdout) {
		var c struct {
			Received        int64
			Error           string
			Corrupted, Hung bool
		}
		if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &c) != nil {
			continue
		}
		ended++
		row.Bytes += 2 * c.Received // the server has received as much
		for _, x := range []struct {
			count *int
			holds bool
		}{{&row.Failed, c.Error != ""}, {&row.Corrupted, c.Corrupted}, {&row.Hung, c.Hung}} {
			if x.holds {
				*x.count++
			}
		}
	}
	row.Failed += netemConns - ended
	if m := carriedRE.FindStringSubmatch(r.Stderr); m != nil {
		row.SMC, _ = strconv.Atoi(m[1])
		row.TCP, _ = strconv.Atoi(m[2])
	}
	return row
}
