// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A suite is a package of the gate, with its test binary.
type suite struct {
	pkg, dir, binary string
	run              string        // regexp of the tests that run
	alone            bool          // it has the processors to itself, but for the load: its kernels are emulated
	took             time.Duration // of the last round
}

// rounds repeats the system tests of the gate: in each round each of them once, several packages at
// the same time. The first round runs all tests, because only a test that runs says that it is one.
func (r repetition) rounds(ctx context.Context, o options, out io.Writer) (failed bool, err error) {
	dir, err := os.MkdirTemp("", "smcr-repeat-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return false, err
	}
	suites, err := r.suites(ctx, o, dir)
	if err != nil {
		return false, err
	}
	stop, err := busy(ctx, r.load)
	if err != nil {
		return false, err
	}
	defer stop()
	fmt.Fprintf(out, "%d rounds of %d packages, %d at a time, beside %d busy loops\n", r.count, len(suites), r.jobs, r.load)
	bad, times := map[string]int{}, 0
	for i := range r.count {
		begun := time.Now()
		seen, err := r.round(ctx, suites)
		if err := errors.Join(err, context.Cause(ctx)); err != nil {
			return failed, err
		}
		times++
		passed, names := 0, []string(nil)
		for name, t := range seen.tests {
			switch t.last() {
			case "pass":
				passed++
			case "fail":
				names = append(names, name.String())
				bad[name.String()]++
				file := fmt.Sprintf("%s-%s-%d.log", strings.ReplaceAll(strings.TrimPrefix(name.pkg, module+"/"), "/", "."), name.test, i+1)
				if err := os.WriteFile(filepath.Join(r.out, file), []byte(t.outputs[0]), 0o644); err != nil {
					return failed, err
				}
			}
		}
		slices.Sort(names)
		fmt.Fprintf(out, "round %d: %d passed, %d failed, %.0f s %s\n", i+1, passed, len(names), time.Since(begun).Seconds(), strings.Join(names, ", "))
		suites = onlySystem(suites, seen)
		if failed = failed || len(names) > 0; len(suites) == 0 {
			return failed, errors.New("no package has a system test")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		fmt.Fprintf(out, "%4d of %d failed  %s\n", bad[name], times, name)
	}
	return failed, nil
}

// suites builds the test binaries of the gate, one after the other.
func (r repetition) suites(ctx context.Context, o options, dir string) ([]*suite, error) {
	all, err := o.selectPackages(ctx, func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	var suites []*suite
	for i, pkg := range all {
		s := &suite{pkg: pkg.path, dir: pkg.dir, binary: filepath.Join(dir, fmt.Sprint(i), path.Base(pkg.path)+".test"), run: "."}
		switch strings.TrimPrefix(pkg.path, module+"/") {
		case e2eFolder:
			s.run = featurePattern()
			s.took = time.Hour // nothing takes longer: the first
		case interop:
			s.run, s.alone = peerPattern, true
		}
		build := exec.CommandContext(ctx, o.goTool, "test", "-c", "-vet=off", "-o", s.binary, s.pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build the tests of %s: %w\n%s", s.pkg, err, b)
		}
		suites = append(suites, s)
	}
	return suites, nil
}

// round runs the tests of all suites once, the longest first, and then those that run alone.
func (r repetition) round(ctx context.Context, suites []*suite) (outcome, error) {
	sorted := slices.Clone(suites)
	slices.SortStableFunc(sorted, func(a, b *suite) int { return int(b.took - a.took) })
	var together, alone []*suite
	for _, s := range sorted {
		if s.alone {
			alone = append(alone, s)
		} else {
			together = append(together, s)
		}
	}
	all := outcome{map[testName]*tested{}}
	err := r.each(ctx, together, r.jobs, all)
	return all, errors.Join(err, r.each(ctx, alone, 1, all))
}

// each runs the tests of suites, so many at the same time, and adds what has become of them to all.
func (r repetition) each(ctx context.Context, suites []*suite, jobs int, all outcome) error {
	work := make(chan *suite)
	var mu sync.Mutex
	var errs []error
	var running sync.WaitGroup
	for range jobs {
		running.Go(func() {
			for s := range work {
				if ctx.Err() != nil {
					continue
				}
				begun := time.Now()
				seen, err := r.tests(ctx, s)
				s.took = time.Since(begun)
				mu.Lock()
				maps.Copy(all.tests, seen.tests)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", s.pkg, err))
				}
				mu.Unlock()
			}
		})
	}
	for _, s := range suites {
		work <- s
	}
	close(work)
	running.Wait()
	return errors.Join(errs...)
}

// tests runs the tests of a suite once.
func (r repetition) tests(ctx context.Context, s *suite) (outcome, error) {
	argv := []string{"-test.v=test2json", "-test.run=" + s.run, "-test.timeout=" + packageLimit.String(), "-test.count=1", fmt.Sprintf("-test.parallel=%d", parallelTests)}
	if r.short {
		argv = append(argv, "-test.short")
	}
	cmd := exec.CommandContext(ctx, s.binary, argv...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "CI=true", "CGO_ENABLED=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = interruptTime
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	failed := do(ctx, cmd)
	// The tests are not run by test2json: it ignores an interrupt, and so would all that they start.
	convert := exec.CommandContext(ctx, r.goTool, "tool", "test2json", "-p", s.pkg)
	convert.Stdin = bytes.NewReader(said.Bytes())
	events, err := convert.Output()
	if err != nil {
		return outcome{}, errors.Join(fmt.Errorf("test2json: %w", err), failed)
	}
	seen, err := readOutcome(bytes.NewReader(events))
	if err != nil {
		return outcome{}, errors.Join(err, failed)
	}
	if failed != nil && !slices.ContainsFunc(results(seen), func(last string) bool { return last == "fail" }) {
		return outcome{}, fmt.Errorf("no test failed, but its program: %w\n%s", failed, said.Bytes())
	}
	return seen, nil
}

func results(seen outcome) []string {
	var all []string
	for _, t := range seen.tests {
		all = append(all, t.last())
	}
	return all
}

// onlySystem leaves the suites with system tests, and in them these tests. A test that is skipped
// here is skipped each time.
func onlySystem(suites []*suite, seen outcome) []*suite {
	names := map[string][]string{}
	for name, t := range seen.tests {
		if t.system && t.last() != "skip" {
			names[name.pkg] = append(names[name.pkg], regexp.QuoteMeta(name.test))
		}
	}
	var left []*suite
	for _, s := range suites {
		if tests := names[s.pkg]; tests != nil {
			slices.Sort(tests)
			s.run = "^(" + strings.Join(tests, "|") + ")$"
			left = append(left, s)
		}
	}
	return left
}
