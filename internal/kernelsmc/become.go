// SPDX-License-Identifier: Apache-2.0

package kernelsmc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/program"
	"smcr/internal/retry"
)

// ErrNotBegun means that nothing of the program has run, and that it can still be executed without a supervisor: the kernel is too
// old, or a sandbox forbids a call.
var ErrNotBegun = errors.New("kernelsmc: the sockets of the program cannot be replaced")

// Names, argv[0], of the processes of this package. The descriptor of their socket follows, and then the arguments of the process
// that has started them.
const (
	starterName    = "smcr-kernel-start"      // starts the supervisor, and ends
	supervisorName = "smcr-kernel-supervisor" // the process that becomes the program follows, before the arguments
	programName    = "smcr-kernel-program"    // becomes the program of a supervisor that is there
)

// Process is this process, if it was started by another one of this package.
type Process struct {
	// Supervises means that it is to call Supervise. Otherwise it is to become the program.
	Supervises bool
	// Sock is the socket to the other one.
	Sock int
}

// theProcess is a package variable because MaybeChild, which sets it, is called before the program knows what it is to do.
var theProcess *Process

// TheProcess returns what this process is, or nil.
func TheProcess() *Process { return theProcess }

// Arguments returns the name and the arguments of a process that becomes the program of a supervisor that has the other end of a
// socket.
func Arguments(sock int) []string {
	return append([]string{programName, strconv.Itoa(sock)}, os.Args...)
}

// MaybeChild does the work of the process that starts the supervisor. In the other processes of this package it prepares the
// process. Call it first in main.
func MaybeChild() {
	args := os.Args
	if len(args) < 4 || args[0] != starterName && args[0] != supervisorName && args[0] != programName {
		return
	}
	sock, err := strconv.Atoi(args[1])
	if err != nil {
		os.Exit(program.ExitNotExecutable)
	}
	unix.CloseOnExec(sock)
	os.Args = args[2:]
	switch args[0] {
	case starterName:
		os.Exit(start(sock))
	case supervisorName:
		_ = os.WriteFile("/proc/self/comm", []byte("smcr"), 0) // which would be that of program.Self
		if pid, err := strconv.Atoi(args[2]); err == nil {
			go leaveAfter(pid)
		}
		os.Args = args[3:]
	}
	theProcess = &Process{Supervises: args[0] == supervisorName, Sock: sock}
}

// Become makes this process the program, and starts a supervisor, which is this executable with the same arguments. It returns only
// on failure. The calling program must call MaybeChild first in main.
func Become(path string, argv []string) error {
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotBegun, os.NewSyscallError("socketpair", err))
	}
	defer unix.Close(socks[0])
	err = try(socks[1])
	_ = unix.Close(socks[1])
	if err != nil {
		return err
	}
	return become(socks[0], path, argv)
}

// Become makes this process the program, as the supervisor is there.
func (p *Process) Become(path string, argv []string) error {
	if err := try(-1); err != nil {
		return err
	}
	return become(p.Sock, path, argv)
}

// try has a process do what this one will: a sandbox may kill it. It also starts the supervisor, if sock is not negative.
func try(sock int) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	defer null.Close()
	files := []uintptr{null.Fd(), null.Fd(), 2}
	number := sock
	if sock >= 0 {
		number = len(files)
		files = append(files, uintptr(sock))
	}
	pid, _, err := syscall.StartProcess(program.Self, append([]string{starterName, strconv.Itoa(number)}, os.Args...), &syscall.ProcAttr{Env: os.Environ(), Files: files})
	if err != nil {
		return fmt.Errorf("%w: cannot start a process: %w", ErrNotBegun, err)
	}
	_, ws, err := program.Wait(pid, 0)
	switch e := syscall.Errno(ws.ExitStatus()); {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotBegun, err)
	case ws.Signaled():
		return fmt.Errorf("%w: %v ended the process that installs the filter: a sandbox forbids one of its system calls", ErrNotBegun, ws.Signal())
	case e == unix.EINVAL || e == unix.ENOSYS:
		return fmt.Errorf("%w: the kernel has no seccomp user notification: %w", ErrNotBegun, e)
	case e != 0 && e != unix.EBUSY: // see become
		return fmt.Errorf("%w: cannot install the seccomp filter: %w", ErrNotBegun, e)
	}
	return nil
}

// start is the work of the process of try. It returns the exit status: an errno, or 0.
func start(sock int) int {
	// The program's descriptors are not for the supervisor.
	_ = unix.CloseRange(4, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	if sock >= 0 {
		argv := append([]string{supervisorName, strconv.Itoa(sock), strconv.Itoa(os.Getppid())}, os.Args...)
		_, _, err := syscall.StartProcess(program.Self, argv, &syscall.ProcAttr{
			Dir: "/", Env: os.Environ(), Files: []uintptr{0, 1, 2, uintptr(sock)}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
		if err != nil {
			return errnoOf(err)
		}
	}
	runtime.LockOSThread()
	_, err := install()
	return errnoOf(err)
}

func errnoOf(err error) int {
	var e syscall.Errno
	if err != nil && !errors.As(err, &e) {
		e = unix.EINVAL
	}
	return int(e)
}

// become installs the filter and executes the program.
func become(sock int, path string, argv []string) error {
	failed := make(chan error)
	// Another thread has the filter, so that this one can still execute the program without. It ends with the goroutine.
	go func() {
		runtime.LockOSThread()
		listener, err := install()
		if errors.Is(err, unix.EBUSY) { // a program has one listener only, and this is within a program that has it
			failed <- program.Exec(path, argv, os.Environ())
			return
		}
		if err == nil {
			err = pass(sock, listener)
		}
		if err != nil {
			failed <- fmt.Errorf("%w: %w", ErrNotBegun, err)
			return
		}
		failed <- program.Exec(path, argv, os.Environ())
	}()
	return <-failed
}

// pass passes the listener to the supervisor, and waits until that can answer calls.
func pass(sock, listener int) error {
	err := unix.Sendmsg(sock, []byte{0}, unix.UnixRights(listener), nil, unix.MSG_NOSIGNAL)
	_ = unix.Close(listener)
	if err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	n := 0
	err = retry.Interrupted(func() (err error) { n, _, err = unix.Recvfrom(sock, make([]byte, 1), 0); return err })
	switch {
	case err != nil:
		return os.NewSyscallError("recvfrom", err)
	case n == 0:
		return errSilent
	}
	return nil
}

// errSilent means that the supervisor has ended, or cannot answer calls.
var errSilent = errors.New("kernelsmc: the supervisor ended without a message: was it killed, or does a sandbox forbid its calls?")

// leaveAfter gives standard error up when a process has ended: somebody may wait for its end, as the shell does for the output of a
// daemon.
func leaveAfter(pid int) {
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		_ = retry.Interrupted(func() error { _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); return err })
	}
	_ = unix.Dup3(0, 2, 0) // which is /dev/null
}
