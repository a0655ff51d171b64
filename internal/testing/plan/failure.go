// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// A failure is a step, a package or a test that failed, with what it has written.
//
// The output of a test says why it failed, and has the logs of the programs that it ran.
// The logs may be long, so they come first, and only their end. The cause comes after the
// logs of all failures: somebody may only look at the end of the report.
//
//	lines of the output                             | printed by
//	------------------------------------------------+-----------
//	of t.Error, t.Log … in a _test.go file          | printCause
//	--- FAIL                                        | printCause
//	of t.Log … in another file, such as a helper's  | printLogs
//	all others: panics, output of a tool            | printLogs
//	all, if none is of t.Error … in a _test.go file | printCause
//
// A message of several lines is kept together.
type failure struct {
	name   string
	output []string
}

const (
	// logLines is how many lines of the logs of a failure are printed.
	logLines = 200
	// firstLines and lastLines are how many lines of a message are printed. A message of
	// a test can have the output of a program at its end.
	firstLines, lastLines = 20, 100
)

var (
	// logged matches the first line of a message of t.Error, t.Log …
	logged = regexp.MustCompile(`^\s+\S+\.go:\d+: `)
	// ownLine matches such a line if it comes from the test itself.
	ownLine = regexp.MustCompile(`^\s+\S+_test\.go:\d+: `)
	// resultLine matches the line with the result of a test.
	resultLine = regexp.MustCompile(`^\s*--- [A-Z]+: `)
)

// moreIndent begins the second and each further line of a message.
const moreIndent = "        "

// split divides the output into what the test itself has written and the logs. If the test
// itself has written nothing, all are logs.
func (f failure) split() (cause, logs []string) {
	var message []string // of the test itself
	inMessage := false
	end := func() {
		cause = append(cause, shortened(message)...)
		message, inMessage = nil, false
	}
	if !slices.ContainsFunc(f.output, ownLine.MatchString) {
		return nil, f.output
	}
	for _, l := range f.output {
		switch {
		case ownLine.MatchString(l):
			end()
			message, inMessage = append(message, l), true
		case inMessage && strings.HasPrefix(l, moreIndent) && !logged.MatchString(l):
			message = append(message, l)
		default:
			end()
			switch {
			case !resultLine.MatchString(l):
				if !strings.HasPrefix(l, "=== ") {
					logs = append(logs, l)
				}
			case strings.Contains(l, "FAIL"):
				cause = append(cause, l)
			}
		}
	}
	end()
	return cause, logs
}

// shortened returns the first and the last lines of a message.
func shortened(message []string) []string {
	cut := len(message) - firstLines - lastLines
	if cut <= 0 {
		return message
	}
	left := fmt.Sprintf("%s(%d lines are left out)", moreIndent, cut)
	return slices.Concat(message[:firstLines], []string{left}, message[len(message)-lastLines:])
}

// printLogs writes the end of the logs, if the cause is told apart from them.
func (f failure) printLogs(out io.Writer) {
	if cause, logs := f.split(); len(cause) > 0 && len(logs) > 0 {
		fmt.Fprintf(out, "logs of %s\n", f.name)
		printEnd(out, logs)
	}
}

// printCause writes why it failed.
func (f failure) printCause(out io.Writer) {
	fmt.Fprintf(out, "FAILED: %s\n", f.name)
	cause, logs := f.split()
	if len(cause) == 0 {
		printEnd(out, logs)
		return
	}
	for _, l := range cause {
		fmt.Fprintf(out, "    %s\n", l)
	}
}

// printEnd writes the last lines of the logs.
func printEnd(out io.Writer, logs []string) {
	if cut := len(logs) - logLines; cut > 0 {
		fmt.Fprintf(out, "    (%d lines are left out)\n", cut)
		logs = logs[cut:]
	}
	for _, l := range logs {
		fmt.Fprintf(out, "    %s\n", l)
	}
}
