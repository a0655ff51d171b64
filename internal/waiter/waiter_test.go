// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/program"
	"smcr/internal/testing/testkind"
)

// wayEnv makes the test binary a program that runs its arguments below a waiter: what the runner does.
const wayEnv = "SMCR_WAITER_TEST"

func TestMain(m *testing.M) {
	MaybeChild()
	// The race detector waits a second at the end of each process.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")); err != nil {
		panic(err)
	}
	if way := os.Getenv(wayEnv); way != "" {
		if err := below(way, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// below runs a program below a waiter.
func below(way string, argv []string) error {
	r := TheRunner()
	switch {
	case Without() != nil:
		fmt.Fprintln(os.Stderr, Without())
		return program.Exec(argv[0], argv, os.Environ())
	case r == nil:
		return Become(argv)
	case way == "alone":
		return r.Alone(notBegun(errors.New("so it is")))
	case way == "ends":
		return nil
	case way == "native":
		return r.Native()
	case way == "exit":
		return r.Exit(9)
	case way == "killed":
		return unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	err := r.Start(argv[0], argv)
	var se *program.StartError
	if errors.As(err, &se) {
		return r.Exit(se.ExitStatus())
	}
	if err != nil {
		return err
	}
	if way == "killed later" {
		return unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	r.Wait()
	fmt.Fprintln(os.Stderr, "the end")
	return r.Ended()
}

// identity is a part of a shell script that says that the process has no child, and that no signal is blocked.
const identity = `read -r kids </proc/self/task/$$/children; [ -z "$kids" ] && grep -q 'SigBlk:.0*$' /proc/self/status && echo alone; `

// TestWays: what the runner does decides how the waiter ends. TestMainProcess of the end-to-end tests has the rest.
func TestWays(t *testing.T) {
	testkind.System(t)
	for _, c := range []struct {
		way    string
		argv   []string
		status syscall.WaitStatus
		output string
	}{
		{"start", []string{"/bin/sh", "-c", "echo it; exit 7"}, 7 << 8, "it\nthe end\n"},
		{"start", []string{"/bin/sh", "-c", "kill -SEGV $$"}, syscall.WaitStatus(unix.SIGSEGV), "the end\n"},
		{"start", []string{"/no/such"}, 127 << 8, ""},
		{"native", []string{"/bin/sh", "-c", "ps -o comm= -p $PPID >/dev/null; exit 5"}, 5 << 8, ""},
		{"exit", []string{"/bin/false"}, 9 << 8, ""},
		// The program has not begun: nothing waits for it.
		{"killed", []string{"/bin/sh", "-c", identity + "exit 6"}, 6 << 8, ErrNotBegun.Error() + ": " + errSilent.Error() + "\nalone\n"},
		{"ends", []string{"/bin/sh", "-c", identity + "exit 6"}, 6 << 8, ErrNotBegun.Error() + ": " + errSilent.Error() + "\nalone\n"},
		{"alone", []string{"/bin/sh", "-c", identity + "kill -TERM $$"}, syscall.WaitStatus(unix.SIGTERM), ErrNotBegun.Error() + ": so it is\nalone\n"},
		// The program becomes a child of the waiter.
		{"killed later", []string{"/bin/sh", "-c", "sleep .3; exit 4"}, 4 << 8, ""},
	} {
		cmd := exec.Command("/proc/self/exe", c.argv...)
		cmd.Env = append(os.Environ(), wayEnv+"="+c.way)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run()
		ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if ws&^0x80 != c.status || out.String() != c.output { // without the bit of a core
			t.Errorf("%s %q: status %#x, want %#x; output %q, want %q", c.way, c.argv, ws, c.status, &out, c.output)
		}
	}
}

func TestParseArguments(t *testing.T) {
	var mask unix.Sigset_t
	setBits(&mask, 1<<63|5)
	args := arguments(runnerName, 3, 77, &mask, []string{"a", ""})
	c, err := parseArguments(args)
	if err != nil || c.sock != 3 || c.other != 77 || sigbits(&c.mask) != 1<<63|5 || strings.Join(c.rest, ",") != "a," {
		t.Errorf("%q: %+v, %v", args, c, err)
	}
	for _, bad := range []string{"x", "x 3 77 0", "x y 77 0 a", "x 3 y 0 a", "x 3 77 y a"} {
		if _, err := parseArguments(strings.Fields(bad)); err == nil {
			t.Errorf("%q has no error", bad)
		}
	}
}
