// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/program"
)

// ErrNotBegun means that nothing of the program has run, and that it can still be executed without a waiter.
var ErrNotBegun = errors.New("no process can wait for the program")

// notBegun returns an error that matches ErrNotBegun.
func notBegun(err error) error { return fmt.Errorf("%w: %w", ErrNotBegun, err) }

// Names, argv[0], of the processes of this package. The descriptor of their socket to the other one, the number of the other one
// and the signal mask of the program follow, and then the arguments of this process, or of the program. The waiter has the number of
// those of the program, and those of the runner, which end with them.
const (
	waiterName = "smcr-waiter"
	runnerName = "smcr-runner"
	stubName   = "smcr-program" // which becomes the program
	aloneName  = "smcr-alone"   // the waiter when it could not begin; the reason and the arguments of the runner follow
	fixedArgs  = 4
)

// Become starts this executable as the runner, with the same arguments, and makes this process the waiter of the program argv. It
// returns only on failure, with an error that matches ErrNotBegun. If the waiter finds later that it cannot begin, it is this
// executable once more, with the same arguments: see Without. The calling program must call MaybeChild first in main. Its arguments
// end with argv.
func Become(argv []string) error {
	if n := len(os.Args) - len(argv); n < 0 || !slices.Equal(os.Args[n:], argv) {
		return notBegun(os.ErrInvalid)
	}
	// There is no such option. A process that cannot wait for the runner would leave it to the program.
	if _, _, err := program.Wait(-1, -1); !errors.Is(err, unix.EINVAL) {
		return notBegun(err)
	}
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return notBegun(os.NewSyscallError("socketpair", err))
	}
	runtime.LockOSThread()
	pid, was, err := startRunner(socks[1])
	_ = unix.Close(socks[1])
	started := err == nil
	if started {
		err = executeWaiter(argv, socks[0], pid, &was)
	}
	_ = unix.Close(socks[0]) // ends the runner
	if started {
		_, _, _ = program.Wait(pid, 0)
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil)
	runtime.UnlockOSThread()
	return notBegun(fmt.Errorf("cannot start a process: %w", err))
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
	return syscall.Exec(program.Self, arguments(waiterName, sock, runner, was, append([]string{strconv.Itoa(len(argv))}, os.Args...)), os.Environ())
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

// without is a package variable because MaybeChild, which sets it, is called before the program knows what it is to do.
var without error

// Without returns why this process, which was to be the waiter, is to become the program, with an error that matches ErrNotBegun, or
// nil.
func Without() error { return without }

// MaybeChild does the work of the waiter and of the process that becomes the program, and does not return there. In the runner, it
// prepares the process, and in one that is to do without a waiter. Call it first in main.
func MaybeChild() {
	name := os.Args[0]
	if name == aloneName && len(os.Args) > 2 {
		without = notBegun(errors.New(os.Args[1]))
		os.Args = os.Args[2:]
		return
	}
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
	os.Args = c.rest
	theRunner = newRunner(c)
	if err := theRunner.meet(); err != nil {
		os.Exit(errnoOf(err)) // the waiter has this status
	}
}

// errnoOf returns the number of an error, or that of EPIPE for one without.
func errnoOf(err error) int {
	e := syscall.EPIPE
	_ = errors.As(err, &e)
	return int(e)
}
