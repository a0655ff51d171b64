// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// repetition is the command line of `plan repeat`: each test alone, again and again, beside
// busy loops.
type repetition struct {
	goTool, pkg, run, out string
	count, load, jobs     int
	race, short, gate     bool
	timeout               time.Duration
}

// repeatCommand runs `plan repeat` and returns the exit status.
func repeatCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var r repetition
	flags := flag.NewFlagSet("repeat", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&r.goTool, "go", "go", "the `program` go")
	flags.StringVar(&r.pkg, "pkg", "./"+e2eFolder, "the `package`")
	flags.StringVar(&r.run, "run", "", "repeat the tests that match this `regexp`")
	flags.StringVar(&r.out, "out", "bin/repeat", "the `folder` for the output of tests that fail")
	flags.IntVar(&r.count, "count", 20, "run each test `N` times")
	flags.IntVar(&r.load, "load", 0, "run `N` busy loops beside")
	flags.IntVar(&r.jobs, "jobs", 3*runtime.NumCPU(), "with -gate, run the tests of `N` packages at the same time")
	flags.BoolVar(&r.gate, "gate", false, "repeat all system tests of the gate, in rounds")
	flags.BoolVar(&r.race, "race", false, "with the race detector")
	flags.BoolVar(&r.short, "short", true, "the short forms")
	flags.DurationVar(&r.timeout, "timeout", 5*time.Minute, "the `limit` of a test")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	do := r.do
	if r.gate {
		do = func(ctx context.Context, out io.Writer) (bool, error) {
			return r.rounds(ctx, options{goTool: r.goTool}, out)
		}
	}
	failed, err := do(ctx, stdout)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "plan: repeat: %v\n", err)
		return 1
	case failed:
		return 1
	}
	return 0
}

// do repeats the tests and prints a line for each.
func (r repetition) do(ctx context.Context, out io.Writer) (failed bool, err error) {
	dir, err := os.MkdirTemp("", "smcr-repeat-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "tests")
	argv := []string{"test", "-c", "-o", binary}
	cgo := "CGO_ENABLED=0"
	if r.race {
		argv, cgo = append(argv, "-race"), "CGO_ENABLED=1"
	}
	build := exec.CommandContext(ctx, r.goTool, append(argv, r.pkg)...)
	build.Env = append(os.Environ(), cgo)
	if b, err := build.CombinedOutput(); err != nil {
		return false, fmt.Errorf("build the tests of %s: %w\n%s", r.pkg, err, b)
	}
	list := exec.CommandContext(ctx, binary, "-test.list", r.run)
	list.Dir = r.pkg
	b, err := list.Output()
	if err != nil {
		return false, fmt.Errorf("list the tests of %s: %w", r.pkg, err)
	}
	tests := slices.DeleteFunc(strings.Fields(string(b)), func(name string) bool { return !strings.HasPrefix(name, "Test") })
	if len(tests) == 0 {
		return false, fmt.Errorf("no test of %s matches %q", r.pkg, r.run)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return false, err
	}
	stop, err := busy(ctx, r.load)
	if err != nil {
		return false, err
	}
	defer stop()
	fmt.Fprintf(out, "%d times %d tests of %s beside %d busy loops on %d processors\n", r.count, len(tests), r.pkg, r.load, runtime.NumCPU())
	for _, name := range tests {
		bad, most := 0, time.Duration(0)
		var text string
		for i := range r.count {
			begun := time.Now()
			b, err := r.once(ctx, binary, name)
			if ctx.Err() != nil {
				return failed, context.Cause(ctx)
			}
			most = max(most, time.Since(begun))
			if err != nil {
				bad++
				if err := os.WriteFile(filepath.Join(r.out, fmt.Sprintf("%s-%d.log", name, i+1)), b, 0o644); err != nil {
					return failed, err
				}
			} else if bytes.Contains(b, []byte("--- SKIP: "+name)) {
				text = "  skipped"
				break
			}
		}
		fmt.Fprintf(out, "%4d of %d failed  %6.1f s at most  %s%s\n", bad, r.count, most.Seconds(), name, text)
		failed = failed || bad > 0
	}
	return failed, nil
}

// once runs one test.
func (r repetition) once(ctx context.Context, binary, name string) ([]byte, error) {
	argv := []string{"-test.v", "-test.count=1", "-test.run", "^" + regexp.QuoteMeta(name) + "$", "-test.timeout", r.timeout.String()}
	if r.short {
		argv = append(argv, "-test.short")
	}
	cmd := exec.CommandContext(ctx, binary, argv...)
	cmd.Dir = r.pkg
	cmd.Env = append(os.Environ(), "CI=true")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interruptTime
	// A child that outlives its test holds the pipe: that is a fault of the test, too.
	return cmd.CombinedOutput()
}

// busy starts processes that do nothing but take a processor. They end with this one.
func busy(ctx context.Context, n int) (stop func(), err error) {
	var running []*exec.Cmd
	stop = func() {
		for _, cmd := range running {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	}
	for range n {
		cmd := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			stop()
			return nil, err
		}
		running = append(running, cmd)
	}
	return stop, nil
}
