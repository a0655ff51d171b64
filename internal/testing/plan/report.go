// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// quietTime is how long a step may print nothing. Then the report says what runs.
	quietTime = 20 * time.Second

	// slowest is how many tests the summary lists, and slowTime how long a test of
	// that list takes at least.
	slowest  = 8
	slowTime = 2 * time.Second
)

// A timed is a step or a test and the time that it took by the clock. A step also
// has the processor time of its programs.
type timed struct {
	name            string
	took, processor time.Duration
}

// A report prints the progress of a plan and keeps the results. Its methods may be called
// by several goroutines.
type report struct {
	out   io.Writer
	start time.Time

	mu                      sync.Mutex
	said                    time.Time            // when something was printed
	running                 map[testID]time.Time // tests that run, since when
	steps                   []timed
	failedSteps             []failure
	failures                []failure
	times                   []timed
	skips                   map[string][]string // tests and steps by reason
	passed, failed, skipped int                 // tests of packages, without subtests
}

func newReport(out io.Writer) *report {
	now := time.Now()
	return &report{out: out, start: now, said: now, skips: make(map[string][]string), running: make(map[testID]time.Time)}
}

// say prints a line.
func (r *report) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = time.Now()
	fmt.Fprintf(r.out, format+"\n", args...)
}

// watch prints what runs whenever the step that begins now has printed nothing for
// some time. stop ends that.
func (r *report) watch() (stop func()) {
	start := time.Now()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case now := <-tick.C:
				r.mu.Lock()
				if now.Sub(r.said) >= quietTime {
					r.said = now
					fmt.Fprintf(r.out, "    %d s in this step%s\n", int(now.Sub(start).Seconds()), r.longest(now))
				}
				r.mu.Unlock()
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// longest says which tests have run longest. The caller holds the lock.
func (r *report) longest(now time.Time) string {
	ids := slices.SortedFunc(maps.Keys(r.running), func(a, b testID) int {
		return cmp.Or(r.running[a].Compare(r.running[b]), cmp.Compare(a.name, b.name))
	})
	var text []string
	for _, id := range ids[:min(len(ids), 3)] {
		text = append(text, fmt.Sprintf("%s %s for %d s", strings.TrimPrefix(id.pkg, module+"/"), id.name, int(now.Sub(r.running[id]).Seconds())))
	}
	if text == nil {
		return ""
	}
	return ", running: " + strings.Join(text, ", ")
}

// testRuns says that a test runs from now on.
func (r *report) testRuns(id testID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[id] = time.Now()
}

// testRests says that a test has ended, or waits for its turn.
func (r *report) testRests(id testID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, id)
}

// endTest counts a test of a package by the action of its event.
func (r *report) endTest(action string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
	case "skip":
		r.skipped++
	}
}

// slow records the time of a test.
func (r *report) slow(name string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, timed{name: strings.TrimPrefix(name, module+"/"), took: took})
}

// fail prints a failure and keeps it for the summary.
func (r *report) fail(name string, output []string) {
	r.remember(name, output)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = time.Now()
	f := failure{name, output}
	f.printLogs(r.out)
	f.printCause(r.out)
}

// remember keeps a failure that is already printed for the summary.
func (r *report) remember(name string, output []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, failure{name, output})
}

// endStep records the times and the result of a step.
func (r *report) endStep(name string, took, processor time.Duration, err error) {
	r.mu.Lock()
	r.steps = append(r.steps, timed{name, took, processor})
	r.mu.Unlock()
	if err != nil {
		r.failStep(name, err)
	}
}

// failStep prints and keeps the reason why a step failed.
func (r *report) failStep(name string, err error) {
	r.say("    FAILED: %v", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failedSteps = append(r.failedSteps, failure{name, []string{err.Error()}})
}

// skipReason matches the line in which a skipped test says why.
var skipReason = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)$`)

// skip records a skipped test. Its output ends with the reason.
func (r *report) skip(pkg, test string, output []string) {
	reason := "no reason given"
	for _, l := range output {
		if m := skipReason.FindStringSubmatch(l); m != nil {
			reason = m[1]
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skips[reason] = append(r.skips[reason], strings.TrimPrefix(pkg, module+"/")+" "+test)
}

// skipStep remembers a step that was skipped.
func (r *report) skipStep(name, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skips[reason] = append(r.skips[reason], "step "+name)
}

// summary prints the end of the report and reports whether all steps passed. The
// last line has the counts.
func (r *report) summary(plan string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := func(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }
	p("\n%s: %d steps in %v; seconds by the clock, and of processor time:", plan, len(r.steps), time.Since(r.start).Round(time.Second))
	for _, s := range r.steps {
		p("%7.1f %7.1f  %s", s.took.Seconds(), s.processor.Seconds(), s.name)
	}
	slices.SortStableFunc(r.times, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	times := r.times[:min(len(r.times), slowest)]
	if times = slices.DeleteFunc(times, func(t timed) bool { return t.took < slowTime }); len(times) > 0 {
		p("slowest tests:")
		for _, t := range times {
			p("%7.1f s  %s", t.took.Seconds(), t.name)
		}
	}
	if len(r.skips) > 0 {
		p("skipped, and why:")
		for _, reason := range slices.Sorted(maps.Keys(r.skips)) {
			tests := r.skips[reason]
			names := tests[0]
			if n := len(tests) - 1; n > 0 {
				names += fmt.Sprintf(" and %d more", n)
			}
			p("%7d    %s (%s)", len(tests), reason, names)
		}
	}
	for _, f := range r.failures {
		f.printLogs(r.out)
	}
	for _, f := range r.failures {
		f.printCause(r.out)
	}
	for _, f := range r.failedSteps {
		p("FAILED STEP: %s: %s", f.name, strings.Join(f.output, "\n"))
	}
	p("tests: %d passed, %d failed, %d skipped", r.passed, r.failed, r.skipped)
	return len(r.failedSteps) == 0
}
