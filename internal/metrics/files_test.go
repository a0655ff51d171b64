// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"smcr/internal/reasons"
)

// known returns the names of all series, with those that a histogram consists of.
func known() (names []string) {
	names = []string{namespace + "_up", namespace + "_stacks"}
	for i := range families {
		name := namespace + "_" + families[i].name
		names = append(names, name)
		if families[i].histogram != nil {
			names = append(names, name+"_bucket", name+"_sum", name+"_count")
		}
	}
	return names
}

var nameRE = regexp.MustCompile(`\bsmcr_[a-z0-9_]+`)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFilesNames: each metric that the rules and the dashboard name exists, and each metric
// that there is occurs in the documentation, which names no others.
func TestFilesNames(t *testing.T) {
	const document = "../../docs/monitoring.md"
	for _, file := range []string{"../../deploy/prometheus/smcr.rules.yaml", "../../deploy/prometheus/smcr.rules.test.yaml", "../../deploy/prometheus/smcr.dashboard.json", document} {
		found := nameRE.FindAllString(read(t, file), -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range found {
			if !slices.Contains(known(), name) {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
	text := read(t, document)
	for i := range families {
		if name := "`" + namespace + "_" + families[i].name + "`"; !strings.Contains(text, name) {
			t.Errorf("%s does not describe %s", document, name)
		}
		for _, label := range families[i].labels {
			if !strings.Contains(text, "`"+label+"`") {
				t.Errorf("%s does not describe the label %s of %s", document, label, families[i].name)
			}
		}
	}
	for _, r := range reasons.All() {
		if label := reasons.Label(r.Code); !strings.Contains(text, "`"+label+"`") && r.Code != 0 {
			t.Errorf("%s does not describe the reason %s", document, label)
		}
	}
	alerts := regexp.MustCompile(`(?m)^      - alert: (\w+)$`).FindAllStringSubmatch(read(t, "../../deploy/prometheus/smcr.rules.yaml"), -1)
	if len(alerts) == 0 {
		t.Error("there are no alerts")
	}
	for _, a := range alerts {
		if !strings.Contains(text, "`"+a[1]+"`") {
			t.Errorf("%s does not say what to do about %s", document, a[1])
		}
	}
}

// TestDashboard checks the form of the dashboard: panels have different IDs, lie beside each
// other, and have a description and a query.
func TestDashboard(t *testing.T) {
	var d struct {
		UID, Title string
		Panels     []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ H, W, X, Y int }
			Targets                  []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "../../deploy/prometheus/smcr.dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || len(d.Panels) < 10 {
		t.Errorf("%q, %q, %d panels", d.UID, d.Title, len(d.Panels))
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d, %q, is there twice or has no title", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q or outside", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q has no description or no query", p.Title)
		}
		for _, q := range p.Targets {
			if !strings.Contains(q.Expr, `job="$job", instance=~"$instance"`) || q.LegendFormat == "" {
				t.Errorf("panel %q: %q shows all hosts or has no legend", p.Title, q.Expr)
			}
		}
	}
}
