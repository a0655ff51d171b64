// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strings"
)

// Row is one line of the table: a quantity measured over kernel TCP and over
// SMC-R, in turn. The names of its JSON fields do not change.
type Row struct {
	// ID selects the row (-rows) and does not change. Name is its title.
	ID   string `json:"id"`
	Name string `json:"name"`
	// Unit of the values of both transports.
	Unit string `json:"unit"`
	// MTU of the link in bytes.
	MTU int `json:"mtu"`
	// LessIsBetter is set for latencies and costs.
	LessIsBetter bool `json:"less_is_better,omitempty"`
	// Value of an Absolute row is in Unit. Value of the others is a multiple of kernel
	// TCP.
	Absolute bool `json:"absolute,omitempty"`
	// Target is what Value must reach, Aim what it should reach. 0 means that there is
	// none.
	Target float64 `json:"target,omitempty"`
	Aim    float64 `json:"aim,omitempty"`
	// TCP and SMC have one value for each round, Ratios one quotient.
	TCP    []float64 `json:"tcp"`
	SMC    []float64 `json:"smc"`
	Ratios []float64 `json:"ratios"`
	// Value is the median of Ratios. For an absolute row it is the median of the
	// differences between SMC-R and TCP.
	Value float64 `json:"value"`
	// Met says which of the two Value reaches: "aim", "target" or "no". It is empty if
	// there is no target.
	Met string `json:"met,omitempty"`
	// TCPScatter is the largest value of TCP as a multiple of the smallest.
	TCPScatter float64 `json:"tcp_scatter"`
	// Against has the values over SMC-R of another build of smcr, one for each round, if it was measured
	// beside this one, and ToOther the median of the quotients SMC/Against of the rounds.
	Against []float64 `json:"against,omitempty"`
	ToOther float64   `json:"to_other,omitempty"`
	// CostUnit is the unit of the costs. It is empty for rows without.
	CostUnit    string `json:"cost_unit,omitempty"`
	CostTCP     *Cost  `json:"cost_tcp,omitempty"`
	CostSMC     *Cost  `json:"cost_smc,omitempty"`
	CostAgainst *Cost  `json:"cost_against,omitempty"`
}

// Rows returns the rows of the table in their order, without values. The targets are
// those of the data path of the user-space stack.
func Rows() []*Row {
	return []*Row{
		{ID: "iperf3-1500", Name: "iperf3", Unit: "Gbit/s", MTU: 1500, Target: 0.30, Aim: 0.6},
		{ID: "iperf3-9000", Name: "iperf3", Unit: "Gbit/s", MTU: 9000, Target: 0.35, Aim: 0.8},
		{ID: "cpu-1500", Name: "CPU of all processes, iperf3", Unit: "s/GiB", MTU: 1500, LessIsBetter: true, Target: 4, Aim: 2},
		{ID: "roundtrip", Name: "round trip of 1 byte, a Go program", Unit: "µs", MTU: 1500, LessIsBetter: true, Target: 2.5, Aim: 1.3},
		{ID: "roundtrip-c", Name: "round trip of 1 byte, a C program", Unit: "µs", MTU: 1500, LessIsBetter: true, Target: 2.5, Aim: 1.3},
		{ID: "redis-1", Name: "redis-benchmark -c 1", Unit: "requests/s", MTU: 1500, Target: 0.4, Aim: 0.77},
		{ID: "redis", Name: "redis-benchmark -c 50", Unit: "requests/s", MTU: 1500, Target: 0.6, Aim: 1},
		{ID: "redis-p16", Name: "redis-benchmark -c 50 -P 16", Unit: "requests/s", MTU: 1500, Target: 0.6, Aim: 1},
		{ID: "wrk-4", Name: "wrk, keep-alive, 4 connections, nginx", Unit: "requests/s", MTU: 1500},
		{ID: "wrk", Name: "wrk, keep-alive, 50 connections, nginx", Unit: "requests/s", MTU: 1500, Target: 0.6, Aim: 1},
		{ID: "wrk-200", Name: "wrk, keep-alive, 200 connections, nginx", Unit: "requests/s", MTU: 1500},
		{ID: "close-4", Name: "wrk, Connection: close, 4 clients", Unit: "requests/s", MTU: 1500},
		{ID: "close", Name: "wrk, Connection: close, 50 clients", Unit: "requests/s", MTU: 1500, Target: 0.35, Aim: 0.8},
		{ID: "close-200", Name: "wrk, Connection: close, 200 clients", Unit: "requests/s", MTU: 1500, Target: 0.35, Aim: 0.8},
		{ID: "close-smc", Name: "the same, 50 clients, each connection over SMC-R", Unit: "requests/s", MTU: 1500},
		{ID: "close-nopeer", Name: "the same, 50 clients, the server without smcr", Unit: "requests/s", MTU: 1500, Target: 0.6, Aim: 0.9},
		{ID: "goapi", Name: "Go API, writes of 128 KiB", Unit: "MiB/s", MTU: 9000, Target: 0.5, Aim: 1},
		{ID: "goapi-roundtrip", Name: "Go API, round trip of 1 byte", Unit: "µs", MTU: 9000, LessIsBetter: true, Target: 1.7, Aim: 1},
		{ID: "iperf3-v1", Name: "iperf3, RoCE v1", Unit: "Gbit/s", MTU: 9000, Target: 0.3, Aim: 0.5},
		// Connections within a machine are TCP, so all that
		// these rows measure is what smcr adds to it.
		{ID: "containers-iperf3", Name: "two containers of one host: iperf3", Unit: "Gbit/s", MTU: 1500, Target: 0.95, Aim: 1},
		{ID: "containers-roundtrip", Name: "two containers of one host: round trip of 1 byte, a Go program", Unit: "µs", MTU: 1500, LessIsBetter: true, Target: 1.05, Aim: 1},
		{ID: "memory", Name: "memory of a connection, both ends", Unit: "KiB", MTU: 1500, LessIsBetter: true, Absolute: true, Target: 160, Aim: 40},
		{ID: "connect", Name: "connections, one after the other", Unit: "connections/s", MTU: 1500},
	}
}

