// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A need is what smcr run does with a system call.
type need int

const (
	noNeed    need = iota // nothing that is missed
	forWaiter             // -v has no summary without it
	forStack              // the connections are TCP without it
)

// sandboxCalls are the system calls of smcr run, but those that any program makes.
var sandboxCalls = []struct {
	name   string
	number int
	need   need
}{
	{"bind", unix.SYS_BIND, noNeed},
	{"bpf", unix.SYS_BPF, noNeed},
	{"chdir", unix.SYS_CHDIR, noNeed},
	{"connect", unix.SYS_CONNECT, forStack},
	{"dup3", unix.SYS_DUP3, noNeed},
	{"faccessat2", unix.SYS_FACCESSAT2, noNeed},
	{"getdents64", unix.SYS_GETDENTS64, noNeed},
	{"getpeername", unix.SYS_GETPEERNAME, noNeed},
	{"getpgid", unix.SYS_GETPGID, forWaiter},
	{"getsockname", unix.SYS_GETSOCKNAME, noNeed},
	{"getsockopt", unix.SYS_GETSOCKOPT, forStack},
	{"ioctl", unix.SYS_IOCTL, noNeed},
	{"kill", unix.SYS_KILL, noNeed},
	{"mkdirat", unix.SYS_MKDIRAT, noNeed},
	{"pidfd_getfd", unix.SYS_PIDFD_GETFD, noNeed},
	{"pidfd_open", unix.SYS_PIDFD_OPEN, noNeed},
	{"pidfd_send_signal", unix.SYS_PIDFD_SEND_SIGNAL, noNeed},
	{"pipe2", unix.SYS_PIPE2, forWaiter},
	{"ppoll", unix.SYS_PPOLL, forWaiter},
	{"prctl", unix.SYS_PRCTL, noNeed},
	{"prlimit64", unix.SYS_PRLIMIT64, noNeed},
	{"process_vm_readv", unix.SYS_PROCESS_VM_READV, noNeed},
	{"readlinkat", unix.SYS_READLINKAT, noNeed},
	{"recvfrom", unix.SYS_RECVFROM, noNeed},
	{"recvmsg", unix.SYS_RECVMSG, forStack},
	{"seccomp", unix.SYS_SECCOMP, noNeed},
	{"sendmsg", unix.SYS_SENDMSG, forWaiter},
	{"sendto", unix.SYS_SENDTO, forWaiter},
	{"setpgid", unix.SYS_SETPGID, forWaiter},
	{"setsockopt", unix.SYS_SETSOCKOPT, noNeed},
	{"signalfd4", unix.SYS_SIGNALFD4, forWaiter},
	{"socket", unix.SYS_SOCKET, forStack},
	{"socketpair", unix.SYS_SOCKETPAIR, forWaiter},
	{"statfs", unix.SYS_STATFS, noNeed},
	{"unlinkat", unix.SYS_UNLINKAT, noNeed},
	{"wait4", unix.SYS_WAIT4, forWaiter},
}

// TestSandbox: under a filter that forbids system calls, a program under smcr run uses SMC-R as ever, since nothing of the sandbox is
// needed but the way to the stack. Without that, the program runs all the same, and the message says why its connections are TCP; an
// explicit mode is not given up. Without what -v needs to wait for the program, there is no summary, and one line says so.
func TestSandbox(t *testing.T) {
	l := newLab(t, "/usr/bin/python3")
	stack := l.serve(l.A)
	for name, flag := range map[string]string{"beside": "--no-adapt", "below a waiter": "-v"} {
		t.Run(name, func(t *testing.T) {
			s := &sandbox{l, t, flag}
			for _, c := range sandboxCalls {
				need := c.need
				if need == forWaiter && flag != "-v" {
					need = noNeed
				}
				for _, e := range []syscall.Errno{unix.EPERM, unix.ENOSYS} {
					s.forbidden(c.name, need, c.number, e)
				}
			}
		})
	}
	t.Run("kill", func(t *testing.T) { l.killed(t) })
	t.Run("users", func(t *testing.T) { l.privateUsers(t) })
	terminate(t, stack)
}

type sandbox struct {
	*lab
	t    *testing.T
	flag string
}

// attached is a part of what the program prints, if the stack takes its connections.
const attached = "/smcr-run-"

// run runs a program that prints its cgroups.
func (s *sandbox) run(words []string, mode string) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), commandTime)
	defer cancel()
	argv := append(words, bin("smcr"), "run", s.flag, "--mode", mode, "--", "/bin/cat", "/proc/self/cgroup")
	out, err := s.A.Command(ctx, argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// linesOfSMCR returns the lines of smcr in an output.
func linesOfSMCR(out string) (lines []string) {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "smcr: ") {
			lines = append(lines, line)
		}
	}
	return lines
}

