// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/cmdutil"
	"smcr/nl"
	"smcr/nl/nltest"
)

// busyStack is a stack that sends a million bytes between two questions.
type busyStack struct{ *nltest.Fake }

func (b busyStack) Stats(ctx context.Context) (nl.Stats, error) {
	b.SetStats(func(s *nl.Stats, _ *nl.Fallbacks) { s.SMCR.TXBytes += 1e6 })
	return b.Fake.Stats(ctx)
}

// openStack is a stack that can be asked after Close.
type openStack struct{ nl.Control }

func (openStack) Close() error { return nil }

// topologyOf runs smcr topology for stacks until ctx ends.
func topologyOf(ctx context.Context, t *testing.T, m nl.Multi, line string) (string, error) {
	t.Helper()
	streams, _, out, _ := cmdutil.MemoryStreams()
	f := &cmdutil.Factory{
		IO: streams, Backend: "auto", NetDev: cmdutil.NetDev,
		Dial: func(context.Context, string) (nl.Multi, error) { return m, nil },
		Ending: func(context.Context) (nl.Multi, error) {
			return nl.Multi{{Name: "ending-1", Control: m[0].Control}}, nil
		},
	}
	cmd := newTopology(f)
	cmd.SetArgs(strings.Fields(line))
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func newBusy() nl.Multi {
	return nl.Multi{{Name: "user", Control: openStack{busyStack{nltest.NewFake(nltest.SampleState())}}}}
}

// TestTopologyFormats checks that each format is what its name says, and has all stacks.
func TestTopologyFormats(t *testing.T) {
	is := map[string]func(string) bool{
		"":                          func(s string) bool { return strings.HasPrefix(s, "host-a: user stack") },
		"-o text":                   func(s string) bool { return strings.HasPrefix(s, "host-a: user stack") },
		"-o dot":                    func(s string) bool { return strings.HasPrefix(s, "graph ") },
		"-o svg":                    func(s string) bool { return xml.Unmarshal([]byte(s), new(struct{ XMLName xml.Name })) == nil },
		"-o json":                   func(s string) bool { return json.Unmarshal([]byte(s), new([]map[string]any)) == nil },
		"--max-linkgroups 1":        func(s string) bool { return strings.Contains(s, "1 more link group") },
		"--max-linkgroups=1 -o dot": func(s string) bool { return strings.Contains(s, "1 more link group") },
	}
	for line, ok := range is {
		if out, err := topologyOf(t.Context(), t, newBusy(), line); err != nil || !ok(out) || !strings.Contains(out, "ending-1") {
			t.Errorf("%q: %v\n%s", line, err, out)
		}
	}
	for _, line := range []string{"-o table", "-o dot --watch", "-o svg -w", "--max-linkgroups 0", "--max-linkgroups 10001", "--max-linkgroups x", "-n 1", "name", "--rates=1s"} {
		if out, err := topologyOf(t.Context(), t, newBusy(), line); err == nil || out != "" {
			t.Errorf("%q: no error, printed %q", line, out)
		}
	}
}

// TestTopologyRates checks the rates over a second and those between two pictures.
func TestTopologyRates(t *testing.T) { synctest.Test(t, testTopologyRates) }

func testTopologyRates(t *testing.T) {
	rate := func(line string) uint64 {
		var v []struct {
			Rates *struct {
				Sent uint64 `json:"sent_per_second"`
			} `json:"rates"`
		}
		var rows struct {
			Rows any `json:"rows"`
		}
		rows.Rows = &v
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			if err := json.Unmarshal([]byte(line), &rows); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
		}
		if v[0].Rates == nil {
			return 0
		}
		return v[0].Rates.Sent
	}
	// Both stacks of the test have the same counters, so each question adds to both.
	between := func(v, low, high uint64) bool { return v > low && v <= high }
	if out, err := topologyOf(t.Context(), t, newBusy(), "-o json"); err != nil || rate(out) != 0 {
		t.Errorf("%v, %s", err, out)
	}
	out, err := topologyOf(t.Context(), t, newBusy(), "--rates -o json")
	if err != nil || !between(rate(out), 1e4, 2e6) {
		t.Errorf("%v, %s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	out, err = topologyOf(ctx, t, newBusy(), "-o json --watch 200ms")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) < 2 || rate(lines[0]) != 0 || !between(rate(lines[1]), 1e5, 1e7) {
		t.Errorf("%v\n%s", err, out)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if out, err := topologyOf(ctx, t, newBusy(), "--rates"); err == nil || out != "" {
		t.Errorf("no error, printed %q", out)
	}
}
