// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

const root = "../../.."

// TestFeatures checks that the end-to-end tests of the features exist, and that no test
// stands for two features.
func TestFeatures(t *testing.T) {
	have := testNames(t, e2eFolder)
	seen := make(map[string]bool)
	for _, c := range features {
		if !slices.Contains(have, c.test) {
			t.Errorf("%q: package e2e has no test %s", c.feature, c.test)
		}
		if seen[c.test] {
			t.Errorf("test %s is there twice", c.test)
		}
		seen[c.test] = true
	}
}

// testNames returns the names of the tests in a folder of the module.
func testNames(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", folder, err)
	}
	var names []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunction.FindAllStringSubmatch(string(b), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// TestPackages checks that those packages that boot kernels, and no others, are in the list of
// kernelPackages, and that each package of a list is there.
func TestPackages(t *testing.T) {
	testkind.System(t)
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}} {{join .TestImports \" \"}} {{join .XTestImports \" \"}}", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		p := strings.TrimPrefix(f[0], module+"/")
		all = append(all, p)
		if slices.Contains(f[1:], module+"/internal/testing/guest") != slices.Contains(kernelPackages, p) {
			t.Errorf("%s: its tests import package guest, or it is in kernelPackages, but not both", p)
		}
	}
	for _, p := range slices.Concat(kernelPackages, longPackages, adversaryPackages, []string{e2eFolder, soak, packages, stacktest}) {
		if !slices.Contains(all, p) {
			t.Errorf("there is no package %s", p)
		}
	}
}

func TestParts(t *testing.T) {
	for _, name := range partNames() {
		p, ok := options{}.part(name)
		if !ok || len(p.steps) == 0 {
			t.Errorf("part %s: %t, %d steps", name, ok, len(p.steps))
		}
		for i, s := range p.steps {
			if slices.ContainsFunc(p.steps[:i], func(x step) bool { return x.name == s.name }) {
				t.Errorf("part %s has two steps named %q", name, s.name)
			}
		}
	}
	if _, ok := (options{}).part("other"); ok {
		t.Error("a part that is not there has steps")
	}
}

// TestSkipStatus checks that a step that cannot do its work here is told as skipped, with the
// reason, and is no failure.
func TestSkipStatus(t *testing.T) {
	testkind.System(t)
	for _, tt := range []struct {
		script, say string
		ok          bool
	}{
		{"echo one; echo the reason; exit 77", "      1  the reason (step it)\n", true},
		{"exit 77", "FAILED STEP: it: sh: exit status 77\n", false}, // without a reason
		{"echo no; exit 1", "FAILED STEP: it: sh: exit status 1\n", false},
	} {
		var out bytes.Buffer
		err := options{results: t.TempDir()}.run(t.Context(), &out, part{"x", []step{program("it", "sh", "-c", tt.script)}})
		if (err == nil) != tt.ok || !strings.Contains(out.String(), tt.say) {
			t.Errorf("%s: %v:\n%s", tt.script, err, &out)
		}
	}
}

// TestGrown: a step is named if it takes half as long again as before.
func TestGrown(t *testing.T) {
	before := &result{Steps: []stepped{{"a", 100, ""}, {"b", 100, ""}, {"c", 2, ""}, {"d", 1, "failed"}}}
	r := &result{Part: "x", OK: true, Steps: []stepped{{"a", 151, ""}, {"b", 149, ""}, {"c", 4, ""}, {"d", 60, ""}, {"e", 60, ""}}}
	var out bytes.Buffer
	r.print(&out, before)
	if got := strings.Count(out.String(), "GREW"); got != 1 || !strings.Contains(out.String(), "a  GREW from 100\n") {
		t.Errorf("%d steps grew:\n%s", got, &out)
	}
	r.print(&out, nil)
}

