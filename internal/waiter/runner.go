// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/program"
	"smcr/internal/retry"
)

// message is the first byte of what the runner says to the waiter.
type message byte

const (
	msgReady   message = iota // this process is there
	msgNative                 // execute the program
	msgAlone                  // do without a waiter when the runner has ended; with the reason
	msgExit                   // end when the runner has; with an exit status
	msgBegins                 // the program will run; its number, how many pidfds come, those, and the sockets for its notifications
	msgRuns                   // the program runs
	msgStopped                // a signal has stopped the program
	msgEnded                  // the program has ended; with its wait status
)

// errSilent means that a process has ended without a word.
var errSilent = errors.New("the process that starts it has ended without a message: was it killed?")

// Runner is this process, if Become of its parent has started it: the one that starts the program.
type Runner struct {
	sock, waiter int
	pidfd        int // of the waiter, or -1
	mask         unix.Sigset_t
	env          []string // variables that are for the program only
	had          []int    // the descriptors that are the program's
	pid          int      // the program
	ended        syscall.WaitStatus
}

// theRunner is a package variable because MaybeChild, which sets it, is called before the program knows what it is to do.
var theRunner *Runner

// TheRunner returns the runner, if this process is one, and nil otherwise.
func TheRunner() *Runner { return theRunner }

func newRunner(c child) *Runner {
	r := &Runner{sock: c.sock, waiter: c.other, mask: c.mask}
	// Standard error stays: what there is to say at the end goes there.
	r.had = slices.DeleteFunc(inherited(), func(fd int) bool { return fd == 2 })
	r.pidfd = pidfdOf(r.waiter)
	Endure()
	r.env = takeManaged()
	return r
}

// takeManaged removes what a service manager says to the program from the environment, and returns it: processes that the runner
// starts, such as a stack, must not take it for themselves.
func takeManaged() (env []string) {
	for _, name := range []string{notifyEnv, "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES", "SYSTEMD_EXEC_PID"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
			_ = os.Unsetenv(name)
		}
	}
	return env
}

// Endure makes signals have no effect on this process, except those of its own faults: a service manager sends a signal to all
// processes of a service, and a process that serves the program ends after it. Signals are caught, not ignored: processes that
// this one starts would ignore them, too.
func Endure() {
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

// meet waits for the waiter, and tells it that this process is there: from then on they can talk.
func (r *Runner) meet() error {
	n, _, err := receive(r.sock, make([]byte, 1))
	if err == nil && n == 0 {
		err = errSilent
	}
	if err != nil {
		return err
	}
	return r.tell(msgReady, nil)
}

// Native makes the waiter execute the program when this process has ended.
func (r *Runner) Native() error { return r.tell(msgNative, nil) }

// Alone makes the waiter do without, when this process has ended. Nothing of the program may have run.
func (r *Runner) Alone(why error) error {
	text := strings.TrimPrefix(why.Error(), ErrNotBegun.Error()+": ")
	return r.tell(msgAlone, []byte(text[:min(len(text), maxMessage-1)]))
}

// Exit makes the waiter end with a status when this process has ended. The program must not run.
func (r *Runner) Exit(status int) error { return r.tell(msgExit, []byte{byte(status)}) }

// Ended makes the waiter end as the program has ended, after Wait. Standard error is given up: somebody may wait for its end.
func (r *Runner) Ended() error {
	err := r.tell(msgEnded, binary.LittleEndian.AppendUint32(nil, uint32(r.ended)))
	leave([]int{2})
	return err
}

// tell sends a message to the waiter.
func (r *Runner) tell(m message, data []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(r.sock, append([]byte{byte(m)}, data...), oob, nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("waiter: the started process: %w", os.NewSyscallError("sendmsg", err))
	}
	return nil
}

// Start starts the program, with these descriptors besides those that it inherits. The error matches ErrNotBegun, or is a
// *program.StartError.
func (r *Runner) Start(path string, argv []string, files ...int) error {
	env, relay, err := relayTo(slices.Concat(os.Environ(), r.env))
	if err != nil {
		return notBegun(err)
	}
	defer closeAll(relay)
	group, err := unix.Getpgid(r.waiter)
	if err != nil {
		return notBegun(os.NewSyscallError("getpgid", err))
	}
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return notBegun(os.NewSyscallError("socketpair", err))
	}
	r.pid, _, err = syscall.StartProcess(program.Self, arguments(stubName, socks[1], r.waiter, &r.mask, append([]string{path}, argv...)), &syscall.ProcAttr{
		Env: env, Files: withFiles(append(files, socks[1])...), Sys: &syscall.SysProcAttr{Setpgid: true, Pgid: group},
	})
	_ = unix.Close(socks[1])
	if err != nil {
		_ = unix.Close(socks[0])
		return notBegun(fmt.Errorf("cannot start a process: %w", err))
	}
	err = r.begin(socks[0], relay, argv[0])
	_ = unix.Close(socks[0]) // ends a process that does not become the program
	if err != nil {
		_ = unix.Kill(r.pid, unix.SIGKILL)
		_, _, _ = program.Wait(r.pid, 0)
		return err
	}
	_ = r.tell(msgRuns, nil)
	leave(r.had)
	_ = unix.Chdir("/") // the program's directory may be unmounted
	return nil
}

