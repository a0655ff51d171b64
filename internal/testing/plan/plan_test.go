// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
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
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(b), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// TestPackages checks that each package with tests is in the plan test-all, and that
// those that boot kernels are in the list of kernelPackages.
func TestPackages(t *testing.T) {
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
	for _, p := range slices.Concat(kernelPackages, racePackages, longPackages, []string{e2eFolder}) {
		if !slices.Contains(all, p) {
			t.Errorf("there is no package %s", p)
		}
	}
}

func TestPlanNames(t *testing.T) {
	for _, name := range planNames() {
		var steps []step
		for _, s := range (options{}).plan(name) {
			steps = append(append(steps, s), s.beside...)
		}
		if len(steps) == 0 {
			t.Errorf("plan %s has no steps", name)
		}
		for i, s := range steps {
			if slices.ContainsFunc(steps[:i], func(x step) bool { return x.name == s.name }) {
				t.Errorf("plan %s has two steps named %q", name, s.name)
			}
		}
	}
	if (options{}).plan("other") != nil {
		t.Error("a plan that is not there has steps")
	}
}

// TestNoTest: a pattern that selects no test is an error.
func TestNoTest(t *testing.T) {
	e := newEvents(newReport(io.Discard), 1, true, false)
	e.line([]byte(`{"Action":"output","Package":"smcr/a","Output":"ok  \tsmcr/a\t0.1s [no tests to run]\n"}`))
	e.line([]byte(`{"Action":"pass","Package":"smcr/a","Elapsed":0.1}`))
	if e.any() == nil {
		t.Error("no error after no test")
	}
	e.line([]byte(`{"Action":"run","Package":"smcr/a","Test":"TestOne"}`))
	if err := e.any(); err != nil {
		t.Error(err)
	}
}

// TestEvents feeds the output of go test: a package that passes, one with a failed
// test, one that does not build and one that ends in the middle of a test.
func TestEvents(t *testing.T) {
	const input = `{"Action":"start","Package":"smcr/a"}
{"Action":"run","Package":"smcr/a","Test":"TestOne"}
{"Action":"output","Package":"smcr/a","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"run","Package":"smcr/a","Test":"TestOne/sub"}
{"Action":"pass","Package":"smcr/a","Test":"TestOne/sub","Elapsed":3}
{"Action":"pass","Package":"smcr/a","Test":"TestOne","Elapsed":3}
{"Action":"run","Package":"smcr/a","Test":"TestTwo"}
{"Action":"output","Package":"smcr/a","Test":"TestTwo","Output":"    a_test.go:7: needs a moon\n"}
{"Action":"skip","Package":"smcr/a","Test":"TestTwo","Elapsed":0}
{"Action":"output","Package":"smcr/a","Output":"ok  \tsmcr/a\t3.1s\n"}
{"Action":"pass","Package":"smcr/a","Elapsed":3.1}
{"Action":"run","Package":"smcr/b","Test":"TestBad"}
{"Action":"output","Package":"smcr/b","Test":"TestBad/x","Output":"    b_test.go:9: wrong\n"}
{"Action":"fail","Package":"smcr/b","Test":"TestBad/x","Elapsed":0}
{"Action":"fail","Package":"smcr/b","Test":"TestBad","Elapsed":0}
{"Action":"run","Package":"smcr/b","Test":"TestEndless"}
{"Action":"output","Package":"smcr/b","Test":"TestEndless","Output":"panic: test timed out\n"}
{"Action":"output","Package":"smcr/b","Output":"FAIL\tsmcr/b\t0.1s\n"}
{"Action":"fail","Package":"smcr/b","Elapsed":0.1}
{"ImportPath":"smcr/c","Action":"build-output","Output":"c/c.go:1:1: syntax error\n"}
{"ImportPath":"smcr/c","Action":"build-fail"}
{"Action":"output","Package":"smcr/c","Output":"FAIL\tsmcr/c [build failed]\n"}
{"Action":"fail","Package":"smcr/c","Elapsed":0,"FailedBuild":"smcr/c"}
{"Action":"run","Package":"smcr/d","Test":"TestPanics"}
{"Action":"output","Package":"smcr/d","Test":"TestPanics","Output":"panic: oh\n"}
{"Action":"output","Package":"smcr/d","Output":"FAIL\tsmcr/d\t0.2s\n"}
{"Action":"fail","Package":"smcr/d","Elapsed":0.2}
no event
`
	var out bytes.Buffer
	r := newReport(&out)
	e := newEvents(r, 4, false, false)
	for line := range bytes.Lines([]byte(input)) {
		e.line(bytes.TrimSuffix(line, []byte("\n")))
	}
	r.endStep("tests", time.Second, 2*time.Second, errors.New("exit status 1"))
	progress := out.String()
	for _, want := range []string{
		"ok  \tsmcr/a\t3.1s\t(1 of 4, 0 s)\n", "FAIL\tsmcr/b\t0.1s\t(2 of 4, 0 s)\n", "no event\n", "c/c.go:1:1: syntax error\n",
	} {
		if !strings.Contains(progress, want) {
			t.Errorf("no line %q in\n%s", want, progress)
		}
	}
	out.Reset()
	if r.summary("test") {
		t.Error("the summary says that all passed")
	}
	end := out.String()
	for _, want := range []string{
		"    1.0     2.0  tests\n", "    3.0 s  a TestOne\n", "      1    needs a moon (a TestTwo)\n",
		"FAILED: smcr/b TestBad\n        b_test.go:9: wrong\n", "FAILED: smcr/b TestEndless (did not end)\n    panic: test timed out\n",
		"FAILED: smcr/c does not build\n    c/c.go:1:1: syntax error\n",
		"FAILED: smcr/d TestPanics (did not end)\n    panic: oh\n", "FAILED STEP: tests: exit status 1\n",
	} {
		if !strings.Contains(end, want) {
			t.Errorf("no text %q in\n%s", want, end)
		}
	}
	if want := "tests: 1 passed, 3 failed, 1 skipped\n"; !strings.HasSuffix(end, want) {
		t.Errorf("the summary does not end with %q:\n%s", want, end)
	}
}

