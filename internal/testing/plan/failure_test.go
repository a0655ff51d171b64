// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// programLog is n lines of the log of a program, as a helper of the tests writes it.
func programLog(name string, n int) []string {
	lines := []string{"    process.go:117: output of " + name + ":"}
	for i := range n {
		lines = append(lines, fmt.Sprintf("        %s line %d", name, i))
	}
	return lines
}

// TestLongFailure: what a failed test itself has written is whole, and is the last in the
// summary. The logs of the programs come before it, only their end.
func TestLongFailure(t *testing.T) {
	output := slices.Concat(
		[]string{"=== RUN   TestX", "=== RUN   TestX/sub", "    x_test.go:12: client: exit status 1", "        Error: Connection reset by peer", "        "},
		programLog("first", 2*logLines),
		[]string{"    x_test.go:30: one more", "    --- FAIL: TestX/sub (1.00s)", "    --- PASS: TestX/other (1.00s)", "--- FAIL: TestX (1.00s)"},
	)
	var out bytes.Buffer
	r := newReport(&out)
	r.remember("pkg TestX", output)
	r.remember("pkg TestY", slices.Concat([]string{"    y_test.go:1: wrong"}, programLog("second", 2)))
	r.summary("test")
	got := out.String()
	want := `FAILED: pkg TestX
        x_test.go:12: client: exit status 1
            Error: Connection reset by peer
            
        x_test.go:30: one more
        --- FAIL: TestX/sub (1.00s)
    --- FAIL: TestX (1.00s)
FAILED: pkg TestY
        y_test.go:1: wrong
tests: 0 passed, 0 failed, 0 skipped
`
	if !strings.HasSuffix(got, want) {
		t.Errorf("the summary does not end with\n%s\nbut is\n%s", want, got)
	}
	for _, want := range []string{
		"logs of pkg TestX\n    (201 lines are left out)\n", fmt.Sprintf("first line %d\n", 2*logLines-1),
		"logs of pkg TestY\n        process.go:117: output of second:\n            second line 0\n            second line 1\n",
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("not once %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "first line 0\n") {
		t.Error("the summary has the begin of a long log")
	}
}

// TestLongMessage: of a message with many lines, the first and the last ones are printed.
func TestLongMessage(t *testing.T) {
	message := []string{"    x_test.go:12: no answer:"}
	for i := range 500 {
		message = append(message, fmt.Sprintf("        line %d", i))
	}
	cause, logs := failure{"TestX", message}.split()
	if len(logs) > 0 || len(cause) != firstLines+1+lastLines || cause[0] != message[0] || cause[len(cause)-1] != message[500] {
		t.Errorf("cause %q, logs %q", cause, logs)
	}
}

// TestNoMessage: of a failure without a message of a test, the end of the output is the
// cause.
func TestNoMessage(t *testing.T) {
	var out bytes.Buffer
	f := failure{"pkg", []string{"--- FAIL: TestX (0.00s)", "panic: oh", "goroutine 1 [running]:"}}
	f.printLogs(&out)
	f.printCause(&out)
	if want := "FAILED: pkg\n    --- FAIL: TestX (0.00s)\n    panic: oh\n    goroutine 1 [running]:\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
