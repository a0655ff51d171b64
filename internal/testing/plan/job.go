// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A step is one part of a plan.
type step struct {
	name string
	run  func(ctx context.Context, j *job) error

	// beside are steps that run at the same time, one after another and with low
	// priority until this step ends. They use the processors while the tests of this step wait.
	beside []step
}

// interruptTime is how long a program has to end after an interrupt.
const interruptTime = 20 * time.Second

// A job is a step that runs. Only the goroutine of the step uses it.
type job struct {
	*report
	low       *priority     // that of its programs; nil: as usual
	processor time.Duration // processor time of its programs that have ended
}

// program returns a command that gets an interrupt when ctx is done. It builds without
// cgo, like the programs of the end-to-end tests and of the guests. So all steps share
// the compiled packages, except for those with the race detector.
func (j *job) program(ctx context.Context, argv ...string) *exec.Cmd {
	low := j.low.isLow()
	if low {
		argv = append([]string{"nice", "-n", "19"}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if low {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interruptTime
	return cmd
}

// start starts a program.
func (j *job) start(cmd *exec.Cmd) error {
	err := cmd.Start()
	if err == nil && cmd.SysProcAttr != nil {
		j.low.runs(cmd.Process.Pid)
	}
	return err
}

// wait waits for the end of a program and counts its processor time, and that of the
// programs that it has started and waited for. Unlike the time by the clock, this does
// not depend on what else the machine does.
func (j *job) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	j.low.runs(0)
	if s := cmd.ProcessState; s != nil {
		j.processor += s.UserTime() + s.SystemTime()
	}
	return err
}

// priority is that of the programs of the steps beside another one: low as long as that one
// runs. Then the whole plan waits for them, and on a machine that others use, programs of low
// priority may take hours.
type priority struct {
	mu    sync.Mutex
	usual bool
	group int // the process group of the program that runs, or 0
}

func (p *priority) isLow() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.usual
}

// runs records the process group of a program, or that it has ended.
func (p *priority) runs(group int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.group = group
	p.apply()
}

// raise ends the low priority. Only root may do so for a program that runs; for others, those
// that start later have the usual one.
func (p *priority) raise() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.usual = true
	p.apply()
}

// apply is part of runs and raise, with mu held.
func (p *priority) apply() {
	if p.usual && p.group != 0 {
		own, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 minus the nice value
		if err == nil {
			_ = unix.Setpriority(unix.PRIO_PGRP, p.group, 20-own)
		}
	}
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
		low := &priority{}
		beside.Go(func() {
			for i, b := range s.beside {
				runStep(ctx, &job{report: r, low: low}, b, label[at+1+i])
			}
		})
		runStep(ctx, &job{report: r}, s, label[at])
		low.raise()
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
