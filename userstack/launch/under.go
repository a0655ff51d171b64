// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// becomeWaiter starts the launcher as a child and makes this process the waiter.
func becomeWaiter(argv []string, socks [2]int) error {
	runtime.LockOSThread()
	pid, was, err := startUnder(socks[1])
	_ = unix.Close(socks[1])
	if err == nil {
		err = executeWaiter(argv, socks[0], pid, &was)
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = waitFor(pid)
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil)
	return fmt.Errorf("%w: cannot start a process: %w", ErrNotBegun, err)
}

// startUnder starts the launcher with SIGTTOU blocked: it is not in the foreground of the terminal,
// to which it may write. was is the mask of this thread before.
func startUnder(sock int) (pid int, was unix.Sigset_t, err error) {
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, sigset(unix.SIGTTOU), &was); err != nil {
		return 0, was, os.NewSyscallError("rt_sigprocmask", err)
	}
	side := sideUnder
	if sigbits(&was)&sigbits(sigset(unix.SIGTTOU)) != 0 {
		side = sideBlocked
	}
	argv := append([]string{LauncherName, side, strconv.Itoa(os.Getpid()), strconv.Itoa(sock)}, os.Args...)
	pid, _, err = syscall.StartProcess(self, argv, &syscall.ProcAttr{
		Env: os.Environ(), Files: stubFiles(&Config{}, sock), Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	return pid, was, err
}

// executeWaiter executes the waiter with all signals blocked. was is the mask of the program.
func executeWaiter(argv []string, sock, launcher int, was *unix.Sigset_t) error {
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, allSignals(), nil); err != nil {
		return os.NewSyscallError("rt_sigprocmask", err)
	}
	if _, err := unix.FcntlInt(uintptr(sock), unix.F_SETFD, 0); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	return syscall.Exec(self, append([]string{waiterName, strconv.Itoa(sock), strconv.Itoa(launcher), strconv.FormatUint(sigbits(was), 16)}, argv...), os.Environ())
}

// start starts the program as a child of this launcher, which is a child of the front.
func (f *Front) start(ctx context.Context, cfg *Config, path string, env []string) (*program, error) {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // see startChild
	env, err := f.relayTo(append(env, f.env...))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	if f.group, err = unix.Getpgid(f.pid); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBegun, os.NewSyscallError("getpgid", err))
	}
	_, p, err := startStub(ctx, cfg, path, env)
	if err != nil {
		f.closeRelay()
		return nil, err
	}
	p.end = func() { children.remove(p.pid) }
	f.closeRelay()
	_ = f.tell(frontRuns, nil)
	f.leaveDescriptors()
	_ = unix.Chdir("/")
	p.wait = func() int { return f.report(p.pid) }
	return p, nil
}

// begins tells the front of the process that becomes the program, before it runs, so that no
// signal is too early.
func (f *Front) begins(pid int) error {
	if _, err := f.trial(); err != nil {
		return err
	}
	var fds []int
	if pidfd, err := unix.PidfdOpen(pid, 0); err == nil { // not reaped yet
		defer unix.Close(pidfd)
		fds = append(fds, pidfd)
	}
	if f.relay >= 0 {
		fds = append(fds, f.relay)
	}
	return f.tell(frontBegins, binary.LittleEndian.AppendUint32(nil, uint32(pid)), fds...)
}

// report tells the front what the program does until it ends, and returns its exit status. Ended
// tells the front of the end.
func (f *Front) report(pid int) int {
	over := make(chan struct{})
	defer close(over)
	go f.killAfterFront(pid, over) // No guard: it only makes system calls.
	for seen := false; ; {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED|syscall.WCONTINUED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			f.ended = ExitNotExecutable << 8
			return ExitNotExecutable
		case ws.Stopped():
			// The launcher stops the front, and lets it go on, so that this is in order.
			_ = f.tell(frontStopped, nil)
			_ = sendSignal(f.pidfd, f.pid, unix.SIGSTOP)
			seen = f.frontStops()
		case ws.Continued():
			// If others have let the front go on, a SIGCONT would only remove stop signals that it
			// has not read.
			if !seen || stoppedNow(f.pid) {
				_ = sendSignal(f.pidfd, f.pid, unix.SIGCONT)
			}
		case ws.Signaled():
			f.ended = ws
			return exitSignal + int(ws.Signal())
		default:
			f.ended = ws
			return ws.ExitStatus()
		}
	}
}

// frontStops waits a short time until the front has stopped, and reports whether it has.
func (f *Front) frontStops() bool {
	for end := time.Now().Add(100 * time.Millisecond); !stoppedNow(f.pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// Ended makes a front that is a waiter end as the program has ended. The launcher gives up standard
// error. With another front, which has been the program, it does nothing.
func (f *Front) Ended() {
	if !f.under {
		return
	}
	_ = f.tell(frontEnded, binary.LittleEndian.AppendUint32(nil, uint32(f.ended)))
	leaveStderr()
}

// Waits reports whether the front is a waiter.
func (f *Front) Waits() bool { return f.under }

// killAfterFront kills the program when the front is killed, as if it were the program.
func (f *Front) killAfterFront(pid int, over <-chan struct{}) {
	fds := []unix.PollFd{{Fd: int32(f.sock)}}
	for {
		n, err := unix.Poll(fds, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		select {
		case <-over:
		default:
			if err == nil && n > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return
	}
}

// leaveDescriptors closes the descriptors that the program has now.
func (f *Front) leaveDescriptors() {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(null)
	for _, fd := range f.had {
		if fd <= 2 {
			_ = unix.Dup3(null, fd, 0)
		} else {
			_ = unix.Close(fd)
		}
	}
}

// asStarted returns the environment of the program if the variables of a service manager name
// process front: it takes the program for that process.
func asStarted(env []string, front string) []string {
	own := strconv.Itoa(os.Getpid())
	env = slices.Clone(env)
	for i, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case "LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID":
			if value == front {
				env[i] = name + "=" + own
			}
		}
	}
	// The number of the front's pidfd: systemd looks at it only if it is there.
	return slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "LISTEN_PIDFDID=") })
}
