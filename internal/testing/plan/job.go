// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"
)

// A step is one part of a plan.
type step struct {
	name string
	run  func(ctx context.Context, j *job) error

	// beside are steps that run at the same time, one after another and with low
	// priority. They use the processors while the tests of this step wait.
	beside []step
}

// interruptTime is how long a program has to end after an interrupt.
const interruptTime = 20 * time.Second

// A job is a step that runs. Only the goroutine of the step uses it.
type job struct {
	*report
	low       bool          // its programs have low priority
	processor time.Duration // processor time of its programs that have ended
}

// program returns a command that gets an interrupt when ctx is done. It builds without
// cgo, like the programs of the end-to-end tests and of the guests. So all steps share
// the compiled packages, except for those with the race detector.
func (j *job) program(ctx context.Context, argv ...string) *exec.Cmd {
	if j.low {
		argv = append([]string{"nice", "-n", "19"}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interruptTime
	return cmd
}

// wait waits for the end of a program and counts its processor time, and that of the
// programs that it has started and waited for. Unlike the time by the clock, this does
// not depend on what else the machine does.
func (j *job) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	if s := cmd.ProcessState; s != nil {
		j.processor += s.UserTime() + s.SystemTime()
	}
	return err
}

// runSteps runs all steps, also those after a failed one, until ctx is done.
func runSteps(ctx context.Context, r *report, steps []step) {
	label := labels(steps)
	n := 0
	for _, s := range steps {
		at := n
		n += 1 + len(s.beside)
		stop := r.watch()
		var beside sync.WaitGroup
		beside.Go(func() {
			for i, b := range s.beside {
				runStep(ctx, &job{report: r, low: true}, b, label[at+1+i])
			}
		})
		runStep(ctx, &job{report: r}, s, label[at])
		beside.Wait()
		stop()
	}
}

// labels returns the text that says that a step begins, for each step and for those
// beside it.
func labels(steps []step) (text []string) {
	total := 0
	for _, s := range steps {
		total += 1 + len(s.beside)
	}
	add := func(format, name string) {
		text = append(text, fmt.Sprintf("[%d/%d] ", len(text)+1, total)+fmt.Sprintf(format, name))
	}
	for _, s := range steps {
		add("%s", s.name)
		for _, b := range s.beside {
			add("beside it: %s", b.name)
		}
	}
	return text
}

// runStep runs one step, unless ctx is done.
func runStep(ctx context.Context, j *job, s step, label string) {
	if ctx.Err() != nil {
		j.failStep(s.name, context.Cause(ctx))
		return
	}
	start := time.Now()
	j.say("%s", label)
	err := s.run(ctx, j)
	j.endStep(s.name, time.Since(start), j.processor, err)
}
