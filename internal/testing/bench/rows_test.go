// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// row returns a row of the table by its ID.
func row(t *testing.T, id string) *Row {
	t.Helper()
	i := slices.IndexFunc(Rows(), func(r *Row) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("no row %s", id)
	}
	return Rows()[i]
}

func TestRowsAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rows() {
		if r.ID == "" || r.Name == "" || r.Unit == "" || r.MTU == 0 || seen[r.ID] {
			t.Errorf("row %+v", r)
		}
		seen[r.ID] = true
		if (r.Target == 0) != (r.Aim == 0) {
			t.Errorf("%s: a target without an aim, or the other way", r.ID)
		}
		if r.LessIsBetter && r.Aim > r.Target || !r.LessIsBetter && r.Aim < r.Target {
			t.Errorf("%s: the aim %v is easier than the target %v", r.ID, r.Aim, r.Target)
		}
	}
	for _, s := range Sweeps {
		if seen[s] {
			t.Errorf("%s is a row and a sweep", s)
		}
	}
}

func TestSelect(t *testing.T) {
	for list, want := range map[string][]string{
		"iperf3":            {"iperf3-1500", "iperf3-9000", "iperf3-v1"},
		"iperf3-v1, memory": {"iperf3-v1", "memory"},
		"redis":             {"redis", "redis-1", "redis-p16"},
		"roundtrip":         {"roundtrip", "roundtrip-c"},
		"sizes":             {"sizes"},
	} {
		got, err := Select(list)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", list, diff)
		}
		if Whole(got) {
			t.Errorf("%s is not all", list)
		}
	}
	all, err := Select("all")
	if err != nil || !Whole(all) {
		t.Errorf("all: %v, %v", all, err)
	}
	for _, list := range []string{"", "iper", "iperf3,", "nothing"} {
		if got, err := Select(list); err == nil || !strings.Contains(err.Error(), "goapi-roundtrip") {
			t.Errorf("%q: %v, %v; want an error that lists the rows", list, got, err)
		}
	}
}

func TestFinish(t *testing.T) {
	for _, test := range []struct {
		id       string
		tcp, smc []float64
		value    float64
		met      string
		restless bool
	}{
		// Value is the median of the ratios of the rounds, not the ratio of the medians.
		{"iperf3-1500", []float64{10, 20, 10}, []float64{3, 10, 4}, 0.4, "target", true},
		{"iperf3-1500", []float64{10, 10}, []float64{6, 6}, 0.6, "aim", false},
		{"iperf3-1500", []float64{10}, []float64{2.9}, 0.29, "no", false},
		{"roundtrip", []float64{20}, []float64{50}, 2.5, "target", false},
		{"roundtrip", []float64{20}, []float64{51}, 2.55, "no", false},
		{"roundtrip", []float64{20}, []float64{20}, 1, "aim", false},
		{"memory", []float64{1, 8}, []float64{31, 58}, 40, "aim", false},
		{"memory", []float64{0}, []float64{161}, 161, "no", false},
		{"connect", []float64{1}, []float64{1}, 1, "", false},
		{"iperf3-1500", nil, nil, 0, "", false},
	} {
		r := row(t, test.id)
		for i := range test.tcp {
			r.Add(test.tcp[i], test.smc[i])
		}
		r.Finish()
		if r.Value != test.value || r.Met != test.met || len(Restless([]*Row{r})) == 1 != test.restless {
			t.Errorf("%s %v %v: value %v, met %q, scatter %v; want %v, %q, restless %t", test.id, test.tcp, test.smc, r.Value, r.Met, r.TCPScatter, test.value, test.met, test.restless)
		}
	}
}
