// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A step is a program or a call of go test. Steps run one after the other.
type step struct {
	name string
	run  func(ctx context.Context, r *running) error
}

// A running part: its steps add to the result.
type running struct {
	out     io.Writer
	results string // the folder of the results
	at      int    // number of the step, from 1
	*result
}

// interruptTime is how long a program has to end after an interrupt.
const interruptTime = 30 * time.Second

// command returns the program of a step, for do. It and all that it starts get an interrupt when
// ctx is done.
func (r *running) command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = r.out, r.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = interruptTime
	return cmd
}

// do runs a program. What an interrupt has not ended is killed.
func do(ctx context.Context, cmd *exec.Cmd) error {
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return err
}

// skipStatus is the exit status of a program that cannot do its work on this machine. The last
// line of its output says why.
const skipStatus = 77

// program returns a step that runs a program.
func program(name string, argv ...string) step {
	return step{name, func(ctx context.Context, r *running) error {
		cmd := r.command(ctx, argv...)
		last := &lastLine{out: r.out}
		cmd.Stdout, cmd.Stderr = last, last
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		err := do(ctx, cmd)
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == skipStatus && last.line != "" {
			r.skip("step "+name, strings.TrimSpace(last.line))
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", argv[0], err)
		}
		return nil
	}}
}

// lastLine passes the output on and keeps its last whole line.
type lastLine struct {
	out  io.Writer
	rest []byte
	line string
}

func (l *lastLine) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := strings.Cut(string(l.rest), "\n")
		if !ok {
			break
		}
		l.rest = []byte(rest)
		if strings.TrimSpace(line) != "" {
			l.line = line
		}
	}
	return l.out.Write(b)
}

// A goTest is one call of go test by gotestsum.
type goTest struct {
	packages func(path string) bool // selects packages by their path within the module
	race     bool                   // with the race detector, which needs cgo
	args     []string               // of go test, besides the packages
	env      []string               // besides the environment
	byTest   bool                   // prints a line for each test, not for each package
	retry    bool                   // system tests that fail run again, see doc.go
}

// How often a system test that failed in the gate runs again, and how many of them may.
const (
	retries    = 2
	maxRetried = 5
)

// goTest returns a step that runs tests.
func (o options) goTest(name string, g goTest) step {
	return step{name, func(ctx context.Context, r *running) error {
		packages, err := o.selectPackages(ctx, g.packages)
		if err != nil {
			return err
		}
		var paths []string
		for _, p := range packages {
			paths = append(paths, p.path)
		}
		return o.runTests(ctx, r, g, paths)
	}}
}

// runTests runs the tests of the packages and adds what came of them to the result.
func (o options) runTests(ctx context.Context, r *running, g goTest, packages []string) error {
	base := filepath.Join(r.results, fmt.Sprintf("%s-%d", r.Part, r.at))
	argv := []string{
		o.goTool, "tool", "-modfile=" + o.toolsMod(), "gotestsum",
		"--format", map[bool]string{true: "testname", false: "pkgname"}[g.byTest], "--format-icons", "text", "--format-hide-empty-pkg",
		"--hide-summary", "skipped", "--jsonfile", base + ".jsonl", "--junitfile", base + ".xml",
		"--packages", strings.Join(packages, " "),
	}
	if left := maxRetried - len(r.FlakyTests); g.retry && left > 0 {
		argv = append(argv, fmt.Sprintf("--rerun-fails=%d", retries), fmt.Sprintf("--rerun-fails-max-failures=%d", left),
			"--rerun-fails-run-root-test", "--rerun-fails-abort-on-data-race")
	}
	argv = append(append(argv, "--"), g.args...)
	cgo := "CGO_ENABLED=0"
	if g.race {
		// What the tests build themselves is that of the other parts.
		argv = append(argv, "-race", "-exec", "env CGO_ENABLED=0")
		cgo = "CGO_ENABLED=1"
	}
	cmd := r.command(ctx, argv...)
	// Without the option, a test binary with the race detector sleeps for a second at its end.
	cmd.Env = append(append(os.Environ(), cgo, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")), g.env...)
	if dir := filepath.Dir(o.goTool); dir != "." { // gotestsum runs the go of PATH
		cmd.Env = append(cmd.Env, "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	failed := do(ctx, cmd)
	f, err := os.Open(base + ".jsonl")
	if err != nil {
		return errors.Join(failed, err)
	}
	defer f.Close()
	seen, err := readOutcome(f)
	if err != nil {
		return errors.Join(failed, err)
	}
	r.add(seen)
	switch {
	case failed != nil:
		return fmt.Errorf("go test: %w", errors.Join(failed, context.Cause(ctx)))
	case len(seen.tests) == 0:
		return errors.New("no test matches")
	}
	return seen.onlySystemFlaky()
}

// toolsMod is the module file of the tools, as an absolute path: tests of this package run in
// modules of their own.
func (o options) toolsMod() string {
	if o.tools != "" {
		return o.tools
	}
	return "tools/go.mod"
}

// A selected package has tests that were chosen.
type selected struct {
	path string // of import
	dir  string
}

// selectPackages returns the packages that are wanted and have tests that were chosen, the longest
// first.
func (o options) selectPackages(ctx context.Context, want func(path string) bool) ([]selected, error) {
	cmd := exec.CommandContext(ctx, o.goTool, "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}", "./...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []selected
	for line := range strings.Lines(string(out)) {
		p, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if p == "" || !want(strings.TrimPrefix(p, module+"/")) {
			continue
		}
		has, err := o.hasTest(dir)
		if err != nil {
			return nil, err
		}
		if has {
			packages = append(packages, selected{p, dir})
		}
	}
	if len(packages) == 0 {
		return nil, errors.New("no package is selected")
	}
	longestFirst(packages)
	return packages, nil
}

// testFunction matches the line in which a test begins.
var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// hasTest reports whether a folder has a test that was chosen: the others need no compiler.
func (o options) hasTest(dir string) (bool, error) {
	if o.only == "" {
		return true, nil
	}
	top, _, _ := strings.Cut(o.only, "/")
	chosen, err := regexp.Compile(top)
	if err != nil {
		return false, fmt.Errorf("-run: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return false, err
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return false, err
		}
		for _, m := range testFunction.FindAllSubmatch(b, -1) {
			if chosen.Match(m[1]) {
				return true, nil
			}
		}
	}
	return false, nil
}
