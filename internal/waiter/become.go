// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/program"
)

// ErrNotBegun means that nothing of the program has run, and that it can still be executed without a waiter.
var ErrNotBegun = errors.New("waiter: the program could not be put below a process that waits for it")

// Names, argv[0], of the processes of this package. The descriptor of their socket to the other one, the number of the other one
// and the signal mask of the program follow, and then the arguments of this process, or of the program.
const (
	waiterName = "smcr-waiter"
	runnerName = "smcr-runner"
	stubName   = "smcr-program" // which becomes the program
	fixedArgs  = 4
)

// Become starts this executable as the runner, with the same arguments, and makes this process the waiter of the program argv. It
// returns only on failure, with an error that matches ErrNotBegun. The calling program must call MaybeChild first in main.
func Become(argv []string) error {
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotBegun, os.NewSyscallError("socketpair", err))
	}
	defer unix.Close(socks[0])
	runtime.LockOSThread()
	pid, was, err := startRunner(socks[1])
	_ = unix.Close(socks[1])
	if err == nil {
		err = executeWaiter(argv, socks[0], pid, &was)
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _, _ = program.Wait(pid, 0)
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil)
	return fmt.Errorf("%w: cannot start a process: %w", ErrNotBegun, err)
}

// startRunner starts the runner with SIGTTOU blocked: it is not in the foreground of the terminal, to which it may write. was is
// the mask of this thread before.
func startRunner(sock int) (pid int, was unix.Sigset_t, err error) {
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, sigset(unix.SIGTTOU), &was); err != nil {
		return 0, was, os.NewSyscallError("rt_sigprocmask", err)
	}
	pid, _, err = syscall.StartProcess(program.Self, arguments(runnerName, sock, os.Getpid(), &was, os.Args), &syscall.ProcAttr{
		Env: os.Environ(), Files: withFiles(sock), Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	return pid, was, err
}

// executeWaiter executes the waiter with all signals blocked. was is the mask of the program.
func executeWaiter(argv []string, sock, runner int, was *unix.Sigset_t) error {
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, allSignals(), nil); err != nil {
		return os.NewSyscallError("rt_sigprocmask", err)
	}
	if _, err := unix.FcntlInt(uintptr(sock), unix.F_SETFD, 0); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	return syscall.Exec(program.Self, arguments(waiterName, sock, runner, was, argv), os.Environ())
}

func arguments(name string, sock, other int, mask *unix.Sigset_t, rest []string) []string {
	return append([]string{name, strconv.Itoa(sock), strconv.Itoa(other), strconv.FormatUint(sigbits(mask), 16)}, rest...)
}

// child is what the arguments of a process of this package say.
type child struct {
	sock, other int
	mask        unix.Sigset_t
	rest        []string
}

func parseArguments(args []string) (c child, err error) {
	if len(args) <= fixedArgs {
		return c, os.ErrInvalid
	}
	var bits uint64
	var err1, err2, err3 error
	c.sock, err1 = strconv.Atoi(args[1])
	c.other, err2 = strconv.Atoi(args[2])
	bits, err3 = strconv.ParseUint(args[3], 16, 64)
	setBits(&c.mask, bits)
	c.rest = args[fixedArgs:]
	return c, errors.Join(err1, err2, err3)
}

// MaybeChild does the work of the waiter and of the process that becomes the program, and does not return there. In the runner, it
// prepares the process. Call it first in main.
func MaybeChild() {
	name := os.Args[0]
	if name != waiterName && name != runnerName && name != stubName {
		return
	}
	c, err := parseArguments(os.Args)
	if err != nil {
		os.Exit(program.ExitNotExecutable)
	}
	unix.CloseOnExec(c.sock)
	if name == stubName {
		become(c)
	}
	// The name would be that of program.Self.
	_ = os.WriteFile("/proc/self/comm", []byte("smcr"), 0)
	if name == waiterName {
		os.Exit(wait(c))
	}
	theRunner = newRunner(c)
	os.Args = c.rest
}
