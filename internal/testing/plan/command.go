// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
)

// skipStatus is the exit status of a program that cannot do its work on this machine. The
// last line of its output says why.
const skipStatus = 77

// command returns a step that runs a program and prints its output, indented.
// The output of a failed program is repeated in the summary. A step whose program ends
// with skipStatus has not failed: the summary lists it as skipped.
func command(name string, argv ...string) step {
	return step{name: name, run: func(ctx context.Context, j *job) error {
		cmd := j.program(ctx, argv...)
		// One pipe for both, so that the lines keep their order.
		pr, pw, err := os.Pipe()
		if err != nil {
			return err
		}
		defer pr.Close()
		cmd.Stdout, cmd.Stderr = pw, pw
		err = j.start(cmd)
		pw.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", argv[0], err)
		}
		var lines []string
		for sc := lineScanner(pr); sc.Scan(); {
			j.say("    %s", sc.Text())
			lines = append(lines, sc.Text())
		}
		if err := j.wait(cmd); cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == skipStatus && len(lines) > 0 {
			j.skipStep(name, lines[len(lines)-1])
		} else if err != nil {
			j.remember(name, lines)
			return fmt.Errorf("%s: %w", argv[0], err)
		}
		return nil
	}}
}

// lineScanner reads lines of up to 16 MiB: tests print long ones.
func lineScanner(f *os.File) *bufio.Scanner {
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 64<<10), 16<<20)
	return sc
}