// Sweeps are the names of the measurements for the plots, for -rows.
var Sweeps = []string{"sizes", "connections", "shares"}

// Select returns the IDs that a comma-separated list selects. "all" selects every row and
// sweep. Another name selects the row or sweep with this ID, and those whose ID continues
// after a hyphen ("iperf3": iperf3-1500, iperf3-9000, iperf3-v1).
func Select(list string) (map[string]bool, error) {
	var ids []string
	for _, r := range Rows() {
		ids = append(ids, r.ID)
	}
	ids = append(ids, Sweeps...)
	chosen := make(map[string]bool)
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		found := false
		for _, id := range ids {
			if name == "all" || id == name || strings.HasPrefix(id, name+"-") {
				chosen[id], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("bench: no row %q: choose of %s or all", name, strings.Join(ids, ", "))
		}
	}
	return chosen, nil
}

// Whole reports whether the selection has all rows and sweeps.
func Whole(chosen map[string]bool) bool {
	return len(chosen) == len(Rows())+len(Sweeps)
}

// Add adds the values of one round.
func (r *Row) Add(tcp, smc float64) {
	r.TCP, r.SMC = append(r.TCP, Round(tcp)), append(r.SMC, Round(smc))
}

// Finish computes Ratios, Value, Met and TCPScatter from the values.
func (r *Row) Finish() {
	r.Ratios = Ratios(r.TCP, r.SMC)
	for i, v := range r.Ratios {
		r.Ratios[i] = Round(v)
	}
	r.Value = Median(r.Ratios)
	if r.Absolute {
		var extra []float64
		for i := range r.SMC {
			extra = append(extra, r.SMC[i]-r.TCP[i])
		}
		r.Value = Round(Median(extra))
		r.Ratios = nil
	}
	r.TCPScatter = Round(Scatter(r.TCP))
	r.ToOther = Round(Median(Ratios(r.Against, r.SMC)))
	r.Met = ""
	if r.Target != 0 && len(r.SMC) > 0 {
		switch {
		case r.reaches(r.Aim):
			r.Met = "aim"
		case r.reaches(r.Target):
			r.Met = "target"
		default:
			r.Met = "no"
		}
	}
}

func (r *Row) reaches(mark float64) bool {
	if r.LessIsBetter {
		return r.Value <= mark
	}
	return r.Value >= mark
}

// Restless returns the rows whose TCP values scatter by more than ScatterLimit: their
// ratios are not reliable. Absolute rows have no ratios.
func Restless(rows []*Row) []*Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r *Row) bool {
		return r.Absolute || r.TCPScatter <= ScatterLimit
	})
}

// ScatterLimit is the largest TCPScatter of reliable values.
const ScatterLimit = 1.25
