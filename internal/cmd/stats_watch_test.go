// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"smcr/internal/cmdutil"
	"smcr/nl"
	"smcr/nl/nltest"
)

// growing is a stack whose counters grow by the same amount with each question.
type growing struct {
	nl.Control
	n *atomic.Uint64
}

func (g growing) Stats(ctx context.Context) (nl.Stats, error) {
	s, err := g.Control.Stats(ctx)
	n := g.n.Add(1)
	s.SMCR.RXBytes, s.SMCR.TXCalls = 5000*n, 10*n
	return s, err
}

func (g growing) Devices(ctx context.Context) ([]nl.Device, error) {
	all, err := g.Control.Devices(ctx)
	all[0].Resent = &nl.Resent{Packets: 4 * g.n.Load()}
	return all, err
}

// watchTwo runs smcr stats watch for two lines of a growing stack and one without devices.
func watchTwo(t *testing.T, args ...string) string {
	t.Helper()
	var n atomic.Uint64
	streams, _, out, errOut := cmdutil.MemoryStreams()
	still := nltest.SampleState()
	still.Devices = nil
	f := &cmdutil.Factory{
		IO: streams, Backend: "auto", NetDev: cmdutil.NetDev,
		Dial: func(context.Context, string) (nl.Multi, error) {
			return nl.Multi{{Name: "kernel", Control: nltest.NewFake(still)}, {Name: "user", Control: growing{nltest.NewFake(nltest.SampleState()), &n}}}, nil
		},
	}
	cmd := newStatsWatch(f)
	cmd.SetArgs(append([]string{"2", "2"}, args...))
	if err := cmd.ExecuteContext(t.Context()); err != nil || errOut.Len() > 0 {
		t.Fatalf("%v, %s", err, errOut)
	}
	return out.String()
}

// startSignals starts the goroutine of os/signal, which never ends, so that none starts in the
// bubble of a test.
func startSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR2)
	signal.Stop(c)
}

// TestStatsWatchArgs: an interval and a count may be words, once, and wrong ones are refused.
func TestStatsWatchArgs(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"x"}, `invalid interval "x"`},
		{[]string{"0"}, `invalid interval "0"`},
		{[]string{"1", "x"}, `invalid count "x"`},
		{[]string{"1", "-1"}, "unknown shorthand flag"},
		{[]string{"1", "2", "3"}, `unexpected argument "3"`},
		{[]string{"1", "--interval", "2s"}, `unexpected argument "1": there is --interval`},
		{[]string{"1", "2", "--count", "2"}, `unexpected argument "2": there is --count`},
	} {
		streams, _, _, _ := cmdutil.MemoryStreams()
		cmd := newStatsWatch(&cmdutil.Factory{IO: streams})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(tt.args)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.args, err, tt.want)
		}
	}
}

func TestStatsWatch(t *testing.T) {
	startSignals()
	synctest.Test(t, func(t *testing.T) {
		const want = `
time                 stack      groups  links   conns    new/s       rx_B/s       tx_B/s rx_calls/s tx_calls/s fallbacks/s errors/s retrans/s
2000-01-01T00:00:02Z kernel          2      3       4        0            0            0          0          0           0        0         -
2000-01-01T00:00:02Z user            2      3       4        0         2500            0          0          5           0        0         2
2000-01-01T00:00:04Z kernel          2      3       4        0            0            0          0          0           0        0         -
2000-01-01T00:00:04Z user            2      3       4        0         2500            0          0          5           0        0         2
`
		if got := "\n" + watchTwo(t); got != want {
			t.Errorf("got%s", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		got := watchTwo(t, "-o", "json")
		want := `{"time":"2000-01-01T00:00:02Z","rows":[` +
			`{"stack":"kernel","interval_seconds":2,"linkgroups":2,"links":3,"conns":4,"rates":{"conns":0,"rx_bytes":0,"tx_bytes":0,"rx_calls":0,"tx_calls":0,"fallbacks":0,"handshake_errors":0,"retransmits":null}},` +
			`{"stack":"user","interval_seconds":2,"linkgroups":2,"links":3,"conns":4,"rates":{"conns":0,"rx_bytes":2500,"tx_bytes":0,"rx_calls":0,"tx_calls":5,"fallbacks":0,"handshake_errors":0,"retransmits":2}}]}` + "\n"
		first, second, _ := strings.Cut(got, "\n")
		if first+"\n" != want || second != strings.Replace(want, ":02Z", ":04Z", 1) {
			t.Errorf("got %s", got)
		}
		if !json.Valid([]byte(first)) {
			t.Error("not JSON")
		}
	})
}

func TestStatsWatchUsage(t *testing.T) {
	for _, line := range []string{"--count -1", "--interval 1ms", "--interval soon", "-o wide", "name"} {
		if out, err := run(t, newStatsWatch, line); err == nil || out != "" {
			t.Errorf("%q: no error, printed %q", line, out)
		}
	}
}
