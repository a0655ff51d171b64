// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"smcr/internal/testing/mutants/mutate"
	"smcr/internal/testing/mutants/trial"
)

// rfcJudges are the packages of the table whose code is removed, and whose tests must
// notice it. The tests of the others need real programs, other hosts or the kernel.
var rfcJudges = []string{"conn", "devices", "driver", "linkgroup", "network", "rendezvous", "smc", "stacktest", "userstack", "wire"}

// A remover removes the code of rows and runs their tests.
type remover struct {
	ids   map[string]int          // the mutant for each package.Declaration
	tests map[string]*trial.Tests // by short name of the package

	mu      sync.Mutex
	reached map[string][]bool        // by name of the test: what it comes to
	cpu     map[string]time.Duration // what it takes
	whole   map[string]bool          // its part is not run on its own
	unused  map[string]string        // why a test cannot be used
	noticed map[string]bool          // by mutant and test
}

// testWithoutCode removes what each row names, one function after the other: the function
// returns zero values. Of a type, all methods do. One of the tests of the row must then
// fail. A test that needs root or the network says nothing here, and neither does the
// removal of what has no body: these are counted.
func testWithoutCode(t *testing.T, rows []rfcRow) {
	r := newRemover(t)
	var names []string
	for _, row := range rows {
		names = append(names, row.tests...)
	}
	slices.Sort(names)
	if err := trial.Each(runtime.NumCPU(), slices.Compact(names), func(name string) error { return r.baseline(t, name) }); err != nil {
		t.Fatal(err)
	}
	for name, why := range r.unused {
		if why == failsAnyway {
			t.Errorf("%s %s", name, why)
		}
	}

	type pair struct {
		row  rfcRow
		code string
	}
	var pairs []pair
	for _, row := range rows {
		for _, code := range row.code {
			pairs = append(pairs, pair{row, code})
		}
	}
	var mu sync.Mutex
	counts := map[string]int{}
	err := trial.Each(runtime.NumCPU(), pairs, func(p pair) error {
		verdict, problem, err := r.check(t, p.row, p.code)
		mu.Lock()
		defer mu.Unlock()
		counts[verdict]++
		if problem != "" {
			t.Errorf("%s:%d: section %s: %s", rfcTable, p.row.line, p.row.section, problem)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, verdict := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%4d %s", counts[verdict], verdict)
	}
}

// What became of a function of a row.
const (
	noticed     = "removed: a test of the row fails"
	notNoticed  = "removed: NO test of the row fails"
	notRemoved  = "not removed: it has no body, or one that returns zero values"
	notJudged   = "not removed: its package has no tests that run without rights and network"
	notRunnable = "not removed: the tests of the row need rights or other programs"
	failsAnyway = "fails although nothing was removed"
)

func newRemover(t *testing.T) *remover {
	t.Helper()
	var paths []string
	for _, short := range rfcJudges {
		if short != "stacktest" { // nothing but tests
			paths = append(paths, module+"/"+rfcPackages[short])
		}
	}
	m, err := trial.Write(t.Context(), mutate.Bodies, false, paths...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &remover{
		ids: map[string]int{}, tests: map[string]*trial.Tests{},
		reached: map[string][]bool{}, cpu: map[string]time.Duration{}, whole: map[string]bool{}, unused: map[string]string{}, noticed: map[string]bool{},
	}
	for _, short := range rfcJudges {
		for _, mutant := range m.Mutants {
			if mutant.Package == module+"/"+rfcPackages[short] {
				r.ids[short+"."+mutant.Func] = mutant.ID
			}
		}
		if r.tests[short], err = m.Compile(t.Context(), module+"/"+rfcPackages[short]); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// baseline runs a test with all code in place.
func (r *remover) baseline(t *testing.T, name string) error {
	short, test, _ := strings.Cut(name, ".")
	tests := r.tests[short]
	if tests == nil {
		return nil
	}
	got, reached, err := tests.Reached(t.Context(), time.Minute, test)
	top, part, hasPart := strings.Cut(test, "/")
	whole := hasPart && !strings.Contains(got.Output, "=== RUN   "+top+"/"+strings.ReplaceAll(part, " ", "_"))
	if whole && err == nil {
		// The part has no subtest of its own, or one that is deeper: the whole test counts.
		got, reached, err = tests.Reached(t.Context(), time.Minute, top)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case got.Skipped:
		r.unused[name] = "skips itself"
	case got.Verdict != trial.Passed:
		r.unused[name] = failsAnyway
	default:
		r.reached[name], r.cpu[name], r.whole[name] = reached, got.CPU, whole
	}
	return nil
}

// check removes a function that a row names. It returns what became of it, and what is
// wrong with the row.
func (r *remover) check(t *testing.T, row rfcRow, code string) (verdict, problem string, err error) {
	short, _, _ := strings.Cut(code, ".")
	if r.tests[short] == nil {
		return notJudged, "", nil
	}
	id := r.ids[code]
	if id == 0 {
		return notRemoved, "", nil
	}
	var names []string
	other := false
	for _, name := range row.tests {
		if reached := r.reached[name]; reached == nil {
			other = true
		} else if reached[id] {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(r.cpu[a], r.cpu[b]) })
	for _, name := range names {
		if ok, err := r.notices(t, id, name); ok || err != nil {
			return noticed, "", err
		}
	}
	switch {
	case other:
		return notRunnable, "", nil
	case len(names) == 0:
		return notNoticed, fmt.Sprintf("no test of the row comes to `%s`", code), nil
	}
	return notNoticed, fmt.Sprintf("without the body of `%s`, all tests of the row pass: %v", code, names), nil
}

// notices reports whether a test fails with a mutant.
func (r *remover) notices(t *testing.T, id int, name string) (bool, error) {
	key := fmt.Sprint(id, " ", name)
	r.mu.Lock()
	ok, known := r.noticed[key]
	r.mu.Unlock()
	if known {
		return ok, nil
	}
	short, test, _ := strings.Cut(name, ".")
	if r.whole[name] {
		test, _, _ = strings.Cut(test, "/")
	}
	got, err := r.tests[short].Run(t.Context(), id, 2*time.Second+3*r.cpu[name], test)
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noticed[key] = got.Verdict != trial.Passed
	return r.noticed[key], nil
}
