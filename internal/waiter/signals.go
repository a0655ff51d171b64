// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// catch begins to catch the signals that the Go runtime does not block.
func (w *standIn) catch() error {
	sigs := []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGTERM, unix.SIGCHLD}
	for _, sig := range sigs {
		if signal.Ignored(sig) {
			w.ignored = append(w.ignored, sig)
		}
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	w.caught = p[0]
	ch := make(chan os.Signal, 64)
	signal.Notify(ch, sigs...)
	go func() {
		for sig := range ch {
			_, _ = unix.Write(p[1], []byte{byte(sig.(syscall.Signal))})
		}
	}()
	return nil
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

// pass passes a signal on to the program, unless the program has it already. code and from are si_code and si_pid, or 0.
func (w *standIn) pass(sig syscall.Signal, code int32, from int) {
	switch {
	case sig == unix.SIGCHLD: // see reap
	case w.pid == 0:
		w.early(sig)
	case code == siKernel:
		// The terminal has sent it to the program, too, which is in the same group.
	case (sig == unix.SIGINT || sig == unix.SIGQUIT) && inForeground():
		// Probably, too: where these come from is not known.
	case sig == unix.SIGCONT && from == w.other:
		// The program goes on.
	case sig == unix.SIGCONT && w.conts > 0 && !isStopped(w.pid):
		w.conts-- // the shell has sent it to the group
	default:
		if (sig == unix.SIGTSTP || sig == unix.SIGTTIN || sig == unix.SIGTTOU) && isStopped(w.pid) {
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

// inForeground reports whether this process is in the foreground group of its terminal. Then the terminal sends its signals to the
// program, too.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	pgrp, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}

// pidfdOf returns a pidfd for sendSignal, or -1.
func pidfdOf(pid int) int {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// sendSignal sends a signal to a process. pidfd is -1 if a sandbox forbids pidfds.
func sendSignal(pidfd, pid int, sig syscall.Signal) error {
	if pidfd < 0 {
		return unix.Kill(pid, sig)
	}
	return unix.PidfdSendSignal(pidfd, sig, nil, 0)
}

// isStopped reports whether a process is stopped.
func isStopped(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err == nil && bytes.Contains(b, []byte("\nState:\tT"))
}

// exitSignal plus the number of the signal that ended a program is its exit status in shells.
const exitSignal = 128

// endAs ends this process as the program has ended, and returns its exit status if it was not ended by a signal.
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

// allSignals returns the set of the signals that the waiter blocks. The Go runtime does not block those that end a process by its
// own will.
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
