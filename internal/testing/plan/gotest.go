// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"smcr/internal/testing/guest"
)

// A goTest is one call of go test.
type goTest struct {
	goTool   string
	packages func(path string) bool // selects packages by their path within the module
	race     bool                   // with the race detector, which needs cgo
	args     []string               // of go test, besides the packages
	guests   int                    // Linux kernels that run at once; 0 for no limit
	byTest   bool                   // prints a line for each test, not for each package
	verbose  bool                   // prints all output of the tests
}

// run runs the tests, prints the progress and adds the results to the report.
func (g goTest) run(ctx context.Context, j *job) error {
	packages, err := g.selected(ctx, j)
	if err != nil {
		return err
	}
	argv := append([]string{g.goTool, "test", "-json"}, g.args...)
	if g.race {
		argv = append(argv, "-race")
	}
	cmd := j.program(ctx, append(argv, packages...)...)
	if g.race {
		// Without the option, a test binary sleeps for a second at its end.
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	}
	if g.guests > 0 {
		dir, err := guest.MakeTurns(g.guests)
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		cmd.Env = append(cmd.Env, guest.TurnsVariable+"="+dir)
	}
	cmd.Stderr = os.Stderr
	pr, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	defer pr.Close()
	cmd.Stdout = pw
	err = j.start(cmd)
	pw.Close()
	if err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	e := newEvents(j.report, len(packages), g.byTest, g.verbose)
	for sc := lineScanner(pr); sc.Scan(); {
		e.line(sc.Bytes())
	}
	if err := j.wait(cmd); err != nil {
		return fmt.Errorf("go test: %w", errors.Join(err, ctx.Err()))
	}
	return e.any()
}

// any returns an error if no test has begun: a pattern that matches none is a typing error.
func (e *events) any() error {
	if e.tests == 0 {
		return errors.New("no test matches")
	}
	return nil
}

// selected returns the import paths of the selected packages that have tests.
func (g goTest) selected(ctx context.Context, j *job) ([]string, error) {
	cmd := j.program(ctx, g.goTool, "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []string
	for _, p := range strings.Fields(string(out)) {
		if g.packages(strings.TrimPrefix(p, module+"/")) {
			packages = append(packages, p)
		}
	}
	if len(packages) == 0 {
		return nil, errors.New("no package is selected")
	}
	rank := func(p string) int {
		if i := slices.Index(longPackages, strings.TrimPrefix(p, module+"/")); i >= 0 {
			return i
		}
		return len(longPackages)
	}
	slices.SortStableFunc(packages, func(a, b string) int { return rank(a) - rank(b) })
	return packages, nil
}

// An event is a line of `go test -json`: see `go doc test2json`, and
// `go help buildjson` for the events of the compiler.
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64 // seconds
	Output      string
	ImportPath  string // of build events
	FailedBuild string // the package that did not build, at the end of a package
}

// A testID names a test of a package. The empty name stands for the package itself.
type testID struct{ pkg, name string }

// top returns the test of the package to which a subtest belongs.
func (id testID) top() testID {
	name, _, _ := strings.Cut(id.name, "/")
	return testID{id.pkg, name}
}

// events reads the events of one call of go test.
type events struct {
	r               *report
	done, total     int // packages
	start           time.Time
	byTest, verbose bool
	output          map[testID][]string // of packages, and of tests with their subtests
	running         map[testID]bool     // tests of packages
	failed          map[testID]bool     // tests of packages
	build           map[string][]string // output of the compiler, by import path
	tests           int                 // that have begun, without their subtests
}

func newEvents(r *report, total int, byTest, verbose bool) *events {
	e := &events{
		r: r, total: total, start: time.Now(), byTest: byTest, verbose: verbose,
		output:  make(map[testID][]string),
		running: make(map[testID]bool),
		failed:  make(map[testID]bool),
		build:   make(map[string][]string),
	}
	return e
}

