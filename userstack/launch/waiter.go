// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// standIn is a front above the launcher. Signals are blocked, so that it reads them with what the
// kernel says about their origin. The Go runtime does not block those of caught.
type standIn struct {
	sock, launcher int
	signals        int           // signalfd
	caught         int           // pipe with the numbers of signals that were caught
	ignored        []os.Signal   // when this process was started; the program may handle them
	mask           unix.Sigset_t // that this process was started with
	argv           []string

	pid   int // the program, or 0
	pidfd int
	conts int      // how many SIGCONT the program has got too, although it does not look so
	relay *relayed // nil: no service manager waits for messages
}

// standsIn is the work of the waiter. It returns the exit status, or does not return.
func standsIn() int {
	if len(os.Args) < 5 {
		return ExitNotExecutable
	}
	runtime.LockOSThread()
	sock, err1 := strconv.Atoi(os.Args[1])
	pid, err2 := strconv.Atoi(os.Args[2])
	bits, err3 := strconv.ParseUint(os.Args[3], 16, 64)
	if errors.Join(err1, err2, err3) != nil {
		return ExitNotExecutable
	}
	w := &standIn{sock: sock, launcher: pid, argv: os.Args[4:], pidfd: -1}
	setBits(&w.mask, bits)
	unix.CloseOnExec(sock)
	_ = os.WriteFile("/proc/self/comm", []byte("smcr"), 0)
	// If the launcher is killed, the program becomes a child of this process.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	// In a sandbox that forbids it, the program does not get all signals.
	var err error
	if w.signals, err = unix.Signalfd(-1, allSignals(), unix.SFD_CLOEXEC|unix.SFD_NONBLOCK); err != nil {
		w.signals = -1
	}
	w.catch()
	_ = unix.Sendmsg(sock, make([]byte, 4), nil, nil, unix.MSG_NOSIGNAL) // if the launcher has ended, run finds it
	return w.run()
}

// catch begins to catch the signals that the Go runtime does not block.
func (w *standIn) catch() {
	sigs := []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGTERM, unix.SIGCHLD}
	for _, sig := range sigs {
		if signal.Ignored(sig) {
			w.ignored = append(w.ignored, sig)
		}
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		w.caught = -1
		return
	}
	w.caught = p[0]
	ch := make(chan os.Signal, 64)
	signal.Notify(ch, sigs...)
	// No guard: it only makes system calls.
	go func() {
		for sig := range ch {
			_, _ = unix.Write(p[1], []byte{byte(sig.(syscall.Signal))})
		}
	}()
}

// run follows the launcher.
func (w *standIn) run() int {
	for {
		fds := []unix.PollFd{{Fd: int32(w.sock), Events: unix.POLLIN}, {Fd: int32(w.signals), Events: unix.POLLIN}, {Fd: w.relay.fd(), Events: unix.POLLIN}, {Fd: int32(w.caught), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return ExitNotExecutable
		}
		if (fds[1].Revents != 0 || fds[3].Revents != 0) && fds[0].Revents == 0 { // first what the launcher has said
			w.passSignals()
			if ws, ok := w.reap(); ok {
				return endAs(ws)
			}
		}
		if fds[2].Revents != 0 {
			w.relay.pass()
		}
		if fds[0].Revents == 0 {
			continue
		}
		b := make([]byte, 64)
		n, oob, err := receiveFrom(w.sock, b)
		if err != nil || n == 0 {
			if w.pid == 0 {
				return ExitNotExecutable
			}
			// The launcher was killed, and the program is a child of this process.
			_ = unix.Close(w.sock)
			w.sock = -1
			if ws, ok := w.reap(); ok {
				return endAs(ws)
			}
			continue
		}
		switch b = b[:n]; frontMessage(b[0]) {
		case frontBegins:
			w.begins(b, oob)
		case frontRuns:
			w.leave()
		case frontStopped:
			w.conts = 1
		case frontEnded:
			w.relay.pass()
			return endAs(syscall.WaitStatus(binary.LittleEndian.Uint32(b[1:])))
		case frontExit:
			_, _ = waitFor(w.launcher)
			return int(b[1])
		case frontNative:
			return w.native()
		}
	}
}

// begins learns which process is the program.
func (w *standIn) begins(b, oob []byte) {
	w.pid = int(binary.LittleEndian.Uint32(b[1:]))
	for _, fd := range rightsIn(oob) {
		if _, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
			w.pidfd = fd
		} else {
			w.relay = newRelay(fd, w.launcher)
		}
	}
}

// leave leaves its descriptors to the program.
func (w *standIn) leave() {
	f := &Front{}
	for _, fd := range numbers("/proc/self/fd") {
		if inheritable(fd) {
			f.had = append(f.had, fd)
		}
	}
	f.leaveDescriptors()
}

// native executes the program without a launcher.
func (w *standIn) native() int {
	_, _ = waitFor(w.launcher)
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	path, err := lookPath(w.argv[0], "", os.Environ())
	if err == nil {
		if len(w.ignored) > 0 { // without signals, it ignores all
			signal.Ignore(w.ignored...)
		}
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &w.mask, nil)
		err = execAsStarted(path, w.argv, os.Environ())
	}
	return (&StartError{Program: w.argv[0], Err: err}).ExitStatus()
}