// TestSteps checks that a step that fails does not stop the others, and that its
// output is repeated at the end.
func TestSteps(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out)
	runSteps(t.Context(), r, []step{
		command("first", "sh", "-c", "echo no such moon; exit 3"),
		command("second", "echo", "done"),
	})
	if r.summary("test") {
		t.Error("the summary says that all passed")
	}
	text := out.String()
	for _, want := range []string{
		"[1/2] first\n    no such moon\n    FAILED: sh: exit status 3\n[2/2] second\n    done\n",
		"FAILED: first\n    no such moon\n", "tests: 0 passed, 0 failed, 0 skipped\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no text %q in\n%s", want, text)
		}
	}
}

// TestBeside checks that the steps beside a step run at the same time, one after another
// and with low priority, and that the next step waits for them.
func TestBeside(t *testing.T) {
	own, err := exec.Command("nice").Output()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r := newReport(&out)
	ended := make(chan struct{})
	main := step{name: "main", run: func(context.Context, *job) error {
		<-ended
		return nil
	}}
	main.beside = []step{command("priority", "nice"), {name: "last", run: func(context.Context, *job) error {
		close(ended)
		return errors.New("no moon")
	}}}
	runSteps(t.Context(), r, []step{main, command("next", "nice")})
	r.summary("test")
	// The name of the main step may come between the two lines of the step beside it.
	for _, want := range []string{"[2/4] beside it: priority\n", "\n    19\n", "[4/4] next\n    " + string(own), "FAILED STEP: last: no moon\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no text %q in\n%s", want, out.String())
		}
	}
}

// TestBesideAlone checks that programs beside a step have the usual priority when it has ended:
// the one that runs, and those that start later.
func TestBesideAlone(t *testing.T) {
	own, err := exec.Command("nice").Output()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r := newReport(&out)
	running := filepath.Join(t.TempDir(), "running")
	main := step{name: "main", run: func(context.Context, *job) error {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(running); err == nil {
				return nil
			} else if time.Now().After(end) {
				return err
			}
		}
	}}
	main.beside = []step{
		command("runs", "sh", "-c", "echo before $(nice); touch "+running+"; for i in $(seq 100); do [ $(nice) = 19 ] || break; sleep 0.1; done; echo after $(nice)"),
		command("later", "sh", "-c", "echo later $(nice)"),
	}
	want := []string{"before 19\n", "later " + string(own)}
	if os.Geteuid() == 0 {
		want = append(want, "after "+string(own))
	}
	runSteps(t.Context(), r, []step{main})
	for _, want := range want {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no text %q in\n%s", want, out.String())
		}
	}
}

// TestWaited checks that the time for which a test has waited for a guest does not count.
func TestWaited(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out)
	e := newEvents(r, 1, true, false)
	for _, line := range []string{
		`{"Action":"run","Package":"smcr/a","Test":"TestBoot"}`,
		`{"Action":"output","Package":"smcr/a","Test":"TestBoot","Output":"    a_test.go:7: waited for the guests of other tests: 1m2s\n"}`,
		`{"Action":"pass","Package":"smcr/a","Test":"TestBoot","Elapsed":70}`,
	} {
		e.line([]byte(line))
	}
	if want := "--- PASS: TestBoot (8.0 s)\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// TestInterrupted checks that no step begins after an interrupt, and that the plan
// then counts as failed.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	r := newReport(&out)
	runSteps(ctx, r, []step{
		{name: "first", run: func(context.Context, *job) error { cancel(); return nil }},
		{name: "second", run: func(context.Context, *job) error { t.Error("the second step runs"); return nil }},
	})
	if r.summary("test") {
		t.Error("the summary says that all passed")
	}
}
