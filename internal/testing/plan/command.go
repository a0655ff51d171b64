// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// interruptTime is how long a program has to end after an interrupt.
const interruptTime = 20 * time.Second

// command returns a step that runs a program and prints its output, indented.
// The output of a failed program is repeated in the summary.
func command(name string, argv ...string) step {
	return step{name, func(ctx context.Context, r *report) error {
		cmd := program(ctx, argv...)
		// One pipe for both, so that the lines keep their order.
		pr, pw, err := os.Pipe()
		if err != nil {
			return err
		}
		defer pr.Close()
		cmd.Stdout, cmd.Stderr = pw, pw
		err = cmd.Start()
		pw.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", argv[0], err)
		}
		var lines []string
		for sc := lineScanner(pr); sc.Scan(); {
			r.say("    %s", sc.Text())
			lines = append(lines, sc.Text())
		}
		if err := cmd.Wait(); err != nil {
			r.remember(name, lines)
			return fmt.Errorf("%s: %w", argv[0], err)
		}
		return nil
	}}
}

// program returns a command that gets an interrupt when ctx is done. It builds without
// cgo, like the programs of the end-to-end tests and of the guests. So all steps share
// the compiled packages, except for those with the race detector.
func program(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interruptTime
	return cmd
}

// lineScanner reads lines of up to 16 MiB: tests print long ones.
func lineScanner(f *os.File) *bufio.Scanner {
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 64<<10), 16<<20)
	return sc
}
