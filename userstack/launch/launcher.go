// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// becomeLauncher makes this process the launcher of a front. Its arguments become those of the
// front.
func becomeLauncher() {
	if len(os.Args) < 5 {
		os.Exit(ExitNotExecutable)
	}
	pid, err1 := strconv.Atoi(os.Args[2])
	sock, err2 := strconv.Atoi(os.Args[3])
	if errors.Join(err1, err2) != nil {
		os.Exit(ExitNotExecutable)
	}
	f := &Front{sock: sock, under: os.Args[1] != sideBeside, blocked: os.Args[1] == sideBlocked, pid: pid, relay: -1}
	os.Args = os.Args[4:]
	unix.CloseOnExec(sock)
	if f.under {
		for _, fd := range numbers("/proc/self/fd") {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 && fd != 2 {
				f.had = append(f.had, fd)
			}
		}
	}
	var err error
	if f.pidfd, err = unix.PidfdOpen(f.pid, 0); err != nil {
		f.pidfd = -1
	}
	// The name would be that of /proc/self/exe.
	_ = os.WriteFile("/proc/self/comm", []byte("smcr"), 0)
	endureSignals()
	f.env = takeManaged()
	theFront = f
}

// takeManaged removes what a service manager says to the program from the environment, and returns
// it: processes that the launcher starts, such as a stack, must not take it for themselves.
func takeManaged() (env []string) {
	for _, name := range []string{notifyEnv, "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES", "SYSTEMD_EXEC_PID"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
			_ = os.Unsetenv(name)
		}
	}
	return env
}

// endureSignals makes signals have no effect on this process, except those of its own faults. A
// service manager sends a signal to all processes of a service. The launcher has to end after the
// program, whatever the program does with the signal. Signals are caught, not ignored: processes
// that the launcher starts would ignore them, too.
func endureSignals() {
	var sigs []os.Signal
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGCONT, unix.SIGWINCH,
			unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS, 32, 33:
			continue
		}
		if !signal.Ignored(n) {
			sigs = append(sigs, n)
		}
	}
	signal.Notify(make(chan os.Signal, 1), sigs...)
}
