// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"smcr/internal/testing/testkind"
)

// A testName is the package and the test, without the subtest.
type testName struct{ pkg, test string }

func (n testName) String() string { return strings.TrimPrefix(n.pkg, module+"/") + " " + n.test }

// A tested is what came of a test of a package.
type tested struct {
	results []string // pass, fail or skip of each try; "" while it runs
	outputs []string // of each try
	process int      // which test binary of its package the last try is of
	system  bool     // see package testkind
	seconds float64  // of the last try
	skips   []skip   // of the test and its subtests
}

type skip struct{ name, reason string }

func (t *tested) flaky() bool { return slices.Contains(t.results, "fail") && t.last() == "pass" }

func (t *tested) last() string { return t.results[len(t.results)-1] }

// An outcome is what came of one call of go test and of what was tried again.
type outcome struct{ tests map[testName]*tested }

// An event is a line of `go test -json`: see `go doc test2json`.
type event struct {
	Action, Package, Test, Output, Key, Value string
	Elapsed                                   float64 // seconds
}

// skipReason matches the line in which a skipped test says why.
var skipReason = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)$`)

// readOutcome reads the events that gotestsum has kept.
func readOutcome(from io.Reader) (outcome, error) {
	o := outcome{map[testName]*tested{}}
	said := map[[2]string]string{} // what skipped tests and subtests have said last
	ended := map[string]int{}      // test binaries of a package
	sc := bufio.NewScanner(from)
	sc.Buffer(make([]byte, 64<<10), 16<<20)
	for sc.Scan() {
		var e event
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			return outcome{}, fmt.Errorf("output of go test: %w", err)
		}
		top, _, sub := strings.Cut(e.Test, "/")
		if top == "" {
			if e.Action == "pass" || e.Action == "fail" {
				ended[e.Package]++
			}
			continue
		}
		t := o.tests[testName{e.Package, top}]
		if t == nil {
			t = &tested{}
			o.tests[testName{e.Package, top}] = t
		}
		if e.Action == "run" && !sub {
			// A package may run all its tests several times. That is one try.
			if len(t.results) == 0 || t.process != ended[e.Package] {
				t.results, t.outputs = append(t.results, ""), append(t.outputs, "")
				t.process = ended[e.Package]
			}
			continue
		}
		if len(t.results) == 0 {
			continue
		}
		at := len(t.results) - 1
		switch e.Action {
		case "attr":
			t.system = t.system || e.Key == testkind.Key && e.Value == testkind.SystemValue
		case "output":
			t.outputs[at] += e.Output
			if m := skipReason.FindStringSubmatch(strings.TrimSuffix(e.Output, "\n")); m != nil {
				said[[2]string{e.Package, e.Test}] = m[1]
			}
		case "skip", "pass", "fail":
			if e.Action == "skip" {
				t.skips = append(t.skips, skip{e.Test, said[[2]string{e.Package, e.Test}]})
			}
			if !sub {
				t.seconds = e.Elapsed
				if t.results[at] != "fail" {
					t.results[at] = e.Action
				}
			}
		}
	}
	// A test binary that crashed says nothing of the tests that ran.
	for _, t := range o.tests {
		for i, r := range t.results {
			if r == "" {
				t.results[i] = "fail"
			}
		}
	}
	return o, sc.Err()
}

// onlySystemFlaky returns an error if a test that is no system test failed and then passed.
// It was run again because it shares a package with system tests, but its failure is a bug.
func (o outcome) onlySystemFlaky() error {
	var names []string
	for name, t := range o.tests {
		if t.flaky() && !t.system {
			names = append(names, name.String())
		}
	}
	if names == nil {
		return nil
	}
	slices.Sort(names)
	return errors.New("failed at the first try, and is no system test: " + strings.Join(names, ", "))
}
