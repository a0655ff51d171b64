// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/bench"
)

// TestNoNames: the description of the machine has neither its name nor that of the
// machine that built its kernel.
func TestNoNames(t *testing.T) {
	for release, want := range map[string]string{"6.18.44-fc-v657": "6.18.44", "5.14.0-570.el9.s390x": "5.14.0", "6.12": "6.12", "": ""} {
		if got := kernelVersion(release); got != want {
			t.Errorf("%q: %q, want %q", release, got, want)
		}
	}
	for cpuinfo, want := range map[string]string{
		"processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD  EPYC\t7B13\n": "AMD EPYC 7B13",
		"vendor_id       : IBM/S390\n# processors    : 2\n":                          "IBM/S390",
		"processor\t: 0\nCPU part\t: 0xd0c\n":                                        "0xd0c",
		"":                                                                           "",
	} {
		if got := cpuModel(cpuinfo); got != want {
			t.Errorf("%q: %q, want %q", cpuinfo, got, want)
		}
	}
	got := command(options{smcr: "/home/me/smcr", out: "/home/me/out", rows: "all", rounds: 3, time: time.Second, serveFlags: "--spin 0s"})
	if want := `smcrbench -rows all -rounds 3 -time 1s -serve-flags "--spin 0s"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestEachRowIsMeasured: each row has exactly one workload, on a bed that exists.
func TestEachRowIsMeasured(t *testing.T) {
	var measured []string
	for _, w := range workloads {
		measured = append(measured, w.rows...)
		if _, ok := bedSpecs[w.bed]; !ok && w.bed != "" {
			t.Errorf("%v: no bed %q", w.rows, w.bed)
		}
	}
	for _, row := range bench.Rows() {
		n := 0
		for _, id := range measured {
			if id == row.ID {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is measured %d times", row.ID, n)
		}
		for _, w := range workloads {
			if slices.Contains(w.rows, row.ID) && w.bed != "" && bedSpecs[w.bed].mtu != row.MTU {
				t.Errorf("%s has MTU %d and is measured with %d", row.ID, row.MTU, bedSpecs[w.bed].mtu)
			}
		}
	}
	for _, tr := range traffics {
		if !slices.Contains(measured, tr.row) || serverPorts[tr.server] == 0 {
			t.Errorf("traffic %s of server %s", tr.row, tr.server)
		}
	}
}

func TestLacking(t *testing.T) {
	if got := lacking(1, 100); got != "" {
		t.Errorf("one connection: %s", got)
	}
	for _, most := range []int{0, 100} {
		if got := lacking(100*mostPairs+1, most); !strings.Contains(got, "open files") {
			t.Errorf("%d for each pair: %q", most, got)
		}
	}
	if got := lacking(1<<40, 1<<40); !strings.Contains(got, "memory") {
		t.Errorf("2⁴⁰ connections: %q", got)
	}
}