// Of struct signalfd_siginfo, where ssi_code and ssi_pid are after ssi_signo, and its size.
const (
	ssiCode = 8
	ssiPID  = 12
	ssiSize = 128
)

// siKernel is SI_KERNEL: the terminal, among others, has sent a signal.
const siKernel = 0x80

// passSignals passes the signals that wait on to the program.
func (w *standIn) passSignals() {
	var b [ssiSize]byte
	for {
		n, err := unix.Read(w.caught, b[:])
		if err != nil || n == 0 {
			break
		}
		for _, sig := range b[:n] {
			w.pass(syscall.Signal(sig), 0, 0)
		}
	}
	for {
		if n, err := unix.Read(w.signals, b[:]); err != nil || n != len(b) {
			return
		}
		w.pass(syscall.Signal(binary.NativeEndian.Uint32(b[:])), int32(binary.NativeEndian.Uint32(b[ssiCode:])), int(binary.NativeEndian.Uint32(b[ssiPID:])))
	}
}

// pass passes a signal on to the program, unless the program has it already. code and from are
// si_code and si_pid, or 0.
func (w *standIn) pass(sig syscall.Signal, code int32, from int) {
	switch {
	case sig == unix.SIGCHLD: // see reap
	case w.pid == 0:
		w.early(sig)
	case code == siKernel:
		// The terminal has sent it to the program, too, which is in the same group.
	case (sig == unix.SIGINT || sig == unix.SIGQUIT) && InForeground():
		// Probably, too: where these come from is not known.
	case sig == unix.SIGCONT && from == w.launcher:
		// The program goes on.
	case sig == unix.SIGCONT && w.conts > 0 && !stoppedNow(w.pid):
		w.conts-- // the shell has sent it to the group
	default:
		if (sig == unix.SIGTSTP || sig == unix.SIGTTIN || sig == unix.SIGTTOU) && stoppedNow(w.pid) {
			// This process goes on. The signal has removed the SIGCONT that did it.
			_ = sendSignal(w.pidfd, w.pid, unix.SIGCONT)
		}
		_ = sendSignal(w.pidfd, w.pid, sig)
	}
}

// early handles a signal before the program runs.
func (w *standIn) early(sig syscall.Signal) {
	switch sig {
	case unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGWINCH:
		return
	}
	if !slices.Contains(w.ignored, os.Signal(sig)) {
		endBy(sig)
	}
}

// sendSignal sends a signal to a process. pidfd is -1 if a sandbox forbids pidfds.
func sendSignal(pidfd, pid int, sig syscall.Signal) error {
	if pidfd < 0 {
		return unix.Kill(pid, sig)
	}
	return unix.PidfdSendSignal(pidfd, sig, nil, 0)
}

// stoppedNow reports whether a process is stopped.
func stoppedNow(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err == nil && isStopped(b)
}

// reap reaps children: orphans if this is process 1 of a container, and the program if the
// launcher was killed, which reap tells.
func (w *standIn) reap() (ws syscall.WaitStatus, program bool) {
	for {
		var ws syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid <= 0:
			return 0, false
		case pid == w.pid:
			return ws, true
		}
	}
}

// endAs ends this process as the program has ended, and returns its exit status if it was not
// ended by a signal.
func endAs(ws syscall.WaitStatus) int {
	if !ws.Signaled() {
		return ws.ExitStatus()
	}
	endBy(ws.Signal())
	return exitSignal + int(ws.Signal()) // process 1 of a container
}

// endBy ends this process by a signal, without a core: the program has left one.
func endBy(sig syscall.Signal) {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	signal.Reset(sig)
	// The Go runtime keeps its handlers for some signals. SIG_DFL, no flags and no mask are zero.
	var none [64]byte
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
	_ = unix.PthreadSigmask(unix.SIG_UNBLOCK, sigset(sig), nil)
	_ = unix.Kill(os.Getpid(), sig)
}

// allSignals returns the set of the signals that the waiter blocks. The Go runtime does not block
// those that end a process by its own will.
func allSignals() *unix.Sigset_t {
	var set unix.Sigset_t
	setBits(&set, ^uint64(0))
	for _, sig := range []syscall.Signal{
		unix.SIGCHLD, unix.SIGURG, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGTERM,
		unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGPROF, unix.SIGSTKFLT, unix.SIGSYS, 32, 33, 34,
	} {
		setBits(&set, sigbits(&set)&^(1<<(sig-1)))
	}
	return &set
}

// sigset returns the set of a signal.
func sigset(sig syscall.Signal) *unix.Sigset_t {
	var set unix.Sigset_t
	setBits(&set, 1<<(sig-1))
	return &set
}

// sigbits and setBits convert the 64 signals of Linux.
func sigbits(set *unix.Sigset_t) uint64       { return uint64(set.Val[0]) }
func setBits(set *unix.Sigset_t, bits uint64) { set.Val[0] = bits }
