// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"smcr/nl"
	"smcr/stats"
)

// TestResent checks that the details have what all devices in use have sent again.
func TestResent(t *testing.T) {
	for want, devices := range map[string][]nl.Device{
		"":                           {{Name: "soft-eth0"}},
		"{5 2} 5 (2 timeouts)":       {{Resent: &nl.Resent{Packets: 5, Timeouts: 2}}, {Name: "soft-eth1"}},
		"{1006 3} 1006 (3 timeouts)": {{Resent: &nl.Resent{Packets: 6, Timeouts: 2}}, {Resent: &nl.Resent{Packets: 1000, Timeouts: 1}}},
	} {
		v := counters{resent: nl.SumResent(devices)}
		var b strings.Builder
		statsReport{&b, true}.print(&v)
		_, line, _ := strings.Cut(b.String(), "RoCE packets sent again")
		line, _, _ = strings.Cut(line, "\n")
		got := strings.TrimSpace(line)
		if j := newStatsJSON(nl.Row[counters]{Stack: "user", Value: v}).Resent; j != nil {
			got = fmt.Sprint(*j, " ", got)
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestNotCounted checks that a counter that the stack does not have is not shown as zero.
func TestNotCounted(t *testing.T) {
	v := counters{stats: nl.Stats{SMCR: stats.Tech{NotCounted: stats.CountSplice | stats.CountTXSmall | stats.CountRXUsage}}}
	var b strings.Builder
	statsReport{&b, true}.print(&v)
	for _, line := range strings.Split(b.String(), "\n") {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "  ")
		dash := strings.HasSuffix(strings.TrimSpace(value), "-")
		if want := name == "splice" || name == "Buffer too small"; dash != want && name != "Buffer usage (Bytes)" {
			t.Errorf("%q", line)
		}
	}
	if n := strings.Count(b.String(), "           -\n"); n != 3 {
		t.Errorf("%d counters without a value:\n%s", n, &b)
	}
	j, err := json.Marshal(newStatsJSON(nl.Row[counters]{Stack: "user", Value: v}).SMCR)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"splice_calls":null`, `"sendpage_calls":0`, `"small":null,"small_peer":0`, `"buffer_bytes":null`} {
		if !strings.Contains(string(j), want) {
			t.Errorf("no %s in %s", want, j)
		}
	}
}