func (s *sandbox) forbidden(name string, need need, number int, e syscall.Errno) {
	s.t.Helper()
	for _, mode := range []string{"auto", "user"} {
		out, err := s.run([]string{bin("forbid"), strconv.Itoa(number), strconv.Itoa(int(e))}, mode)
		var want []string
		switch {
		case need == forStack && mode == "user":
			if lines := linesOfSMCR(out); err == nil || strings.Contains(out, "::/") || len(lines) != 1 || strings.Contains(lines[0], "no summary") {
				s.t.Errorf("%s, %v, mode user: want an error before the program: %v\n%s", name, e, err, out)
			}
			continue
		case need == forStack:
			want = []string{"smcr: all connections over TCP: "}
		case need == forWaiter:
			want = []string{"smcr: there will be no summary: no process can wait for the program: "}
		case s.flag == "-v":
			want = []string{"smcr: 0 connections over SMC-R, 0 over TCP\n"}
		}
		lines := linesOfSMCR(out)
		right := err == nil && strings.Contains(out, "::/") && strings.Contains(out, attached) == (need != forStack) && len(lines) == len(want)
		if right && len(want) > 0 {
			right = strings.HasPrefix(lines[0], want[0])
		}
		if right && (need == forStack || need == forWaiter) {
			right = strings.Contains(lines[0], e.Error())
		}
		if !right {
			s.t.Errorf("%s, %v, mode %s: want %q and the program: %v\n%s", name, e, mode, want, err, out)
		}
	}
}

// killed: a filter that kills does not kill processes that do without the call. If it kills the one that starts the program for the
// waiter, the program runs without.
func (l *lab) killed(t *testing.T) {
	for flag, calls := range map[string][]uintptr{
		"--no-adapt": {unix.SYS_BPF, unix.SYS_SECCOMP, unix.SYS_PIDFD_OPEN, unix.SYS_SENDMSG, unix.SYS_WAIT4, unix.SYS_SOCKETPAIR, unix.SYS_SIGNALFD4, unix.SYS_GETPGID},
		"-v":         {unix.SYS_BPF, unix.SYS_SECCOMP, unix.SYS_GETPGID, unix.SYS_PIDFD_OPEN},
	} {
		s := &sandbox{l, t, flag}
		for _, number := range calls {
			out, err := s.run([]string{bin("forbid"), strconv.Itoa(int(number)), "kill"}, "auto")
			lines := linesOfSMCR(out)
			if err != nil || !strings.Contains(out, attached) || flag != "-v" && len(lines) > 0 || flag == "-v" && len(lines) != 1 {
				t.Errorf("%s, call %d: %v\n%s", flag, number, err, out)
			}
		}
	}
	// The process that was started is the waiter.
	out, err := (&sandbox{l, t, "-v"}).run([]string{bin("forbid"), strconv.Itoa(unix.SYS_SIGNALFD4), "kill"}, "auto")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
		t.Errorf("the waiter: %v\n%s", err, out)
	}
}

// ofPrivateUsers executes its arguments but the first as that user of a user namespace that has this one and root.
const ofPrivateUsers = `
import ctypes, os, sys
uid = int(sys.argv[1])
ready, go = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    assert ctypes.CDLL(None).unshare(0x10000000) == 0 # CLONE_NEWUSER
    os.write(ready[1], b'x')
    os.read(go[0], 1)
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
    os.execvp(sys.argv[2], sys.argv[2:])
os.close(ready[1])
assert os.read(ready[0], 1)
for kind in 'uid', 'gid':
    with open('/proc/%d/%s_map' % (pid, kind), 'w') as f:
        f.write('0 0 1\n' if uid == 0 else '0 0 1\n%d %d 1\n' % (uid, uid))
os.write(go[1], b'x')
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
`

// privateUsers: programs of a user namespace, as those of a unit with PrivateUsers=yes.
func (l *lab) privateUsers(t *testing.T) {
	for _, user := range []string{"0", hostileUser} {
		words := []string{"/usr/bin/python3", "-c", ofPrivateUsers, user}
		for _, flag := range []string{"--no-adapt", "-v"} {
			out, err := (&sandbox{l, t, flag}).run(words, "auto")
			if lines := linesOfSMCR(out); err != nil || !strings.Contains(out, attached) || flag == "-v" && (len(lines) != 1 || !summaryRE.MatchString(lines[0])) || flag != "-v" && len(lines) > 0 {
				t.Errorf("user %s, %s: %v\n%s", user, flag, err, out)
			}
		}
	}
}