// line takes a line of the output of go test. A line that is no event is printed.
func (e *events) line(b []byte) {
	var ev event
	if err := json.Unmarshal(b, &ev); err != nil {
		e.r.say("%s", b)
		return
	}
	id := testID{ev.Package, ev.Test}
	switch ev.Action {
	case "build-output":
		text := strings.TrimSuffix(ev.Output, "\n")
		e.build[ev.ImportPath] = append(e.build[ev.ImportPath], text)
		e.r.say("%s", text)
	case "build-fail":
		e.r.fail(ev.ImportPath+" does not build", e.build[ev.ImportPath])
	case "pause": // waits for its turn among the parallel tests
		e.rests(id)
	case "run", "cont":
		if id == id.top() {
			e.running[id] = true
			if ev.Action == "run" {
				e.tests++
			}
			e.r.testRuns(id)
		}
	case "output":
		e.text(id, strings.TrimSuffix(ev.Output, "\n"))
	case "pass", "fail", "skip":
		if ev.Test == "" {
			e.endPackage(ev)
		} else if id == id.top() {
			e.endTest(id, ev)
		} else if ev.Action == "skip" {
			e.r.skip(ev.Package, ev.Test, e.output[id.top()])
		}
	}
}

// rests says that a test does not run any more, or waits.
func (e *events) rests(id testID) {
	delete(e.running, id)
	e.r.testRests(id)
}

// text takes a line that a test or a package has written.
func (e *events) text(id testID, text string) {
	e.output[id.top()] = append(e.output[id.top()], text)
	if e.verbose && id.name != "" {
		e.r.say("%s", text)
	}
}

// endTest takes the result of a test of a package.
func (e *events) endTest(id testID, ev event) {
	e.rests(id)
	d := max(0, time.Duration(ev.Elapsed*float64(time.Second))-waited(e.output[id]))
	e.r.endTest(ev.Action)
	if e.byTest && !e.verbose {
		e.r.say("--- %s: %s (%.1f s)", strings.ToUpper(ev.Action), ev.Test, d.Seconds())
	}
	switch ev.Action {
	case "fail":
		e.failed[id] = true
		e.r.fail(ev.Package+" "+ev.Test, e.output[id])
	case "skip":
		e.r.skip(ev.Package, ev.Test, e.output[id])
	}
	e.r.slow(ev.Package+" "+ev.Test, d)
	delete(e.output, id)
}

// waited returns how long a test has waited for the guests of others, by its output.
func waited(output []string) (sum time.Duration) {
	for _, l := range output {
		if _, text, ok := strings.Cut(l, guest.WaitedText); ok {
			if d, err := time.ParseDuration(text); err == nil {
				sum += d
			}
		}
	}
	return sum
}

// endPackage prints the line of go test for a package, and how far the step is.
func (e *events) endPackage(ev event) {
	e.done++
	id := testID{pkg: ev.Package}
	lines := e.output[id]
	last := ""
	for _, l := range lines {
		if strings.HasPrefix(l, "ok  \t") || strings.HasPrefix(l, "FAIL\t") || strings.HasPrefix(l, "?   \t") {
			last = l
		}
	}
	if last == "" {
		last = fmt.Sprintf("%s\t%s", ev.Action, ev.Package)
	}
	e.r.say("%s\t(%d of %d, %d s)", last, e.done, e.total, int(time.Since(e.start).Seconds()))
	if ev.Action == "fail" && ev.FailedBuild == "" {
		e.failPackage(id, lines)
	}
	delete(e.output, id)
}

// failPackage reports the tests of a failed package that did not end, because it panicked,
// ran out of time, or a test called os.Exit. It also reports the package itself, unless a
// failed test says why.
func (e *events) failPackage(id testID, lines []string) {
	for t := range e.running {
		if t.pkg == id.pkg {
			e.r.endTest("fail")
			e.r.fail(t.pkg+" "+t.name+" (did not end)", e.output[t])
			e.rests(t)
			delete(e.output, t)
		}
	}
	for t := range e.failed {
		if t.pkg == id.pkg {
			return
		}
	}
	e.r.fail(id.pkg, lines)
}
