// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"sync"
	"time"
)

// An Outcome is what became of a mutant.
type Outcome string

// The outcomes.
const (
	Killed     Outcome = "killed"      // a test failed
	Endless    Outcome = "timed out"   // the tests took far longer than without the mutant, which they notice
	Survived   Outcome = "survived"    // all tests that reach it passed
	NotCovered Outcome = "not covered" // no test reaches it
)

// A Judge tries mutants with the tests of a package.
type Judge struct {
	// Unused are tests that tell nothing: they skip themselves, or fail without a mutant.
	// The value says which.
	Unused map[string]string

	tests   *Tests
	reached map[string][]bool
	cpu     map[string]time.Duration

	mu    sync.Mutex
	kills map[string]int // how many mutants each test killed
}

// longest is how much processor time a test may take without a mutant.
const longest = time.Minute

// Judge runs each test that matches once without a mutant, some at a time, to see how long
// it takes and which mutants it reaches.
func (t *Tests) Judge(ctx context.Context, jobs int, match *regexp.Regexp) (*Judge, error) {
	j := &Judge{Unused: map[string]string{}, tests: t, reached: map[string][]bool{}, cpu: map[string]time.Duration{}, kills: map[string]int{}}
	var names []string
	for _, n := range t.Names {
		if match == nil || match.MatchString(n) {
			names = append(names, n)
		}
	}
	return j, Each(jobs, names, func(name string) error {
		r, reached, err := t.Reached(ctx, longest, name)
		if err != nil {
			return err
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		switch {
		case r.Verdict != Passed:
			j.Unused[name] = "fails without a mutant"
		case r.Skipped:
			j.Unused[name] = "skips itself"
		default:
			j.reached[name], j.cpu[name] = reached, r.CPU
		}
		return nil
	})
}

// failed finds the test that failed in the output of a test binary.
var failed = regexp.MustCompile(`(?m)^--- FAIL: (\w+) `)

// Try runs the tests that reach a mutant: first those which cost little and have killed
// many.
func (j *Judge) Try(ctx context.Context, mutant int) (Outcome, error) {
	names := j.inOrder(mutant)
	if len(names) == 0 {
		return NotCovered, nil
	}
	// Some at a time, because of what starting a process costs: each group costs a few
	// times as much as the one before.
	for budget := 200 * time.Millisecond; len(names) > 0; budget *= 5 {
		n, sum := 0, time.Duration(0)
		for n < len(names) && (n == 0 || sum+j.cpu[names[n]] < budget) {
			sum += j.cpu[names[n]]
			n++
		}
		r, err := j.tests.Run(ctx, mutant, 2*time.Second+3*sum, names[:n]...)
		if err != nil {
			return "", err
		}
		switch r.Verdict {
		case TimedOut:
			return Endless, nil
		case Failed:
			if m := failed.FindStringSubmatch(r.Output); m != nil {
				j.mu.Lock()
				j.kills[m[1]]++
				j.mu.Unlock()
			}
			return Killed, nil
		}
		names = names[n:]
	}
	return Survived, nil
}

// inOrder returns the tests that reach a mutant, the best first.
func (j *Judge) inOrder(mutant int) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var names []string
	for name, reached := range j.reached {
		if reached[mutant] {
			names = append(names, name)
		}
	}
	const start = 5 * time.Millisecond // of any test
	cost := func(name string) float64 {
		return float64(j.cpu[name]+start) / float64(1+j.kills[name])
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(cost(a), cost(b)), cmp.Compare(a, b)) })
	return names
}

// Each calls do for each item, so many at a time. It returns the first error, after which
// no more are begun.
func Each[T any](jobs int, items []T, do func(T) error) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		next  int
		first error
	)
	for range max(jobs, 1) {
		wg.Go(func() {
			for {
				mu.Lock()
				if next == len(items) || first != nil {
					mu.Unlock()
					return
				}
				item := items[next]
				next++
				mu.Unlock()
				if err := do(item); err != nil {
					mu.Lock()
					first = cmp.Or(first, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return first
}
