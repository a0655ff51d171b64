// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Names, argv[0], of the processes that Become starts. The arguments of this process follow, after
// those that are listed.
const (
	starterName = "smcr-start" // starts the launcher, and ends
	// LauncherName is that of a launcher. Its side, the front, and the descriptor of the socket to
	// the front follow.
	LauncherName = "smcr-launcher"
	waiterName   = "smcr-waiter" // the descriptor, the launcher, the signal mask, the program
)

const (
	sideBeside = "beside"
	sideUnder  = "under"
	// sideBlocked is sideUnder of a front that was started with SIGTTOU blocked.
	sideBlocked = "under-blocked"
)

// IsLauncher reports whether argv is that of a launcher that Become has started, and returns the
// process for which it was started: the program itself, or the parent of the launcher.
func IsLauncher(argv []string) (front int, ok bool) {
	if len(argv) < 4 || argv[0] != LauncherName {
		return 0, false
	}
	front, err := strconv.Atoi(argv[2])
	return front, err == nil && front > 0
}

// self is the executable of this process, also if the file was replaced.
const self = "/proc/self/exe"

// Become makes this process the program, and starts a launcher for it: this executable, with the
// same arguments, where TheFront is not nil and the calling program decides how to go on: Run
// with Config.Front, Front.Native or Front.Exit. If under is set, this process is not the program,
// but the parent of the launcher, which is the parent of the program; it behaves as the program.
//
// The calling program must call MaybeChild at the start of main. Become returns only if there is
// no launcher: with a *StartError, or an error that matches ErrNotBegun.
func Become(argv []string, under bool) error {
	if theFront != nil {
		return errors.New("launch: Become was called in a launcher")
	}
	path, err := lookPath(argv[0], "", os.Environ())
	if err != nil {
		return &StartError{Program: argv[0], Err: err}
	}
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotBegun, os.NewSyscallError("socketpair", err))
	}
	defer unix.Close(socks[0])
	if under {
		return becomeWaiter(argv, socks)
	}
	pid, err := startStarter(socks[1])
	_ = unix.Close(socks[1])
	if err != nil {
		return fmt.Errorf("%w: cannot start a process: %w", ErrNotBegun, err)
	}
	ws, err := waitFor(pid)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	return (&front{sock: socks[0], path: path, argv: argv}).become(ws)
}

// startStarter starts the process that starts the launcher. It gets only what the launcher gets.
func startStarter(sock int) (pid int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, _, err = syscall.StartProcess(self, append([]string{starterName}, os.Args...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{null.Fd(), null.Fd(), 2, uintptr(sock)},
	})
	return pid, err
}

func waitFor(pid int) (ws syscall.WaitStatus, err error) {
	for {
		if _, err = syscall.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			return ws, os.NewSyscallError("wait4", err)
		}
	}
}

// starterSock is the descriptor of the socket to the front in the starter and in the launcher
// beside.
const starterSock = 3

// startLauncher is the work of the starter: it starts the launcher, and then tries what the front
// will do. A sandbox may kill the process that does it. It returns the exit status: an errno, or 0.
func startLauncher() int {
	// The program's descriptors are not for the launcher.
	if err := unix.CloseRange(starterSock+1, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		for _, fd := range numbers("/proc/self/fd") {
			if fd > starterSock {
				unix.CloseOnExec(fd)
			}
		}
	}
	argv := append([]string{LauncherName, sideBeside, strconv.Itoa(os.Getppid()), strconv.Itoa(starterSock)}, os.Args[1:]...)
	_, _, err := syscall.StartProcess(self, argv, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2, starterSock}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return int(errnoOf(err))
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return int(errnoOf(err))
	}
	_, e := seccomp(stubNoFlags)
	return int(e)
}

// front is the work of a front that has a launcher beside it.
type front struct {
	sock int
	path string
	argv []string
}

// become does what the launcher says. ws is the end of the starter.
func (f *front) become(ws syscall.WaitStatus) error {
	// If the launcher has ended, next finds it.
	_ = unix.Sendmsg(f.sock, binary.LittleEndian.AppendUint32(nil, uint32(ws)), nil, nil, unix.MSG_NOSIGNAL)
	for next := f.next(); ; {
		m := next
		if len(m) == 0 {
			return f.noLauncher(ws)
		}
		switch frontMessage(m[0]) {
		case frontInstall:
			// Another thread installs the filter, so that this one can still execute the program
			// without.
			done := make(chan []byte)
			go func() { done <- f.install(string(m[1:])) }() // No guard: there is one process for it.
			next = <-done
		case frontNative:
			return f.native()
		case frontExit:
			f.exit(m)
		default:
			return fmt.Errorf("%w: unknown message of the launcher", ErrNotBegun)
		}
	}
}

// noLauncher is the error if the launcher has ended without a word.
func (f *front) noLauncher(ws syscall.WaitStatus) error {
	if ws.Signaled() {
		return forbidden(ws.Signal())
	}
	if e := syscall.Errno(ws.ExitStatus()); e != 0 {
		return fmt.Errorf("%w: cannot start the launcher: %w", ErrNotBegun, e)
	}
	return fmt.Errorf("%w: the launcher ended without a message: was it killed?", ErrNotBegun)
}

// next returns the next message of the launcher, or nothing after its end.
func (f *front) next() []byte {
	b := make([]byte, 64)
	n, _, err := receiveFrom(f.sock, b)
	if err != nil {
		return nil
	}
	return b[:n]
}

// install installs the filter on this thread and executes the program. It returns the next
// message of the launcher if this was not possible.
func (f *front) install(flags string) []byte {
	runtime.LockOSThread() // the thread ends with the goroutine
	passInherited(f.sock)
	if err := installFilter(f.sock, flags); err != nil {
		report(f.sock, stepFilter, err, -1)
		return f.next()
	}
	m := f.next()
	if len(m) == 0 || frontMessage(m[0]) != frontGoOn {
		return m
	}
	err := execAsStarted(f.path, f.argv, os.Environ())
	report(f.sock, stepExec, err, -1)
	return f.next()
}

// native executes the program without a launcher.
func (f *front) native() error {
	return &StartError{Program: f.argv[0], Err: execAsStarted(f.path, f.argv, os.Environ())}
}

// exit ends the process when the launcher has ended, which prints why before.
func (f *front) exit(m []byte) {
	status := ExitNotExecutable
	if len(m) > 1 {
		status = int(m[1])
	}
	for len(f.next()) > 0 {
	}
	os.Exit(status)
}

// execAsStarted executes the program with the signals as they were when this process was started.
// The Go runtime does not keep which were ignored, except SIGHUP and SIGINT. systemd ignores
// SIGPIPE for services, unless they say otherwise.
func execAsStarted(path string, argv, env []string) error {
	if os.Getenv("SYSTEMD_EXEC_PID") == strconv.Itoa(os.Getpid()) {
		signal.Ignore(unix.SIGPIPE)
	}
	return syscall.Exec(path, argv, env)
}
