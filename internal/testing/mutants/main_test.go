// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/internal/testing/mutants/trial"
)

// fixtureOutcomes says what becomes of each mutant of testdata/fixture.
var fixtureOutcomes = map[string]trial.Outcome{
	"Clamp: body removed":                    trial.Killed,
	"Clamp: n > max → true":                  trial.Killed,
	"Clamp: n > max → false":                 trial.Killed,
	"Clamp: n > max → >=":                    trial.Survived,
	"Clamp: return max → return zero values": trial.Killed,
	"Clamp: return n → return zero values":   trial.Killed,

	"Double: body removed": trial.Survived,
	"Double: n * 2 → /":    trial.Survived,
	"Double: 2 → +1":       trial.Survived,

	"Untested: body removed": trial.NotCovered,
	"Untested: 1 → +1":       trial.NotCovered,

	"Sum: body removed":                    trial.Killed,
	"Sum: 0 → +1":                          trial.Survived,
	"Sum: i < n → false":                   trial.Killed,
	"Sum: i < n → <=":                      trial.Killed,
	"Sum: removed: sum += i":               trial.Killed,
	"Sum: sum += i → -=":                   trial.Killed,
	"Sum: return sum → return zero values": trial.Killed,
}

// TestFixture runs the command for a package whose mutants are known.
func TestFixture(t *testing.T) {
	want := fixtureOutcomes
	o := options{jobs: 2, only: "Clamp|Double|Untested|Sum", json: true, known: t.TempDir(), packages: []string{"./testdata/fixture"}}
	known := filepath.Join(o.known, "internal/testing/mutants/testdata/fixture.txt")
	const list = "Clamp\n\tn > max → >=\n\t\tEquivalent: both branches return the same.\nSum\n\tgone → +1\n\tsum += i → -=\n\t\tNobody looks.\n"
	if err := os.MkdirAll(filepath.Dir(known), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(known, []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	ok, err := run(t.Context(), o, &stdout, &stderr)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]trial.Outcome{}
	for dec := json.NewDecoder(&stdout); ; {
		var r row
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got[r.Func+": "+r.Change] = r.Outcome
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
	}
	if ok {
		t.Error("a list of survivors that is not true is accepted")
	}
	for _, text := range []string{
		"TestSkipped (skips itself)", "no such mutant any more:\n\tSum: gone → +1", "a test notices this now: Sum: sum += i → -=",
		"11", // killed
	} {
		if !strings.Contains(stderr.String(), text) {
			t.Errorf("stderr does not say %q:\n%s", text, &stderr)
		}
	}
}

// TestEndless: a mutant that does not end does not keep the command.
func TestEndless(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of processor time")
	}
	var stdout, stderr bytes.Buffer
	o := options{jobs: 1, only: "Drain: removed", json: true, known: t.TempDir(), packages: []string{"./testdata/fixture"}}
	if ok, err := run(t.Context(), o, &stdout, &stderr); err != nil || !ok {
		t.Fatal(ok, err)
	}
	var r row
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Change != "removed: n--" || r.Outcome != trial.Endless {
		t.Errorf("%+v", r)
	}
}

func TestSurvivorsFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "list.txt")
	for text, want := range map[string]string{
		"\t\treason\n":         "a reason without a change",
		"\tchange\n":           "a change without a function",
		"F\n\tchange\nG\n":     "has no reason",
		"F\n\tchange\n":        "has no reason",
		"# c\nF\n\tc\n\t\tr\n": "",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readSurvivors(name); err == nil != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
