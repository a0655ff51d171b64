// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/faults"
	"smcr/internal/testing/guest"
)

// The traffic while the clock is set.
const (
	clockConns = 4
	clockBytes = 1 << 20 // that must arrive after each step of the clock
	clockFor   = 30 * time.Second
)

// counted is what smcr stats show counts, as far as the test compares it.
type counted struct {
	SMCR struct {
		Connections uint64 `json:"connections"`
		RX, TX      struct {
			Bytes, Calls uint64
		}
	}
	Fallbacks struct{ Client, Server uint64 }
	Panics    uint64
}

// TestClock sets the time of day of a Linux guest a day forward and two days back, while
// connections between two stacks carry bytes that are all checked. Traffic goes on after
// each step, no link or connection ends, new connections are SMC-R, and the counters go on.
func TestClock(t *testing.T) {
	t.Parallel()
	near, far, checked := twoStacks(t, "clock")
	client := func(args ...string) []string {
		return append([]string{far.smcr, "run", "--mode", "user", "-v", "--no-adapt", "--", checked, "client", near.addr + ":7070", "-limit", commandLimit.String()}, args...)
	}
	far.run(t, client("-bytes", "1000")...) // the first contact

	type ended struct {
		guest.Result
		err error
	}
	sides := []*side{near, far}
	sum := faults.Row{Fault: "clock a day forward, two back, one forward", Traffic: "Linux guest", Outcome: "the connections live on"}
	links := map[*side]string{}
	for _, s := range sides {
		links[s] = linksOf(t, s)
	}
	connections := func(s *side) int { return len(query[map[string]any](t, s, "connection", "list")) }
	counters := func(s *side) counted { return query[counted](t, s, "stats", "show")[0] }
	for _, step := range []time.Duration{24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		stream := make(chan ended, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), clockFor+2*commandLimit)
			defer cancel()
			r, err := far.try(ctx, client("-conns", strconv.Itoa(clockConns), "-for", clockFor.String(), "-pause", "20ms")...)
			stream <- ended{r, err}
		}()
		before := map[*side]counted{}
		for _, s := range sides {
			eventually(t, "the connections are open", func() bool { return connections(s) == clockConns })
			before[s] = counters(s)
		}
		now := clockOf(t, near)
		near.run(t, "date", "-s", "@"+strconv.FormatInt(now+int64(step/time.Second), 10))
		if moved := time.Duration(clockOf(t, near)-now) * time.Second; (moved - step).Abs() > time.Hour {
			t.Fatalf("the clock moved by %v, want %v", moved, step)
		}
		for _, s := range sides {
			eventually(t, fmt.Sprintf("after %v, %d bytes more arrive at %s", step, clockBytes, s.addr), func() bool {
				return counters(s).SMCR.RX.Bytes >= before[s].SMCR.RX.Bytes+clockBytes
			})
		}
		r, err := far.try(t.Context(), client("-bytes", "100000")...)
		if row := checkedRow(r, 1); err != nil || !row.Good() || row.Failed > 0 || row.SMC != 1 {
			t.Errorf("after %v, a new connection: %v, %+v\n%s%s", step, err, row, r.Stdout, r.Stderr)
		}
		end := <-stream
		row := checkedRow(end.Result, clockConns)
		if end.err != nil || !row.Good() || row.Failed > 0 || row.SMC != clockConns {
			t.Errorf("over %v: %v, %+v\n%s%s", step, end.err, row, end.Stdout, end.Stderr)
		}
		sum.Add(row)
		for _, s := range sides {
			eventually(t, "no connection is left", func() bool { return connections(s) == 0 })
			if now := linksOf(t, s); now != links[s] {
				t.Errorf("after %v, %s has links\n%s\nbefore\n%s", step, s.addr, now, links[s])
			}
			was, is := before[s], counters(s)
			if is.SMCR.Connections != was.SMCR.Connections+1 || is.SMCR.TX.Bytes <= was.SMCR.TX.Bytes ||
				is.SMCR.RX.Calls <= was.SMCR.RX.Calls || is.SMCR.TX.Calls <= was.SMCR.TX.Calls ||
				is.Fallbacks != was.Fallbacks || is.Panics != 0 {
				t.Errorf("after %v, %s counts %+v, before %+v", step, s.addr, is, was)
			}
		}
	}
	if t.Failed() {
		sum.Leaked++
	}
	t.Logf("%d SMC-R, %d bytes", sum.SMC, sum.Bytes)
	if err := sum.Write(); err != nil {
		t.Error(err)
	}
}

// clockOf returns the time of day of the guest, in seconds.
func clockOf(t *testing.T, s *side) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(s.run(t, "date", "+%s")), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// linksOf describes the links of a stack by what stays the same while they live.
func linksOf(t *testing.T, s *side) string {
	t.Helper()
	var b strings.Builder
	for _, l := range query[map[string]any](t, s, "link", "list") {
		fmt.Fprintln(&b, l["linkgroup"], l["id"], l["state"], l["netdev"], l["gid"], l["peer_gid"], l["qpn"], l["peer_qpn"])
	}
	return b.String()
}