// TestResults: a result is what was written, is found again by its part, and stands in the table.
func TestResults(t *testing.T) {
	dir := t.TempDir()
	if r, err := readResult(dir, "sim"); r != nil || err != nil {
		t.Fatalf("result %v, %v before there is one", r, err)
	}
	r := &result{Part: "sim", Commit: "0123456789", Tree: "abc", OK: true, Passed: 3, Flaky: 1, FlakyTests: []flakyTest{{Test: "a TestB", Output: "x"}}}
	for range 2 {
		if err := r.write(dir); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readResult(dir, "sim")
	if err != nil || got.Tree != "abc" || got.Passed != 3 || !got.OK {
		t.Errorf("%+v, %v", got, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "flaky.jsonl")); err != nil || strings.Count(string(b), "a TestB") != 2 {
		t.Errorf("flaky tests: %s, %v", b, err)
	}
	var out bytes.Buffer
	if err := printResults(&out, dir); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| sim | green | 0 | 3 | 0 | 1 | 0 | 01234567 | no |\n", "| race | not run |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// TestOutcome reads the events of a run and of what was run again.
func TestOutcome(t *testing.T) {
	const input = `{"Action":"run","Package":"smcr/a","Test":"TestOne"}
{"Action":"attr","Package":"smcr/a","Test":"TestOne/sub","Key":"kind","Value":"system"}
{"Action":"output","Package":"smcr/a","Test":"TestOne","Output":"    a_test.go:7: broken\n"}
{"Action":"fail","Package":"smcr/a","Test":"TestOne","Elapsed":3}
{"Action":"run","Package":"smcr/a","Test":"TestTwo"}
{"Action":"run","Package":"smcr/a","Test":"TestTwo/sub"}
{"Action":"output","Package":"smcr/a","Test":"TestTwo/sub","Output":"    a_test.go:9: needs a moon\n"}
{"Action":"skip","Package":"smcr/a","Test":"TestTwo/sub"}
{"Action":"pass","Package":"smcr/a","Test":"TestTwo"}
{"Action":"run","Package":"smcr/a","Test":"TestTwice"}
{"Action":"fail","Package":"smcr/a","Test":"TestTwice"}
{"Action":"run","Package":"smcr/a","Test":"TestTwice"}
{"Action":"pass","Package":"smcr/a","Test":"TestTwice"}
{"Action":"fail","Package":"smcr/a","Elapsed":4}
{"Action":"run","Package":"smcr/b","Test":"TestCrash"}
{"Action":"fail","Package":"smcr/b","Elapsed":1}
{"Action":"run","Package":"smcr/a","Test":"TestOne"}
{"Action":"pass","Package":"smcr/a","Test":"TestOne","Elapsed":2}
`
	o, err := readOutcome(strings.NewReader(input))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.onlySystemFlaky(); err != nil {
		t.Error(err)
	}
	r := &result{Skips: map[string][]string{}}
	r.add(o)
	got := fmt.Sprint(r.Passed, r.Failed, r.Flaky, r.Skipped, r.Failures, r.Skips)
	if want := "2 2 1 0 [a TestTwice b TestCrash] map[needs a moon:[a TestTwo/sub]]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(r.FlakyTests) != 1 || !strings.Contains(r.FlakyTests[0].Output, "broken") || r.FlakyTests[0].Tries != 2 {
		t.Errorf("flaky: %+v", r.FlakyTests)
	}
	o.tests[testName{"smcr/a", "TestOne"}].system = false
	if err := o.onlySystemFlaky(); err == nil || !strings.Contains(err.Error(), "a TestOne") {
		t.Errorf("a pure test that fails once: %v", err)
	}
	if _, err := readOutcome(strings.NewReader("{")); err == nil {
		t.Error("half an event is read")
	}
}

// TestChosen: with -run, only packages that have such a test are compiled.
func TestChosen(t *testing.T) {
	for only, want := range map[string]bool{"": true, "^TestChosen$/sub": true, "^TestOther$": false} {
		if got, err := (options{only: only}).hasTest("."); got != want || err != nil {
			t.Errorf("%q: %t, %v", only, got, err)
		}
	}
	if _, err := (options{only: "("}).hasTest("."); err == nil {
		t.Error("half a pattern is taken")
	}
}