// begin tells the waiter which process becomes the program, so that no signal is too early, and lets that execute it.
func (r *Runner) begin(sock int, relay []int, name string) error {
	var fds []int
	pidfd := pidfdOf(r.pid) // it is not reaped yet
	if pidfd >= 0 {
		defer unix.Close(pidfd)
		fds = append(fds, pidfd)
	}
	// What is needed when the program runs is tried before.
	if err := sendSignal(pidfd, r.pid, 0); err != nil {
		return notBegun(os.NewSyscallError("kill", err))
	}
	if err := r.tell(msgBegins, append(binary.LittleEndian.AppendUint32(nil, uint32(r.pid)), byte(len(fds))), append(fds, relay...)...); err != nil {
		return notBegun(err)
	}
	if err := unix.Sendto(sock, []byte{0}, unix.MSG_NOSIGNAL, nil); err != nil {
		return notBegun(os.NewSyscallError("sendto", err))
	}
	// The socket is closed when the program is executed.
	b := make([]byte, 4)
	n, _, err := receive(sock, b)
	switch {
	case err != nil:
		return notBegun(os.NewSyscallError("recvmsg", err))
	case n == len(b):
		return &program.StartError{Program: name, Err: syscall.Errno(binary.LittleEndian.Uint32(b))}
	}
	return nil
}

// Wait tells the waiter what the program does until it ends. Ended tells it of the end.
func (r *Runner) Wait() {
	over := make(chan struct{})
	defer close(over)
	go r.killAfterWaiter(over)
	for seen := false; ; {
		_, ws, err := program.Wait(r.pid, unix.WUNTRACED|unix.WCONTINUED)
		switch {
		case err != nil:
			r.ended = program.ExitNotExecutable << 8
			return
		case ws.Stopped():
			// The runner stops the waiter, and lets it go on, so that this is in order.
			_ = r.tell(msgStopped, nil)
			_ = sendSignal(r.pidfd, r.waiter, unix.SIGSTOP)
			seen = r.waiterStops()
		case ws.Continued():
			// If others have let the waiter go on, a SIGCONT would only remove stop signals that it has not read.
			if !seen || isStopped(r.waiter) {
				_ = sendSignal(r.pidfd, r.waiter, unix.SIGCONT)
			}
		default:
			r.ended = ws
			return
		}
	}
}

// waiterStops waits a short time until the waiter has stopped, and reports whether it has.
func (r *Runner) waiterStops() bool {
	for end := time.Now().Add(100 * time.Millisecond); !isStopped(r.waiter); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// killAfterWaiter kills the program when the waiter is killed, as if it were the program.
func (r *Runner) killAfterWaiter(over <-chan struct{}) {
	err := retry.Interrupted(func() error { _, err := unix.Poll([]unix.PollFd{{Fd: int32(r.sock)}}, -1); return err })
	select {
	case <-over:
	default:
		if err == nil {
			_ = unix.Kill(r.pid, unix.SIGKILL)
		}
	}
}

// maxFDs is how many descriptors come with a message: a pidfd, and two sockets.
const maxFDs = 3

// memoryTime is how long a message is received again while the kernel has no memory for that.
const memoryTime = time.Second

// receive receives a message.
func receive(sock int, b []byte) (n int, oob []byte, err error) {
	oob = make([]byte, unix.CmsgSpace(4*maxFDs))
	oobn := 0
	err = retry.While(retry.NoMemory, memoryTime, func() error {
		return retry.Interrupted(func() (err error) {
			n, oobn, _, _, err = unix.Recvmsg(sock, b, oob, unix.MSG_CMSG_CLOEXEC)
			return err
		})
	})
	return n, oob[:max(oobn, 0)], err
}
