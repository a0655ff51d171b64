// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSandbox: under a filter that forbids system calls, a program under smcr run uses SMC-R as ever, since nothing of the
// sandbox is needed but connect(2). Without that, the program runs all the same, and the message says why its connections are
// TCP. An explicit mode is not given up.
func TestSandbox(t *testing.T) {
	l := newLab(t)
	stack := l.serve(l.A)
	for name, flag := range map[string]string{"beside": "--no-adapt", "below a waiter": "-v"} {
		t.Run(name, func(t *testing.T) { l.sandboxed(t, flag) })
	}
	terminate(t, stack)
}

func (l *lab) sandboxed(t *testing.T, flag string) {
	run := func(number int, how string, mode ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), commandTime)
		defer cancel()
		argv := append([]string{strconv.Itoa(number), how, bin("smcr"), "run", flag}, mode...)
		out, err := l.A.Command(ctx, bin("forbid"), append(argv, "--", "/bin/echo", "ran")...).CombinedOutput()
		return string(out), err
	}
	for _, c := range []struct {
		name   string
		number int
		how    []string // kill ends smcr itself where it needs the call
	}{
		{"seccomp", unix.SYS_SECCOMP, []string{"1", "38", "kill"}},
		{"prctl", unix.SYS_PRCTL, []string{"1", "38"}},
		{"ioctl", unix.SYS_IOCTL, []string{"1", "38"}},
		{"socketpair", unix.SYS_SOCKETPAIR, []string{"1", "38"}},
		{"sendto", unix.SYS_SENDTO, []string{"1", "38"}},
		{"recvfrom", unix.SYS_RECVFROM, []string{"1", "38"}},
		{"pidfd_open", unix.SYS_PIDFD_OPEN, []string{"1", "38"}},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, []string{"1", "38"}},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, []string{"1", "38"}},
		{"setsockopt", unix.SYS_SETSOCKOPT, []string{"1", "38"}},
		{"connect", unix.SYS_CONNECT, []string{"1", "38"}},
	} {
		for _, how := range c.how {
			out, err := run(c.number, how)
			if c.number != unix.SYS_CONNECT { // nothing of it is needed
				if user, uerr := run(c.number, how, "--mode", "user"); err != nil || uerr != nil || !strings.HasPrefix(out, "ran\n") || user != out {
					t.Errorf("%s, %s: want the program alone: %v, %v\n%s%s", c.name, how, err, uerr, out, user)
				}
				continue
			}
			if err != nil || !strings.HasSuffix(out, "ran\n") || !strings.HasPrefix(out, "smcr: all connections over TCP: ") || strings.Count(out, "\n") != 2 {
				t.Errorf("%s, %s: want one line with the reason, and the program: %v\n%s", c.name, how, err, out)
			}
			if out, err := run(c.number, how, "--mode", "user"); err == nil || strings.Contains(out, "ran\n") {
				t.Errorf("%s, %s, mode user: want an error before the program: %v\n%s", c.name, how, err, out)
			}
		}
	}
}
